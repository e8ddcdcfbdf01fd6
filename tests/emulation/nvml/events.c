/* XID events: `GPU.xid SEQUENCE CODE`, an event for whoever registered before the sequence rose. */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>
#include <time.h>

enum { XID_CRITICAL_ERROR = 8, POLL_MS = 10 };

typedef struct {
    unsigned long long seen[MOST_GPUS]; /* sequence number of the last XID that was told */
    gpu_t *registered[MOST_GPUS];
} events_t;

typedef struct {
    gpu_t *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event_t;

NVML_API int nvmlEventSetCreate(events_t **set)
{
    unsigned count;
    int code = gpu_count(&count); /* which also asks whether NVML was started */
    if (code != OK)
        return code;
    *set = calloc(1, sizeof **set);
    return *set ? OK : MEMORY;
}

NVML_API int nvmlEventSetFree(events_t *set)
{
    free(set);
    return OK;
}

NVML_API int nvmlDeviceGetSupportedEventTypes(gpu_t *gpu, unsigned long long *types)
{
    int code = gpu_check(gpu);
    if (code == OK)
        *types = XID_CRITICAL_ERROR;
    return code;
}

NVML_API int nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long types, events_t *set)
{
    unsigned long long xid;
    int code = gpu_check(gpu);
    if (code != OK)
        return code;
    if (!(types & XID_CRITICAL_ERROR))
        return NOT_SUPPORTED;
    code = gpu_last_xid(gpu, &set->seen[gpu->index], &xid);
    if (code == OK)
        set->registered[gpu->index] = gpu;
    return code;
}

static int next_event(events_t *set, event_t *event)
{
    for (unsigned i = 0; i < MOST_GPUS; i++) {
        unsigned long long sequence, xid;
        if (!set->registered[i])
            continue;
        int code = gpu_last_xid(set->registered[i], &sequence, &xid);
        if (code != OK)
            return code;
        if (sequence > set->seen[i]) {
            set->seen[i] = sequence;
            *event = (event_t){set->registered[i], XID_CRITICAL_ERROR, xid, ~0U, ~0U};
            return OK;
        }
    }
    return TIMEOUT;
}

NVML_API int nvmlEventSetWait_v2(events_t *set, event_t *event, unsigned timeout_ms)
{
    const struct timespec pause = {0, POLL_MS * 1000000L};
    for (unsigned waited = 0;; waited += POLL_MS) {
        int code = next_event(set, event);
        if (code != TIMEOUT || waited >= timeout_ms)
            return code;
        nanosleep(&pause, NULL);
    }
}
