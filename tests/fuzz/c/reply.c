/* What an agent, or who says that he is one, answers to the question for a job's variables. */

#include "../../../slurm_ext/spank/spank_ones.c"
#include "stand_in.h"

#include <pthread.h>

static int answering;
static const uint8_t *answer;
static size_t answer_size;

static void *answer_once(void *unused)
{
	char question[64];
	int fd = accept(answering, NULL, NULL);

	if (fd >= 0) {
		while (read(fd, question, sizeof(question)) > 0 &&
		       memchr(question, '\n', sizeof(question)) == NULL)
			;
		for (size_t sent = 0; sent < answer_size;) {
			ssize_t count = send(fd, answer + sent, answer_size - sent, MSG_NOSIGNAL);

			if (count <= 0)
				break;
			sent += (size_t)count;
		}
		close(fd);
	}
	return unused;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	static char path[64];
	pthread_t thread;

	context_now = S_CTX_REMOTE;
	if (path[0] == '\0') {
		snprintf(path, sizeof(path), "/tmp/ones-fuzz-%d.sock", (int)getpid());
		unlink(path);
		snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
		answering = socket(AF_UNIX, SOCK_STREAM, 0);
		must(bind(answering, (struct sockaddr *)&address, sizeof(address)) == 0);
		must(listen(answering, 8) == 0);
	}
	answer = data;
	answer_size = size;
	set_variables = 0;
	must(pthread_create(&thread, NULL, answer_once, NULL) == 0);
	fetch_environment(NULL, path);
	must(pthread_join(thread, NULL) == 0);
	must(set_variables <= LONGEST_REPLY / 7 + 1);
	return 0;
}
