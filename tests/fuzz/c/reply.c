/* What an agent, or who says that he is one, answers to the question for a job's variables. */

#define _GNU_SOURCE

#include <sys/socket.h>
#include <unistd.h>

/* The answer is there before the question: a thread at the other end would take most of the time. */
static int ours, theirs;

static int joined(int domain, int type, int protocol)
{
	(void)domain;
	(void)type;
	(void)protocol;
	return ours;
}

static int come_to(int fd, const struct sockaddr *address, socklen_t size)
{
	(void)address;
	(void)size;
	return fd == ours ? 0 : -1;
}

#define socket joined
#define connect come_to
#include "../../../slurm_ext/spank/spank_ones.c"
#undef socket
#undef connect

#include <fcntl.h>

#include "stand_in.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int ends[2];

	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	ours = ends[0];
	theirs = ends[1];
	must(fcntl(ours, F_SETFL, O_NONBLOCK) == 0);
	must(send(theirs, data, size, MSG_NOSIGNAL) == (ssize_t)size);
	must(shutdown(theirs, SHUT_WR) == 0);
	context_now = S_CTX_REMOTE;
	set_variables = 0;
	fetch_environment(NULL, "/run/ones/agent.sock");
	must(set_variables <= LONGEST_REPLY / 7 + 1);
	close(theirs);
	return 0;
}
