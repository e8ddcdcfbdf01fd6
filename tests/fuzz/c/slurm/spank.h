/* As much of Slurm's header as the plugin needs: it is built without Slurm for fuzzing. */

#ifndef FUZZ_SPANK_H
#define FUZZ_SPANK_H

#include <stdint.h>
#include <sys/types.h>

#define ESPANK_SUCCESS 0
#define ESPANK_ERROR 1
#define SPANK_PLUGIN(name, version) const char plugin_name[] = #name;

typedef struct spank_handle *spank_t;
typedef int spank_err_t;
typedef int (*spank_opt_cb_f)(int value, const char *text, int remote);
typedef enum { S_JOB_UID, S_JOB_ID, S_JOB_STEPID } spank_item_t;

enum spank_context { S_CTX_ERROR, S_CTX_LOCAL, S_CTX_REMOTE, S_CTX_ALLOCATOR };

struct spank_option {
	char *name;
	char *arginfo;
	char *usage;
	int has_arg;
	int val;
	spank_opt_cb_f cb;
};

enum spank_context spank_context(void);
spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...);
spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int room);
spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite);
spank_err_t spank_unsetenv(spank_t spank, const char *name);
spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value,
				     int overwrite);
spank_err_t spank_option_register(spank_t spank, struct spank_option *option);

#endif
