/* What slurmctld has in the environment of the hook, and the path of the socket. */

#define _GNU_SOURCE

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

/* libFuzzer has an alarm of its own, which the hook must not take away from it. */
static unsigned int no_alarm(unsigned int seconds)
{
	return seconds;
}

static void (*no_signal(int number, void (*handler)(int)))(int)
{
	(void)number;
	return handler;
}

/* It leaves its socket to its end, which does not come here. */
static int opened = -1;

static int socket_to_close(int domain, int type, int protocol)
{
	opened = socket(domain, type, protocol);
	return opened;
}

#define alarm no_alarm
#define socket socket_to_close
#define signal no_signal
#define main hook_main
#include "../../../slurm_ext/hooks/ones_event.c"
#undef main

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *parts[3] = { NULL }, *rest;
	char *arguments[] = { "ones-event", NULL, NULL };

	if (text == NULL)
		abort();
	memcpy(text, data, size);
	text[size] = '\0';
	rest = text;
	for (int i = 0; i < 3 && rest != NULL; i++)
		parts[i] = strsep(&rest, "\x1e");
	unsetenv("SLURM_SCRIPT_CONTEXT");
	unsetenv("SLURM_JOB_ID");
	if (parts[0] != NULL)
		setenv("SLURM_SCRIPT_CONTEXT", parts[0], 1);
	if (parts[1] != NULL)
		setenv("SLURM_JOB_ID", parts[1], 1);
	arguments[1] = parts[2] != NULL ? parts[2] : "/nonexistent";
	if (hook_main(2, arguments) != 0)
		abort();
	if (opened >= 0)
		close(opened);
	opened = -1;
	free(text);
	return 0;
}
