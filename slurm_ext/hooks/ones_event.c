/*
 * ones-event: tells onesd that a job has started or ended, as slurmctld's PrologSlurmctld and
 * EpilogSlurmctld.
 *
 * One datagram to onesd's socket, and exit status 0, whatever happens: a daemon that is down, late or
 * hung costs nothing here, since its next look at Slurm finds the same. slurmctld holds a job back
 * until its hook has ended, and requeues one whose prolog fails.
 *
 * usage: ones-event [SOCKET]
 */

#define _GNU_SOURCE

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char default_socket[] = "/run/ones/events.sock"; /* as in daemon/config.py */

static void give_up(int number)
{
	(void)number;
	_exit(0);
}

int main(int argc, char *argv[])
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const char *path = argc > 1 ? argv[1] : default_socket;
	const char *context = getenv("SLURM_SCRIPT_CONTEXT"), *job = getenv("SLURM_JOB_ID");
	char event[64];
	int fd;

	/* Nothing below waits; this is for a file system that does. */
	signal(SIGALRM, give_up);
	alarm(1);
	if (strlen(path) >= sizeof(address.sun_path))
		return 0;
	strcpy(address.sun_path, path);
	snprintf(event, sizeof(event), "%.32s %.16s", context ? context : "hook", job ? job : "0");
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		(void)sendto(fd, event, strlen(event), MSG_DONTWAIT | MSG_NOSIGNAL,
			     (struct sockaddr *)&address, sizeof(address));
	return 0;
}
