/* What a job that stages data in wrote down of its failure, in a folder that users write to. */

#include "../../../slurm_ext/spank/stage_in.c"
#include "stand_in.h"

static char folder[64], file[96];

static void clean(void)
{
	unlink(file);
	rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd;

	if (folder[0] == '\0') {
		snprintf(folder, sizeof(folder), "%s/ones-fuzz-%d",
			 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (int)getpid());
		must(mkdir(folder, 0700) == 0 || errno == EEXIST);
		atexit(clean);
		snprintf(file, sizeof(file), "%s/.fault", folder);
	}
	fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	must(fd >= 0);
	must(write(fd, data, size) == (ssize_t)size);
	close(fd);
	read_fault(folder, getuid());
	for (const char *at = fault; *at != '\0'; at++)
		must((unsigned char)*at >= 32 && *at != 127);
	must(strlen(fault) <= LONGEST_FAULT);
	return 0;
}
