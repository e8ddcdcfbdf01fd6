/* A stand-in for libnvidia-ml.so.1: answers from a state file of `KEY VALUE` lines.
 *
 * Keys are `GPU.NAME` or `*.NAME` (a default for all GPUs) and `count`, `driver`. A missing file is a
 * driver that isn't loaded, a missing key a feature that isn't supported, `GPU.lost 1` a GPU that
 * fell off the bus. The file is replaced by rename and read again when it changed. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <pthread.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { MOST_GPUS = 16, MOST_LINES = 1024, MOST_TEXT = 2048, MOST_PROCESSES = 128, XID_EVENT = 8 };

typedef struct { char key[64]; char value[MOST_TEXT]; } line_t;
typedef struct gpu { unsigned index; } gpu_t;
typedef struct { unsigned long long seen[MOST_GPUS]; unsigned registered; } events_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gpu_t gpus[MOST_GPUS];
static line_t *lines;
static size_t line_count;
static struct stat read_as;
static int initialised;

static const char *state_path(void)
{
    const char *path = getenv("ONES_EMULATION_STATE");
    return path ? path : "/run/emulation/gpu.state";
}

/* Read the state again if it was replaced. The caller holds the lock. */
static int refresh(void)
{
    struct stat now;
    if (stat(state_path(), &now) != 0)
        return DRIVER_NOT_LOADED;
    if (lines && now.st_ino == read_as.st_ino && now.st_size == read_as.st_size &&
        now.st_mtim.tv_sec == read_as.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == read_as.st_mtim.tv_nsec)
        return OK;
    FILE *file = fopen(state_path(), "r");
    if (!file)
        return DRIVER_NOT_LOADED;
    if (!lines)
        lines = calloc(MOST_LINES, sizeof *lines);
    char text[MOST_TEXT + 80];
    line_count = 0;
    while (lines && line_count < MOST_LINES && fgets(text, sizeof text, file)) {
        line_t *line = &lines[line_count];
        line->value[0] = '\0';
        if (sscanf(text, "%63s %2047[^\n]", line->key, line->value) >= 1)
            line_count++;
    }
    fclose(file);
    read_as = now;
    return lines ? OK : DRIVER_NOT_LOADED;
}

static const char *find(const char *key)
{
    for (size_t i = 0; i < line_count; i++)
        if (strcmp(lines[i].key, key) == 0)
            return lines[i].value;
    return NULL;
}

/* Copy the value of one GPU's key, or of all GPUs' default. */
static int text_of(const gpu_t *gpu, const char *name, char *value, size_t size)
{
    char key[64];
    int code;
    pthread_mutex_lock(&lock);
    code = initialised ? refresh() : UNINITIALIZED;
    if (code == OK) {
        const char *found;
        snprintf(key, sizeof key, "%u.lost", gpu->index);
        found = find(key);
        if (found && strcmp(found, "0") != 0) {
            code = GPU_IS_LOST;
        } else {
            snprintf(key, sizeof key, "%u.%s", gpu->index, name);
            found = find(key);
            if (!found) {
                snprintf(key, sizeof key, "*.%s", name);
                found = find(key);
            }
            if (found)
                snprintf(value, size, "%s", found);
            else
                code = NOT_SUPPORTED;
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int number_of(const gpu_t *gpu, const char *name, unsigned long long *value)
{
    char text[MOST_TEXT];
    int code = text_of(gpu, name, text, sizeof text);
    if (code == OK)
        *value = strtoull(text, NULL, 10);
    return code;
}

static int unsigned_of(const gpu_t *gpu, const char *name, unsigned *value)
{
    unsigned long long wide;
    int code = number_of(gpu, name, &wide);
    if (code == OK)
        *value = (unsigned)wide;
    return code;
}

static unsigned count_gpus(void)
{
    const char *value = find("count");
    unsigned count = value ? (unsigned)strtoul(value, NULL, 10) : 0;
    return count > MOST_GPUS ? MOST_GPUS : count;
}

static int system_text(const char *key, const char *fallback, char *value, unsigned size)
{
    pthread_mutex_lock(&lock);
    int code = initialised ? refresh() : UNINITIALIZED;
    if (code == OK) {
        const char *found = find(key);
        snprintf(value, size, "%s", found ? found : fallback);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MOST_GPUS; i++)
        gpus[i].index = i;
    int code = refresh();
    initialised = code == OK;
    pthread_mutex_unlock(&lock);
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    int code = initialised ? OK : UNINITIALIZED;
    initialised = 0;
    pthread_mutex_unlock(&lock);
    return code;
}

const char *nvmlErrorString(int code) { (void)code; return "emulated NVML error"; }

int nvmlSystemGetDriverVersion(char *v, unsigned n) { return system_text("driver", "550.0-emulated", v, n); }
int nvmlSystemGetNVMLVersion(char *v, unsigned n) { return system_text("nvml", "12.550.0-emulated", v, n); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12040; return OK; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    pthread_mutex_lock(&lock);
    int code = initialised ? refresh() : UNINITIALIZED;
    if (code == OK)
        *count = count_gpus();
    pthread_mutex_unlock(&lock);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu)
{
    unsigned count = 0;
    char ignored[MOST_TEXT];
    int code = nvmlDeviceGetCount_v2(&count);
    if (code != OK)
        return code;
    if (index >= count)
        return INVALID;
    *gpu = &gpus[index];
    code = text_of(*gpu, "name", ignored, sizeof ignored);
    return code == GPU_IS_LOST ? GPU_IS_LOST : OK;
}

static int handle_by(const char *name, const char *wanted, gpu_t **gpu)
{
    unsigned count = 0;
    char text[MOST_TEXT];
    int code = nvmlDeviceGetCount_v2(&count);
    if (code != OK)
        return code;
    for (unsigned i = 0; i < count; i++)
        if (text_of(&gpus[i], name, text, sizeof text) == OK && strcmp(text, wanted) == 0) {
            *gpu = &gpus[i];
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu) { return handle_by("uuid", uuid, gpu); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, gpu_t **gpu) { return handle_by("pci", id, gpu); }
int nvmlDeviceGetName(gpu_t *gpu, char *v, unsigned n) { return text_of(gpu, "name", v, n); }
int nvmlDeviceGetUUID(gpu_t *gpu, char *v, unsigned n) { return text_of(gpu, "uuid", v, n); }
int nvmlDeviceGetIndex(gpu_t *gpu, unsigned *v) { *v = gpu->index; return OK; }
int nvmlDeviceGetMinorNumber(gpu_t *gpu, unsigned *v) { return unsigned_of(gpu, "minor", v); }

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_t;

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci)
{
    char text[MOST_TEXT];
    int code = text_of(gpu, "pci", text, sizeof text);
    if (code != OK)
        return code;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%.31s", text);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%.15s", text);
    sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    return OK;
}

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;

int nvmlDeviceGetMemoryInfo_v2(gpu_t *gpu, memory_v2_t *memory)
{
    int code = number_of(gpu, "mem_total", &memory->total);
    if (code == OK)
        code = number_of(gpu, "mem_used", &memory->used);
    if (code != OK)
        return code;
    if (number_of(gpu, "mem_reserved", &memory->reserved) != OK)
        memory->reserved = 0;
    unsigned long long taken = memory->used + memory->reserved;
    memory->free = memory->total > taken ? memory->total - taken : 0;
    return OK;
}

/* The first version counts what the driver has reserved as used, as an H200's says. */
int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory)
{
    memory_v2_t apart;
    int code = nvmlDeviceGetMemoryInfo_v2(gpu, &apart);
    if (code != OK)
        return code;
    memory->total = apart.total;
    memory->used = apart.used + apart.reserved;
    memory->free = apart.free;
    return OK;
}

typedef struct { unsigned gpu, memory; } utilization_t;

int nvmlDeviceGetUtilizationRates(gpu_t *gpu, utilization_t *rates)
{
    int code = unsigned_of(gpu, "util_gpu", &rates->gpu);
    return code == OK ? unsigned_of(gpu, "util_mem", &rates->memory) : code;
}

int nvmlDeviceGetPowerUsage(gpu_t *gpu, unsigned *v) { return unsigned_of(gpu, "power", v); }
int nvmlDeviceGetEnforcedPowerLimit(gpu_t *gpu, unsigned *v) { return unsigned_of(gpu, "power_limit", v); }
int nvmlDeviceGetTotalEnergyConsumption(gpu_t *gpu, unsigned long long *v) { return number_of(gpu, "energy", v); }
int nvmlDeviceGetTemperature(gpu_t *gpu, unsigned sensor, unsigned *v) { (void)sensor; return unsigned_of(gpu, "temp", v); }
int nvmlDeviceGetNumaNodeId(gpu_t *gpu, unsigned *v) { return unsigned_of(gpu, "numa", v); }
int nvmlDeviceGetCurrentClocksEventReasons(gpu_t *gpu, unsigned long long *v) { return number_of(gpu, "throttle", v); }
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu_t *gpu, unsigned long long *v) { return number_of(gpu, "throttle", v); }

typedef struct { unsigned version, sensor; int value; } temperature_t;

int nvmlDeviceGetTemperatureV(gpu_t *gpu, temperature_t *reading)
{
    unsigned value;
    int code = unsigned_of(gpu, "temp", &value);
    if (code == OK)
        reading->value = (int)value;
    return code;
}

int nvmlDeviceGetClockInfo(gpu_t *gpu, unsigned kind, unsigned *v)
{
    static const char *const names[] = {"clock_graphics", "clock_sm", "clock_mem", "clock_video"};
    return kind < 4 ? unsigned_of(gpu, names[kind], v) : INVALID;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; } process_t;

/* `GPU.procs PID:BYTES,PID:BYTES`; asked twice: first for the number, then for the list. */
static int processes(gpu_t *gpu, const char *name, unsigned *count, process_t *list)
{
    char text[MOST_TEXT], *rest = NULL;
    unsigned found = 0, room = *count;
    int code = text_of(gpu, name, text, sizeof text);
    if (code == NOT_SUPPORTED) {
        *count = 0;
        return OK;
    }
    if (code != OK)
        return code;
    for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        process_t one = {0, 0, 0xFFFFFFFF, 0xFFFFFFFF};
        if (sscanf(part, "%u:%llu", &one.pid, &one.memory) == 2) {
            if (found < room && list)
                list[found] = one;
            found++;
        }
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *n, process_t *list) { return processes(gpu, "procs", n, list); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(gpu_t *gpu, unsigned *n, process_t *list) { return processes(gpu, "graphics_procs", n, list); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu_t *gpu, unsigned *n, process_t *list) { return processes(gpu, "mps_procs", n, list); }

typedef struct { unsigned pid; unsigned long long at; unsigned sm, memory, enc, dec; } process_sample_t;

/* Every process on the GPU is given an equal share of its utilisation. */
int nvmlDeviceGetProcessUtilization(gpu_t *gpu, process_sample_t *list, unsigned *count, unsigned long long since)
{
    process_t found[MOST_PROCESSES];
    unsigned number = MOST_PROCESSES, busy = 0, room = *count;
    int code = processes(gpu, "procs", &number, found);
    (void)since;
    if (code == OK)
        code = unsigned_of(gpu, "util_gpu", &busy);
    if (code != OK)
        return code;
    *count = number;
    if (number == 0)
        return NOT_FOUND;
    if (number > room || !list)
        return TOO_SMALL;
    for (unsigned i = 0; i < number; i++)
        list[i] = (process_sample_t){found[i].pid, (unsigned long long)time(NULL) * 1000000, busy / number, 0, 0, 0};
    return OK;
}

static int between(gpu_t *a, gpu_t *b, const char *what, unsigned *value)
{
    char name[32];
    unsigned low = a->index < b->index ? a->index : b->index;
    unsigned high = a->index < b->index ? b->index : a->index;
    snprintf(name, sizeof name, "%s.%u", what, high);
    return unsigned_of(&gpus[low], name, value);
}

/* `GPU.topo.OTHER LEVEL`, else `*.topo LEVEL`; the same for `p2p`. */
int nvmlDeviceGetTopologyCommonAncestor(gpu_t *a, gpu_t *b, unsigned *level)
{
    int code = between(a, b, "topo", level);
    return code == NOT_SUPPORTED ? unsigned_of(a, "topo", level) : code;
}

int nvmlDeviceGetP2PStatus(gpu_t *a, gpu_t *b, unsigned capability, unsigned *status)
{
    (void)capability;
    int code = between(a, b, "p2p", status);
    return code == NOT_SUPPORTED ? unsigned_of(a, "p2p", status) : code;
}

int nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned link, unsigned *active)
{
    char name[32];
    snprintf(name, sizeof name, "nvlink.%u", link);
    return unsigned_of(gpu, name, active);
}

int nvmlDeviceGetTotalEccErrors(gpu_t *gpu, unsigned kind, unsigned counter, unsigned long long *v)
{
    (void)counter;
    return number_of(gpu, kind ? "ecc_uncorrected" : "ecc_corrected", v);
}

int nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    char text[MOST_TEXT];
    int code = text_of(gpu, "remapped", text, sizeof text);
    if (code == OK && sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failed) != 4)
        code = NOT_SUPPORTED;
    return code;
}

int nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *current, unsigned *pending)
{
    int code = unsigned_of(gpu, "mig", current);
    if (code == OK)
        *pending = *current;
    return code;
}

int nvmlEventSetCreate(events_t **set)
{
    *set = calloc(1, sizeof **set);
    return *set ? OK : UNINITIALIZED;
}

int nvmlEventSetFree(events_t *set) { free(set); return OK; }

/* The last XID of a GPU: `GPU.xid SEQUENCE CODE`. Readable even when the GPU is lost. */
static int last_xid(unsigned index, unsigned long long *sequence, unsigned long long *code)
{
    char key[64];
    int got = 0;
    pthread_mutex_lock(&lock);
    if (refresh() == OK) {
        snprintf(key, sizeof key, "%u.xid", index);
        const char *value = find(key);
        got = value && sscanf(value, "%llu %llu", sequence, code) == 2;
    }
    pthread_mutex_unlock(&lock);
    return got;
}

int nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long kinds, events_t *set)
{
    unsigned long long sequence = 0, code;
    if (!(kinds & XID_EVENT))
        return NOT_SUPPORTED;
    if (last_xid(gpu->index, &sequence, &code))
        set->seen[gpu->index] = sequence;
    set->registered |= 1U << gpu->index;
    return OK;
}

typedef struct { gpu_t *device; unsigned long long kind, data; unsigned instance, compute_instance; } event_t;

int nvmlEventSetWait_v2(events_t *set, event_t *event, unsigned timeout_ms)
{
    struct timespec pause = {0, 10 * 1000 * 1000};
    for (unsigned waited = 0;; waited += 10) {
        for (unsigned i = 0; i < MOST_GPUS; i++) {
            unsigned long long sequence, code;
            if ((set->registered >> i & 1) && last_xid(i, &sequence, &code) && sequence > set->seen[i]) {
                set->seen[i] = sequence;
                *event = (event_t){&gpus[i], XID_EVENT, code, 0xFFFFFFFF, 0xFFFFFFFF};
                return OK;
            }
        }
        if (waited >= timeout_ms)
            return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}
