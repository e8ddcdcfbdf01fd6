/* The state file: `KEY VALUE` lines, read again whenever it was replaced.
 *
 * Keys are `GPU.NAME`, `*.NAME` (a default for all GPUs) and, for the driver, plain `NAME`. Writers
 * replace the file by rename. No file: no driver. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gpu_t gpus[MOST_GPUS];
static unsigned users; /* nvmlInit less nvmlShutdown */
static char *contents; /* of the state file, as read last */
static struct stat read_as;

static const char *state_path(void)
{
    const char *path = getenv("ONES_EMULATION_STATE");
    return path && *path ? path : "/run/emulation/gpu.state";
}

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* With the lock held: have the file's present contents. */
static int refresh(void)
{
    struct stat now;
    if (stat(state_path(), &now) != 0)
        return DRIVER_NOT_LOADED;
    if (contents && same_file(&now, &read_as))
        return OK;
    FILE *file = fopen(state_path(), "re");
    if (!file)
        return DRIVER_NOT_LOADED;
    /* Of the file that is open now: the path may name a newer one already. */
    char *text = fstat(fileno(file), &now) == 0 ? malloc((size_t)now.st_size + 1) : NULL;
    if (text)
        text[fread(text, 1, (size_t)now.st_size, file)] = '\0';
    fclose(file);
    if (!text)
        return MEMORY;
    free(contents);
    contents = text;
    read_as = now;
    return OK;
}

/* With the lock held: copy the value of a key. */
static int look_up(const char *key, char *value, size_t size)
{
    size_t length = strlen(key);
    for (const char *line = contents; line && *line;) {
        const char *end = strchrnul(line, '\n');
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            const char *begin = line + length + 1;
            if ((size_t)(end - begin) >= size)
                return INSUFFICIENT_SIZE;
            memcpy(value, begin, (size_t)(end - begin));
            value[end - begin] = '\0';
            return OK;
        }
        line = *end ? end + 1 : end;
    }
    return NOT_SUPPORTED;
}

static int ready(void)
{
    return users ? refresh() : UNINITIALIZED;
}

NVML_API int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MOST_GPUS; i++)
        gpus[i].index = i;
    int code = refresh();
    if (code == OK)
        users++;
    pthread_mutex_unlock(&lock);
    return code;
}

NVML_API int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API int nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    int code = users ? OK : UNINITIALIZED;
    if (users)
        users--;
    pthread_mutex_unlock(&lock);
    return code;
}

int system_text(const char *key, const char *fallback, char *value, size_t size)
{
    pthread_mutex_lock(&lock);
    int code = ready();
    if (code == OK)
        code = look_up(key, value, size);
    pthread_mutex_unlock(&lock);
    if (code != NOT_SUPPORTED)
        return code;
    return (size_t)snprintf(value, size, "%s", fallback) < size ? OK : INSUFFICIENT_SIZE;
}

int gpu_count(unsigned *count)
{
    char text[16];
    int code = system_text("count", "0", text, sizeof text);
    unsigned long found = code == OK ? strtoul(text, NULL, 10) : 0;
    *count = found > MOST_GPUS ? MOST_GPUS : (unsigned)found;
    return code;
}

int gpu_at(unsigned index, gpu_t **gpu)
{
    unsigned count;
    int code = gpu_count(&count);
    if (code == OK && index >= count)
        code = INVALID_ARGUMENT;
    if (code == OK)
        *gpu = &gpus[index];
    return code;
}

/* With the lock held: whether the GPU can be asked anything. */
static int answers(const gpu_t *gpu)
{
    char key[64], lost[16];
    if (gpu < gpus || gpu >= gpus + MOST_GPUS)
        return INVALID_ARGUMENT;
    int code = ready();
    if (code != OK)
        return code;
    snprintf(key, sizeof key, "%u.lost", gpu->index);
    return look_up(key, lost, sizeof lost) == OK && strcmp(lost, "0") != 0 ? GPU_IS_LOST : OK;
}

int gpu_check(const gpu_t *gpu)
{
    pthread_mutex_lock(&lock);
    int code = answers(gpu);
    pthread_mutex_unlock(&lock);
    return code;
}

int gpu_text(const gpu_t *gpu, const char *name, char *value, size_t size)
{
    char key[64];
    pthread_mutex_lock(&lock);
    int code = answers(gpu);
    if (code == OK) {
        snprintf(key, sizeof key, "%u.%s", gpu->index, name);
        code = look_up(key, value, size);
    }
    if (code == NOT_SUPPORTED) {
        snprintf(key, sizeof key, "*.%s", name);
        code = look_up(key, value, size);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int gpu_number(const gpu_t *gpu, const char *name, unsigned long long *value)
{
    char text[64], *end;
    int code = gpu_text(gpu, name, text, sizeof text);
    if (code != OK)
        return code;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno || end == text || *end ? UNKNOWN : OK;
}

int gpu_unsigned(const gpu_t *gpu, const char *name, unsigned *value)
{
    unsigned long long wide;
    int code = gpu_number(gpu, name, &wide);
    if (code == OK)
        *value = (unsigned)wide;
    return code;
}

int gpu_last_xid(const gpu_t *gpu, unsigned long long *sequence, unsigned long long *code)
{
    char key[64], text[64];
    *sequence = *code = 0;
    pthread_mutex_lock(&lock);
    int result = ready();
    if (result == OK) {
        snprintf(key, sizeof key, "%u.xid", gpu->index);
        if (look_up(key, text, sizeof text) == OK && sscanf(text, "%llu %llu", sequence, code) != 2)
            result = UNKNOWN;
    }
    pthread_mutex_unlock(&lock);
    return result;
}
