/* The value of --stage-in, and behind a record separator what a job has in ONES_STAGE_IN. */

#include "../../../slurm_ext/spank/stage_in.c"
#include "stand_in.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = as_string(data, size), *separator = strchr(text, 0x1e);

	if (separator != NULL)
		*separator = '\0';
	context_now = S_CTX_ALLOCATOR;
	if (stage_in_option.cb(0, text, 0) == ESPANK_SUCCESS)
		must(is_name(name) && source[0] == '/');
	environment_value = separator != NULL ? separator + 1 : NULL;
	unset_variables = 0;
	stage_in_check(NULL);
	must(unset_variables <= 1);
	must(strlen(fault) < sizeof(fault));
	environment_value = NULL;
	free(text);
	return 0;
}
