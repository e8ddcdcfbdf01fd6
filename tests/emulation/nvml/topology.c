/* How GPUs reach each other. */
#include "state.h"

#include <stdio.h>
#include <string.h>

/* `A.WHAT.B` with A < B, else `*.WHAT`. */
static int between(gpu_t *a, gpu_t *b, const char *what, unsigned *value)
{
    char key[32];
    gpu_t *low = a, *high = b;
    int code = gpu_check(a);
    if (code == OK)
        code = gpu_check(b);
    if (code != OK)
        return code;
    if (a->index > b->index) {
        low = b;
        high = a;
    }
    snprintf(key, sizeof key, "%s.%u", what, high->index);
    code = gpu_unsigned(low, key, value);
    return code == NOT_SUPPORTED ? gpu_unsigned(low, what, value) : code;
}

NVML_API int nvmlDeviceGetTopologyCommonAncestor(gpu_t *a, gpu_t *b, unsigned *level)
{
    int code = between(a, b, "topo", level);
    if (code == OK && a == b)
        *level = 0;
    return code;
}

/* 0 is "yes"; the state file has one answer for all kinds of access. */
NVML_API int nvmlDeviceGetP2PStatus(gpu_t *a, gpu_t *b, unsigned kind, unsigned *status)
{
    (void)kind;
    return between(a, b, "p2p", status);
}

enum { MOST_LINKS = 36, DEVICE_GPU = 0 };

/* `nvlink.LINK ACTIVE OTHER`: whether the link is up, and the index of the GPU at its other end. */
static int link_of(gpu_t *gpu, unsigned link, unsigned *active, unsigned *other)
{
    char key[32], text[32];
    if (link >= MOST_LINKS)
        return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "nvlink.%u", link);
    int code = gpu_text(gpu, key, text, sizeof text);
    if (code == OK && sscanf(text, "%u %u", active, other) != 2)
        code = UNKNOWN;
    return code;
}

NVML_API int nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned link, unsigned *active)
{
    unsigned other;
    return link_of(gpu, link, active, &other);
}

NVML_API int nvmlDeviceGetNvLinkRemoteDeviceType(gpu_t *gpu, unsigned link, unsigned *type)
{
    unsigned active, other;
    int code = link_of(gpu, link, &active, &other);
    if (code == OK)
        *type = DEVICE_GPU;
    return code;
}

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, void *pci);

NVML_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu_t *gpu, unsigned link, void *pci)
{
    unsigned active, other;
    gpu_t *remote;
    int code = link_of(gpu, link, &active, &other);
    if (code == OK)
        code = gpu_at(other, &remote);
    return code == OK ? nvmlDeviceGetPciInfo_v3(remote, pci) : code;
}
