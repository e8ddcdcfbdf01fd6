/* A Slurm that says what the harness wants, and looks closely at what it is told. */

#ifndef FUZZ_STAND_IN_H
#define FUZZ_STAND_IN_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#define LONGEST_LINE 16384

static enum spank_context context_now = S_CTX_ALLOCATOR;
static const char *environment_value; /* of every variable that is asked for; NULL: there is none */
static unsigned long set_variables, unset_variables;

static void must(int holds)
{
	if (!holds)
		abort();
}

static void look_at(const char *format, va_list arguments)
{
	char line[LONGEST_LINE];

	must(vsnprintf(line, sizeof(line), format, arguments) >= 0);
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	look_at(format, arguments);
	va_end(arguments);
}

void slurm_info(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	look_at(format, arguments);
	va_end(arguments);
}

enum spank_context spank_context(void)
{
	return context_now;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list arguments;

	(void)spank;
	va_start(arguments, item);
	if (item == S_JOB_UID)
		*va_arg(arguments, uid_t *) = getuid();
	else
		*va_arg(arguments, uint32_t *) = item == S_JOB_ID ? 7 : SLURM_BATCH_SCRIPT;
	va_end(arguments);
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int room)
{
	(void)spank;
	(void)name;
	if (environment_value == NULL || strlen(environment_value) >= (size_t)room)
		return ESPANK_ERROR;
	strcpy(value, environment_value);
	return ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	(void)overwrite;
	/* What the agent says may name variables of ours, each of one printable line. */
	must(strncmp(name, "ONES_", 5) == 0 && name[5] != '\0');
	for (; *name != '\0'; name++)
		must(strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", *name) != NULL);
	for (; *value != '\0'; value++)
		must((unsigned char)*value >= 32 && *value != 127);
	set_variables++;
	return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
	(void)spank;
	must(*name != '\0');
	unset_variables++;
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value,
				     int overwrite)
{
	(void)spank;
	(void)overwrite;
	must(*name != '\0' && strlen(value) < LONGEST_LINE);
	return ESPANK_SUCCESS;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	must(option->name != NULL && option->cb != NULL);
	return ESPANK_SUCCESS;
}

/* A copy of the input as a string that ends where the sanitizer sees it. */
static char *as_string(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	must(text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	return text;
}

#endif
