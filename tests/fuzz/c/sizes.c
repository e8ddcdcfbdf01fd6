/* The value of --elastic. */

#include "../../../slurm_ext/spank/spank_ones.c"
#include "stand_in.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = as_string(data, size), fault[64];

	/* Little room for what is said of it must do as well. */
	check_sizes(text, fault, sizeof(fault));
	sizes[0] = '\0';
	if (take_option(0, text, 0) == ESPANK_SUCCESS)
		must(strlen(sizes) <= LONGEST_TEXT);
	take_option(0, text, 1);
	must(sizes[0] == '\0');
	free(text);
	return 0;
}
