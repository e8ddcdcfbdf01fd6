/* Who computes on a GPU: `procs PID:BYTES,PID:BYTES`; bytes may be `-`, as where the driver hides them. */
#define _GNU_SOURCE
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process_t;
enum { MOST_PROCESSES = 256 };
static const unsigned NO_INSTANCE = 0xFFFFFFFF;
static const unsigned long long NOT_AVAILABLE = ~0ULL;

/* Fill as much of the list as there is room for; *count becomes how many there are. */
static int processes(gpu_t *gpu, const char *key, unsigned *count, process_t *list)
{
    char text[MOST_TEXT], *rest = NULL;
    unsigned found = 0, room = list ? *count : 0;
    int code = gpu_text(gpu, key, text, sizeof text);
    if (code == NOT_SUPPORTED) {
        *count = 0;
        return OK;
    }
    if (code != OK)
        return code;
    for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        char *colon, *end;
        process_t one = {(unsigned)strtoul(part, &colon, 10), NOT_AVAILABLE, NO_INSTANCE, NO_INSTANCE};
        if (*colon != ':')
            return UNKNOWN;
        if (strcmp(colon, ":-") != 0) {
            one.memory = strtoull(colon + 1, &end, 10);
            if (*end)
                return UNKNOWN;
        }
        if (found < room)
            list[found] = one;
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

NVML_API int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *count, process_t *list)
{
    return processes(gpu, "procs", count, list);
}

NVML_API int nvmlDeviceGetGraphicsRunningProcesses_v3(gpu_t *gpu, unsigned *count, process_t *list)
{
    return processes(gpu, "graphics_procs", count, list);
}

NVML_API int nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu_t *gpu, unsigned *count, process_t *list)
{
    return processes(gpu, "mps_procs", count, list);
}

typedef struct {
    unsigned pid;
    unsigned long long microseconds;
    unsigned sm, memory, encoder, decoder;
} sample_t;

/* Each process's percentage is `sm.PID`, else an equal share of the GPU's. */
NVML_API int nvmlDeviceGetProcessUtilization(gpu_t *gpu, sample_t *list, unsigned *count,
                                             unsigned long long since)
{
    process_t found[MOST_PROCESSES];
    struct timespec now;
    unsigned number = MOST_PROCESSES, busy = 0, room = *count;
    int code = processes(gpu, "procs", &number, found);
    if (code == OK)
        code = gpu_unsigned(gpu, "util_gpu", &busy);
    if (code != OK)
        return code;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long taken = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    if (number == 0 || taken <= since)
        return NOT_FOUND;
    *count = number;
    if (!list || number > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < number; i++) {
        char key[32];
        unsigned share = busy / number;
        snprintf(key, sizeof key, "sm.%u", found[i].pid);
        code = gpu_unsigned(gpu, key, &share);
        if (code != OK && code != NOT_SUPPORTED)
            return code;
        list[i] = (sample_t){found[i].pid, taken, share, 0, 0, 0};
    }
    return OK;
}
