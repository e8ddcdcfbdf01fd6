/*
 * --stage-in=SOURCE[:NAME]: the data of a job are on the disks of its nodes before its GPUs are.
 *
 * In sbatch, SOURCE is checked and a held job of the same user is submitted that copies it, with
 * CPUs only (slurm_ext/stage_in.py). onesd lets it run on the nodes that the main job will start on.
 * The main job finds FOLDER/STAGEJOB/NAME in ONES_STAGE_IN, on nodes where that is complete and its
 * user's own; elsewhere the variable is missing, and the job's standard error says why.
 *
 * plugstack.conf:  optional spank_ones.so [stage_folder=/var/spool/ones-stage]
 *                                         [stage_program=/opt/ones/bin/ones-stage-in]
 *                                         [stage_partition=NAME]
 *
 * The stage-in job is submitted to the default partition or to that one; onesd moves it to where
 * the main job starts. Where that is refused it is tried as SBATCH_PARTITION and the like say.
 */

#define _GNU_SOURCE

#include "stage_in.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>

#define LONGEST_NAME 128
#define LONGEST_FAULT 200 /* as in slurm_ext/stage_in.py */
#define DIGITS 10
#ifndef STAGE_PROGRAM /* packagers have another: see the Makefile */
#define STAGE_PROGRAM "/opt/ones/bin/ones-stage-in"
#endif

static const char default_folder[] = "/var/spool/ones-stage"; /* as in daemon/config.py */
static const char default_program[] = STAGE_PROGRAM;
static const char variable[] = "ONES_STAGE_IN";

static bool given;
static char source[PATH_MAX];
static char name[LONGEST_NAME + 1];
static char fault[LONGEST_FAULT + 64]; /* found by stage_in_check */

bool stage_in_given(void)
{
	return given;
}

static bool is_name(const char *text)
{
	if (*text == '\0' || *text == '.' || strlen(text) > LONGEST_NAME)
		return false;
	for (; *text != '\0'; text++)
		if (!isalnum((unsigned char)*text) && strchr("._-+", *text) == NULL)
			return false;
	return true;
}

/* Read SOURCE[:NAME] and look at SOURCE; false after one line that names the thing at fault. */
static bool read_value(const char *text)
{
	char path[PATH_MAX];
	const char *colon = strrchr(text, ':'), *base;
	struct stat found;

	if (strlen(text) >= sizeof(path)) {
		slurm_error("--stage-in: SOURCE is longer than %zu characters", sizeof(path) - 1);
		return false;
	}
	strcpy(path, text);
	if (colon != NULL) {
		path[colon - text] = '\0';
		if (!is_name(colon + 1)) {
			slurm_error("--stage-in=%s: '%s' is no name for the data; use letters, digits, "
				    ". _ - +, such as --stage-in=%s:data", text, colon + 1, path);
			return false;
		}
	}
	if (realpath(path, source) == NULL || stat(source, &found) < 0) {
		slurm_error("--stage-in: %s: %s", path, strerror(errno));
		return false;
	}
	if (!S_ISDIR(found.st_mode) && !S_ISREG(found.st_mode)) {
		slurm_error("--stage-in: %s: neither a file nor a folder", path);
		return false;
	}
	if (access(source, S_ISDIR(found.st_mode) ? R_OK | X_OK : R_OK) < 0) {
		slurm_error("--stage-in: %s: can't be read: %s", path, strerror(errno));
		return false;
	}
	base = strrchr(source, '/') + 1;
	snprintf(name, sizeof(name), "%s",
		 colon != NULL ? colon + 1 : is_name(base) ? base : "data");
	return true;
}

static int take_option(int value, const char *text, int remote)
{
	(void)value;
	/* Within a job, every srun finds the option of its job: that was seen to long ago. */
	if (remote || text == NULL ||
	    (spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID") != NULL))
		return ESPANK_SUCCESS;
	given = true;
	return read_value(text) ? ESPANK_SUCCESS : ESPANK_ERROR;
}

struct spank_option stage_in_option = {
	.name = "stage-in",
	.arginfo = "SOURCE[:NAME]",
	.usage = "have SOURCE copied to the disks of the job's nodes before it starts; the job finds "
		 "it in $ONES_STAGE_IN (with --elastic)",
	.has_arg = 1,
	.val = 0,
	.cb = take_option,
};

static const char *argument(int argc, char *argv[], const char *key, const char *otherwise)
{
	size_t length = strlen(key);

	for (int i = 0; i < argc; i++)
		if (strncmp(argv[i], key, length) == 0 && argv[i][length] == '=')
			return argv[i] + length + 1;
	return otherwise;
}

/* Whether sbatch was only asked to look whether the job could be submitted. */
static bool only_tests(void)
{
	char line[8192];
	FILE *file = fopen("/proc/self/cmdline", "r");
	size_t length = file != NULL ? fread(line, 1, sizeof(line) - 1, file) : 0;

	if (file != NULL)
		fclose(file);
	line[length] = '\0';
	for (const char *word = line; word < line + length; word += strlen(word) + 1)
		if (strcmp(word, "--test-only") == 0)
			return true;
	return false;
}

/* How the stage-in job is submitted. */
struct stage_job {
	const char *folder, *program;
	const char *partition; /* or NULL: the default one */
	bool as_chosen; /* with the partition and account that the user's environment has */
	bool last; /* the last try: what sbatch says of it is for the user */
};

static const char *const chosen[] = { "SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_QOS",
				      "SBATCH_RESERVATION", NULL };

static bool any_chosen(void)
{
	for (int i = 0; chosen[i] != NULL; i++)
		if (getenv(chosen[i]) != NULL)
			return true;
	return false;
}

/* Add those of the variables that are set to an environment of `count` entries; its new count. */
static int keep(char *environment[], int count, const char *const names[])
{
	for (int i = 0; names[i] != NULL; i++) {
		const char *value = getenv(names[i]);
		char *entry;

		if (value != NULL && asprintf(&entry, "%s=%s", names[i], value) > 0)
			environment[count++] = entry;
	}
	return count;
}

/* In a child: become sbatch, without the options that the environment has for the main job. */
static void run_sbatch(int out, const struct stage_job *job)
{
	static const char *const kept[] = { "HOME", "USER", "LOGNAME", "PATH", "LANG", "SLURM_CONF",
					    NULL };
	char *environment[16] = { NULL }, where[PATH_MAX] = "--job-name=ones-stage-in";
	int count = keep(environment, 0, kept), null;

	if (job->as_chosen)
		count = keep(environment, count, chosen);
	environment[count] = (char[]){ "ONES_STAGING=1" };
	if (job->partition != NULL)
		snprintf(where, sizeof(where), "--partition=%s", job->partition);
	if (!job->last && (null = open("/dev/null", O_WRONLY | O_CLOEXEC)) >= 0)
		dup2(null, STDERR_FILENO);
	if (dup2(out, STDOUT_FILENO) < 0)
		_exit(1);
	execle("/proc/self/exe", "sbatch", "--parsable", "--hold", "--job-name=ones-stage-in", where,
	       "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=512", "--no-requeue",
	       "--time=60", "--deadline=now+7days", "--output=/dev/null", "--chdir=/", job->program,
	       job->folder, source, name, (char *)NULL, environment);
	_exit(1);
}

/* Submit the held stage-in job; its id, or "" where that failed. */
static void submit(const struct stage_job *job, char *id, size_t room)
{
	int ends[2], status = -1;
	size_t length = 0;
	ssize_t count;
	pid_t child;

	id[0] = '\0';
	if (pipe2(ends, O_CLOEXEC) < 0)
		return;
	child = fork();
	if (child == 0)
		run_sbatch(ends[1], job);
	close(ends[1]);
	while (child > 0 && length < room - 1 &&
	       ((count = read(ends[0], id + length, room - 1 - length)) > 0 ||
		(count < 0 && errno == EINTR)))
		length += count > 0 ? (size_t)count : 0;
	close(ends[0]);
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	id[length] = '\0';
	id[strspn(id, "0123456789")] = '\0'; /* sbatch --parsable may add ;CLUSTER */
	if (status != 0 || strlen(id) > DIGITS)
		id[0] = '\0';
}

int stage_in_submit(spank_t spank, bool elastic, int argc, char *argv[])
{
	struct stage_job job = {
		.folder = argument(argc, argv, "stage_folder", default_folder),
		.program = argument(argc, argv, "stage_program", default_program),
		.partition = argument(argc, argv, "stage_partition", NULL),
		.last = !any_chosen(),
	};
	char id[32], path[PATH_MAX];

	/* An optional plugin can't make sbatch fail here. */
	if (!elastic || strcmp(program_invocation_short_name, "sbatch") != 0)
		return spank_job_control_setenv(spank, "STAGE_IN", "refuse", 1);
	if (only_tests())
		return ESPANK_SUCCESS;
	submit(&job, id, sizeof(id));
	if (id[0] == '\0' && !job.last) {
		job.as_chosen = job.last = true;
		submit(&job, id, sizeof(id));
	}
	if (id[0] == '\0') {
		slurm_error("--stage-in: no stage-in job could be submitted; the job starts without. It "
			    "needs CPUs for an hour: set SBATCH_PARTITION or SBATCH_ACCOUNT to where you "
			    "may have them, or ask the administrators for stage_partition=");
		return ESPANK_SUCCESS;
	}
	if (snprintf(path, sizeof(path), "%s/%s/%s", job.folder, id, name) >= (int)sizeof(path) ||
	    setenv(variable, path, 1) < 0)
		return ESPANK_ERROR;
	return spank_job_control_setenv(spank, "STAGE_IN", id, 1);
}

/*
 * What the stage-in job wrote down of its failure on this node, into `fault`. Every user may make
 * folders beside it: one that is not its own says nothing.
 */
static void read_fault(const char *folder, uid_t user)
{
	static const char none[] = "the data were not staged in on this node";
	char line[LONGEST_FAULT + 1];
	struct stat found;
	ssize_t length = -1;
	int above, file = -1;

	snprintf(fault, sizeof(fault), "%s", none);
	above = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (above < 0)
		return;
	if (fstat(above, &found) == 0 && found.st_uid == user)
		file = openat(above, ".fault", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	close(above);
	if (file < 0)
		return;
	if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == user)
		length = read(file, line, sizeof(line) - 1);
	close(file);
	if (length <= 0)
		return;
	line[length] = '\0';
	for (char *at = line; *at != '\0'; at++)
		if (iscntrl((unsigned char)*at))
			*at = ' ';
	snprintf(fault, sizeof(fault), "%s", line);
}

void stage_in_check(spank_t spank)
{
	char path[PATH_MAX], folder[PATH_MAX];
	struct stat found;
	char *slash;
	uid_t user;

	if (spank_getenv(spank, variable, path, sizeof(path)) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS)
		return;
	strcpy(folder, path);
	slash = strrchr(folder, '/');
	if (slash != NULL && slash != folder) {
		*slash = '\0';
		if (lstat(folder, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == user &&
		    lstat(path, &found) == 0 && found.st_uid == user)
			return;
	}
	read_fault(folder, user);
	spank_unsetenv(spank, variable);
}

void stage_in_tell(spank_t spank)
{
	uint32_t step;

	if (fault[0] != '\0' && spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
	    step == SLURM_BATCH_SCRIPT)
		fprintf(stderr, "ones: --stage-in: %s; ONES_STAGE_IN is not set\n", fault);
}
