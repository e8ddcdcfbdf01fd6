/* The driver, and what one GPU says of itself. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

NVML_API const char *nvmlErrorString(int code)
{
    (void)code;
    return "an error of the emulated NVML";
}

NVML_API int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    return system_text("driver", "535.emulated", version, size);
}

NVML_API int nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    return system_text("nvml", "12.535.emulated", version, size);
}

NVML_API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    char text[16];
    int code = system_text("cuda", "12020", text, sizeof text);
    if (code == OK)
        *version = atoi(text);
    return code;
}

NVML_API int nvmlDeviceGetCount_v2(unsigned *count)
{
    return gpu_count(count);
}

NVML_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu)
{
    int code = gpu_at(index, gpu);
    return code == OK ? gpu_check(*gpu) : code;
}

static int find(const char *key, const char *wanted, gpu_t **gpu)
{
    unsigned count;
    char text[MOST_TEXT];
    int code = gpu_count(&count);
    if (code != OK)
        return code;
    for (unsigned i = 0; i < count; i++)
        if (gpu_at(i, gpu) == OK && gpu_text(*gpu, key, text, sizeof text) == OK &&
            strcasecmp(text, wanted) == 0)
            return OK;
    return NOT_FOUND;
}

NVML_API int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu)
{
    return find("uuid", uuid, gpu);
}

NVML_API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, gpu_t **gpu)
{
    return find("pci", id, gpu);
}

NVML_API int nvmlDeviceGetIndex(gpu_t *gpu, unsigned *index)
{
    int code = gpu_check(gpu);
    if (code == OK)
        *index = gpu->index;
    return code;
}

NVML_API int nvmlDeviceGetName(gpu_t *gpu, char *name, unsigned size)
{
    return gpu_text(gpu, "name", name, size);
}

NVML_API int nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned size)
{
    return gpu_text(gpu, "uuid", uuid, size);
}

NVML_API int nvmlDeviceGetMinorNumber(gpu_t *gpu, unsigned *minor)
{
    return gpu_unsigned(gpu, "minor", minor);
}

NVML_API int nvmlDeviceGetNumaNodeId(gpu_t *gpu, unsigned *node)
{
    return gpu_unsigned(gpu, "numa", node);
}

/* `cpus HEX`: a mask of the first 64 CPUs. */
NVML_API int nvmlDeviceGetCpuAffinity(gpu_t *gpu, unsigned words, unsigned long *mask)
{
    char text[32];
    int code = gpu_text(gpu, "cpus", text, sizeof text);
    if (code != OK)
        return code;
    if (words == 0)
        return INSUFFICIENT_SIZE;
    memset(mask, 0, words * sizeof *mask);
    mask[0] = strtoul(text, NULL, 16);
    return OK;
}

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_t;

NVML_API int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci)
{
    char text[32];
    int code = gpu_text(gpu, "pci", text, sizeof text);
    if (code != OK)
        return code;
    memset(pci, 0, sizeof *pci);
    if (sscanf(text, "%8x:%2x:%2x", &pci->domain, &pci->bus, &pci->device) != 3)
        return UNKNOWN;
    memcpy(pci->bus_id, text, sizeof text);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04x:%02x:%02x.0", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0xff);
    return OK;
}

typedef struct {
    unsigned long long total, free, used;
} memory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;
enum { MEMORY_V2 = 0x02000028 };

NVML_API int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory)
{
    int code = gpu_number(gpu, "mem_total", &memory->total);
    if (code == OK)
        code = gpu_number(gpu, "mem_used", &memory->used);
    if (code == OK)
        memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
    return code;
}

NVML_API int nvmlDeviceGetMemoryInfo_v2(gpu_t *gpu, memory_v2_t *memory)
{
    memory_t first;
    if (memory->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    int code = nvmlDeviceGetMemoryInfo(gpu, &first);
    if (code != OK)
        return code;
    memory->total = first.total;
    memory->free = first.free;
    memory->used = first.used;
    code = gpu_number(gpu, "mem_reserved", &memory->reserved);
    if (code == NOT_SUPPORTED) {
        memory->reserved = 0;
        code = OK;
    }
    return code;
}

typedef struct {
    unsigned gpu, memory;
} utilization_t;

NVML_API int nvmlDeviceGetUtilizationRates(gpu_t *gpu, utilization_t *rates)
{
    int code = gpu_unsigned(gpu, "util_gpu", &rates->gpu);
    return code == OK ? gpu_unsigned(gpu, "util_mem", &rates->memory) : code;
}

NVML_API int nvmlDeviceGetPowerUsage(gpu_t *gpu, unsigned *milliwatts)
{
    return gpu_unsigned(gpu, "power", milliwatts);
}

NVML_API int nvmlDeviceGetEnforcedPowerLimit(gpu_t *gpu, unsigned *milliwatts)
{
    return gpu_unsigned(gpu, "power_limit", milliwatts);
}

NVML_API int nvmlDeviceGetTotalEnergyConsumption(gpu_t *gpu, unsigned long long *millijoules)
{
    return gpu_number(gpu, "energy", millijoules);
}

NVML_API int nvmlDeviceGetTemperature(gpu_t *gpu, unsigned sensor, unsigned *celsius)
{
    return sensor == 0 ? gpu_unsigned(gpu, "temp", celsius) : INVALID_ARGUMENT;
}

typedef struct {
    unsigned version, sensor;
    int celsius;
} temperature_t;
enum { TEMPERATURE_V1 = 0x0100000C };

NVML_API int nvmlDeviceGetTemperatureV(gpu_t *gpu, temperature_t *reading)
{
    unsigned celsius;
    if (reading->version != TEMPERATURE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    int code = nvmlDeviceGetTemperature(gpu, reading->sensor, &celsius);
    if (code == OK)
        reading->celsius = (int)celsius;
    return code;
}

NVML_API int nvmlDeviceGetClockInfo(gpu_t *gpu, unsigned kind, unsigned *megahertz)
{
    static const char *const keys[] = {"clock_graphics", "clock_sm", "clock_mem", "clock_video"};
    return kind < 4 ? gpu_unsigned(gpu, keys[kind], megahertz) : INVALID_ARGUMENT;
}

NVML_API int nvmlDeviceGetCurrentClocksEventReasons(gpu_t *gpu, unsigned long long *reasons)
{
    return gpu_number(gpu, "throttle", reasons);
}

NVML_API int nvmlDeviceGetCurrentClocksThrottleReasons(gpu_t *gpu, unsigned long long *reasons)
{
    return gpu_number(gpu, "throttle", reasons);
}

NVML_API int nvmlDeviceGetTotalEccErrors(gpu_t *gpu, unsigned kind, unsigned since, unsigned long long *count)
{
    static const char *const keys[] = {"ecc_corrected", "ecc_uncorrected"};
    return kind < 2 && since < 2 ? gpu_number(gpu, keys[kind], count) : INVALID_ARGUMENT;
}

/* `remapped CORRECTABLE UNCORRECTABLE PENDING FAILED` */
NVML_API int nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned *correctable, unsigned *uncorrectable,
                                       unsigned *pending, unsigned *failed)
{
    char text[64];
    int code = gpu_text(gpu, "remapped", text, sizeof text);
    if (code == OK && sscanf(text, "%u %u %u %u", correctable, uncorrectable, pending, failed) != 4)
        code = UNKNOWN;
    return code;
}

NVML_API int nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *current, unsigned *pending)
{
    int code = gpu_unsigned(gpu, "mig", current);
    *pending = *current;
    return code;
}
