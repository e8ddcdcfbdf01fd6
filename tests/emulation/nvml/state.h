/* What the parts of the stand-in share: NVML's return codes, and the state file behind all answers. */
#ifndef STATE_H
#define STATE_H

#include <stddef.h>

#define NVML_API __attribute__((visibility("default")))

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    MEMORY = 20,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};
enum { MOST_GPUS = 64, MOST_TEXT = 4096 };

/* What an nvmlDevice_t points to. */
typedef struct gpu {
    unsigned index;
} gpu_t;

/* Each returns an NVML code. A handle that is none of ours is INVALID_ARGUMENT, a key that is
 * neither the GPU's own nor everybody's (`*.KEY`) NOT_SUPPORTED, a lost GPU GPU_IS_LOST. */
int system_text(const char *key, const char *fallback, char *value, size_t size);
int gpu_at(unsigned index, gpu_t **gpu);
int gpu_count(unsigned *count);
int gpu_check(const gpu_t *gpu);
int gpu_text(const gpu_t *gpu, const char *key, char *value, size_t size);
int gpu_number(const gpu_t *gpu, const char *key, unsigned long long *value);
int gpu_unsigned(const gpu_t *gpu, const char *key, unsigned *value);

/* The sequence number and the code of a GPU's last XID; told also by a lost GPU, 0 0 if none. */
int gpu_last_xid(const gpu_t *gpu, unsigned long long *sequence, unsigned long long *code);

#endif
