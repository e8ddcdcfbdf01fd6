/*
 * spank_ones: the --elastic option of sbatch, and the environment of an elastic job.
 *
 * In sbatch, srun and salloc it adds --elastic[=SIZES], checks SIZES with the grammar and the words
 * of policies/sizes.py, and hands them on: as SLURM_ELASTIC to the job and as ELASTIC to slurmctld,
 * where job_submit.lua compares them with the job's own request and marks the job.
 *
 * In slurmstepd it asks the node's agent for the ONES_ variables of an elastic job and sets them for
 * the batch script and for the tasks of every step. Whatever goes wrong there, the job starts
 * without them, at most one second later: ones-run and the scripts know how to do without.
 *
 * A job without --elastic costs a lookup in its environment and nothing else.
 *
 * plugstack.conf:  optional spank_ones.so [socket=/run/ones/agent.sock]
 */

#define _GNU_SOURCE

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "stage_in.h"

SPANK_PLUGIN(ones, 1)

#define LONGEST_TEXT 256    /* as in policies/sizes.py */
#define MOST_GPUS 65536UL   /* as in policies/sizes.py */
#define DIGITS 9            /* as in policies/sizes.py: no size overflows on the way */
#define LONGEST_REPLY 8192  /* of the agent, in bytes */
#define PATIENCE_MS 1000    /* for connecting, asking and reading together */

static const char default_socket[] = "/run/ones/agent.sock";

/* What Slurm hands to every inner srun in place of the missing value of a bare --elastic. */
static const char no_value[] = "(null)";

/* What an elastic job finds in its environment and a job submitted from within it must not inherit:
 * its reports would go out in the other job's name, and, since Slurm hands options to inner programs
 * in the environment, it would be elastic without having asked. */
static const char *const job_variables[] = {
	"SLURM_SPANK__SLURM_SPANK_OPTION_ones_elastic",
	"SLURM_SPANK_ELASTIC",
	"SLURM_ELASTIC",
	"SLURM_SPANK__SLURM_SPANK_OPTION_ones_stage_in",
	"SLURM_SPANK_STAGE_IN",
	"SLURM_SPANK_STAGING",
	"ONES_STAGE_IN",
	"ONES_SIZES",
	"ONES_GPUS",
	"ONES_BATCH_SIZE",
	"ONES_CHECKPOINT_SIGNAL",
	"ONES_SOCKET",
	"ONES_JOB_DIR",
	NULL,
};

static bool given;                   /* --elastic was among the options */
static char sizes[LONGEST_TEXT + 1]; /* its value, empty for a bare --elastic */

/* Read digits at *at, at most DIGITS of them; false where there are none or too many. */
static bool read_size(const char **at, const char *end, unsigned long *value)
{
	const char *start = *at;

	for (*value = 0; *at < end && isdigit((unsigned char)**at); ++*at) {
		if (*at - start >= DIGITS)
			return false;
		*value = *value * 10 + (unsigned long)(**at - '0');
	}
	return *at > start;
}

/* Read `4`, `2-16` or `4-16:4`, the whole of it. */
static bool read_part(const char *at, const char *end, unsigned long *least, unsigned long *most,
		      unsigned long *step)
{
	if (!read_size(&at, end, least))
		return false;
	*most = *least;
	*step = 1;
	if (at < end && *at == '-') {
		++at;
		if (!read_size(&at, end, most))
			return false;
		if (at < end && *at == ':') {
			++at;
			if (!read_size(&at, end, step))
				return false;
		}
	}
	return at == end;
}

/* Check sizes; on false `fault` holds one line that names the part at fault and a way out. */
static bool check_sizes(const char *text, char *fault, size_t room)
{
	unsigned long least, most, step, counted = 0;
	const char *part = text;

	if (strlen(text) > LONGEST_TEXT) {
		snprintf(fault, room,
			 "sizes are longer than %d characters; use a range such as 2-16",
			 LONGEST_TEXT);
		return false;
	}
	for (;;) {
		const char *end = strchrnul(part, ',');
		int length = (int)(end - part);

		if (!read_part(part, end, &least, &most, &step)) {
			snprintf(fault, room, "sizes '%s': '%.*s' is not a size; use 2-16 or 1,2,4,8",
				 text, length, part);
			return false;
		}
		if (least < 1 || most < 1 || step < 1) {
			snprintf(fault, room, "sizes '%s': '%.*s' has a zero; sizes start at 1 GPU",
				 text, length, part);
			return false;
		}
		if (least > most) {
			snprintf(fault, room, "sizes '%s': '%.*s' runs backwards; use %lu-%lu",
				 text, length, part, most, least);
			return false;
		}
		if (most > MOST_GPUS) {
			snprintf(fault, room, "sizes '%s': '%.*s' is more than %lu GPUs", text,
				 length, part, MOST_GPUS);
			return false;
		}
		counted += (most - least) / step + 1;
		if (counted > MOST_GPUS) {
			snprintf(fault, room, "sizes '%s' repeat themselves; use a range such as 2-16",
				 text);
			return false;
		}
		if (*end == '\0')
			return true;
		part = end + 1;
	}
}

static int take_option(int value, const char *text, int remote)
{
	char fault[2 * LONGEST_TEXT + 128];

	(void)value;
	given = true;
	/* Bare, forwarded bare to an inner srun, or already checked where it was typed. */
	sizes[0] = '\0';
	if (text == NULL || remote || strcmp(text, no_value) == 0)
		return ESPANK_SUCCESS;
	if (!check_sizes(text, fault, sizeof(fault))) {
		slurm_error("--elastic: %s", fault);
		return ESPANK_ERROR;
	}
	snprintf(sizes, sizeof(sizes), "%s", text);
	return ESPANK_SUCCESS;
}

static struct spank_option elastic_option = {
	.name = "elastic",
	.arginfo = "[SIZES]",
	.usage = "let onesd change the job's number of GPUs while it runs, within SIZES such as "
		 "2-16, 4-16:4 or 1,2,4,8 (without SIZES: 1 to what the job asks for)",
	.has_arg = 2,
	.val = 0,
	.cb = take_option,
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait until `events` can happen on fd; false when the deadline comes first. */
static bool wait_for(int fd, short events, int64_t deadline)
{
	struct pollfd waiting = { .fd = fd, .events = events };
	int ready;

	do {
		int64_t left = deadline - now_ms();

		if (left <= 0)
			return false;
		ready = poll(&waiting, 1, (int)left);
	} while (ready < 0 && errno == EINTR);
	return ready > 0;
}

/* Send the question on a fresh connection; the connection, or -1. A unix socket that cannot take
 * another connection refuses a non-blocking one at once, so connecting needs no wait. */
static int ask(const char *path, const char *question, int64_t deadline)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t sent = 0, length = strlen(question);
	int fd;

	if (strlen(path) >= sizeof(address.sun_path))
		return -1;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		goto fail;
	while (sent < length) {
		ssize_t count = send(fd, question + sent, length - sent, MSG_NOSIGNAL);

		if (count > 0)
			sent += (size_t)count;
		else if (errno != EAGAIN && errno != EINTR)
			goto fail;
		else if (!wait_for(fd, POLLOUT, deadline))
			goto fail;
	}
	return fd;
fail:
	close(fd);
	return -1;
}

/* Read to the end into `reply` as a string; false when it is late, too long or broken off. */
static bool read_reply(int fd, char *reply, size_t room, int64_t deadline)
{
	size_t length = 0;

	while (wait_for(fd, POLLIN, deadline)) {
		ssize_t count = recv(fd, reply + length, room - 1 - length, 0);

		if (count == 0) {
			reply[length] = '\0';
			return strlen(reply) == length;
		}
		if (count < 0 && errno != EAGAIN && errno != EINTR)
			return false;
		if (count > 0)
			length += (size_t)count;
		if (length == room - 1)
			return false;
	}
	return false;
}

/* Whether a line is NAME=VALUE with a name of ours and a printable value. */
static bool is_ours(const char *line, const char *equals)
{
	if (equals == NULL || strncmp(line, "ONES_", 5) != 0 || equals == line + 5)
		return false;
	for (const char *at = line; at < equals; at++)
		if (!isupper((unsigned char)*at) && !isdigit((unsigned char)*at) && *at != '_')
			return false;
	for (const char *at = equals + 1; *at != '\0'; at++)
		if (iscntrl((unsigned char)*at))
			return false;
	return true;
}

/* Ask the agent for this job's variables and set those that it names. */
static void fetch_environment(spank_t spank, const char *path)
{
	char question[64], reply[LONGEST_REPLY + 1], *rest, *line;
	int64_t deadline = now_ms() + PATIENCE_MS;
	uint32_t job;
	uid_t user;
	bool complete;
	int fd;

	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS)
		return;
	snprintf(question, sizeof(question), "env %u %u\n", job, (unsigned int)user);
	fd = ask(path, question, deadline);
	complete = fd >= 0 && read_reply(fd, reply, sizeof(reply), deadline);
	if (fd >= 0)
		close(fd);
	if (!complete) {
		slurm_info("ones: no answer from ones-agent at %s; job %u runs without ONES_ variables",
			   path, job);
		return;
	}
	for (line = strtok_r(reply, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *equals = strchr(line, '=');

		if (!is_ours(line, equals))
			continue;
		*equals = '\0';
		spank_setenv(spank, line, equals + 1, 1);
	}
}

static int register_options(spank_t spank)
{
	if (spank_option_register(spank, &elastic_option) != ESPANK_SUCCESS)
		return ESPANK_ERROR;
	return spank_option_register(spank, &stage_in_option);
}

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
		/* Here and not later: Slurm reads options from the environment next. */
		for (int i = 0; job_variables[i] != NULL; i++)
			unsetenv(job_variables[i]);
		return register_options(spank);
	case S_CTX_LOCAL:
	case S_CTX_REMOTE:
		return register_options(spank);
	default:
		return ESPANK_SUCCESS;
	}
}

static bool is_batch_script(spank_t spank)
{
	uint32_t step;

	return spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
	       step == SLURM_BATCH_SCRIPT;
}

/* With --gpus-per-task sbatch has GPUs bound to tasks, too. In a job that has shards now, srun would
 * bind its one task to no GPU (Slurm 26.05). */
static void forget_binding_of_shards(spank_t spank)
{
	char ignored[LONGEST_TEXT + 1];

	if (is_batch_script(spank) &&
	    spank_getenv(spank, "SLURM_SHARDS_ON_NODE", ignored, sizeof(ignored)) == ESPANK_SUCCESS)
		spank_unsetenv(spank, "SLURM_TRES_BIND");
}

/* sbatch writes the submitted request into the job's environment, and Slurm leaves it there when the
 * job starts again in another shape. srun would then ask for GPUs that the job no longer has, or for
 * fewer than it has; without these it takes the job's present allocation. */
static void forget_submitted_gpus(spank_t spank)
{
	static const char *const stale[] = { "SLURM_GPUS", "SLURM_GPUS_PER_NODE",
					     "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", NULL };

	if (!is_batch_script(spank))
		return;
	for (int i = 0; stale[i] != NULL; i++)
		spank_unsetenv(spank, stale[i]);
}

/* In sbatch, salloc and srun: pass the sizes on. */
static int announce(spank_t spank, int argc, char *argv[])
{
	if (getenv("ONES_STAGING") != NULL)
		return spank_job_control_setenv(spank, "STAGING", "1", 1);
	if (stage_in_given() && stage_in_submit(spank, given, argc, argv) != ESPANK_SUCCESS)
		return ESPANK_ERROR;
	if (!given)
		return ESPANK_SUCCESS;
	if (setenv("SLURM_ELASTIC", sizes, 1) < 0)
		return ESPANK_ERROR;
	return spank_job_control_setenv(spank, "ELASTIC", sizes, 1);
}

/* Whether the job of this slurmstepd was submitted with --elastic. */
static bool is_elastic(spank_t spank)
{
	char ignored[LONGEST_TEXT + 1];

	return given ||
	       spank_getenv(spank, "SLURM_ELASTIC", ignored, sizeof(ignored)) == ESPANK_SUCCESS;
}

static const char *socket_path(int argc, char *argv[])
{
	for (int i = 0; i < argc; i++)
		if (strncmp(argv[i], "socket=", 7) == 0)
			return argv[i] + 7;
	return default_socket;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
		return announce(spank, argc, argv);
	case S_CTX_LOCAL:
		/* Within a job srun starts a step of a job that was asked about long ago. */
		return getenv("SLURM_JOB_ID") ? ESPANK_SUCCESS : announce(spank, argc, argv);
	case S_CTX_REMOTE:
		if (is_elastic(spank)) {
			forget_submitted_gpus(spank);
			stage_in_check(spank);
			fetch_environment(spank, socket_path(argc, argv));
		}
		return ESPANK_SUCCESS;
	default:
		return ESPANK_SUCCESS;
	}
}

int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	stage_in_tell(spank);
	if (is_elastic(spank))
		forget_binding_of_shards(spank);
	return ESPANK_SUCCESS;
}
