/*
 * Functions that libslurmfull.so exports and no installed header declares, with the
 * prototypes of Slurm 24.11.5's own source. Included before every generated file, so that the
 * compiler refuses a declaration of PySlurm's that differs; `patch.py --check` refuses one that is
 * not listed here.
 */
#ifndef ONES_PYSLURM_PROTOTYPES_H
#define ONES_PYSLURM_PROTOTYPES_H

#include <slurm/slurm.h>
#include <slurm/slurmdb.h>

/* Variables of libslurmfull.so and of the C library. */
extern slurm_conf_t slurm_conf;
extern char **environ;

extern char *slurm_job_share_string(uint16_t shared);
extern char *slurm_job_state_string(uint32_t state);
extern const char *slurm_job_state_reason_string(enum job_state_reason reason);
extern char *slurm_node_state_string(uint32_t state);
extern char *slurm_node_state_string_complete(uint32_t state);
extern char *slurm_hostlist_deranged_string_xmalloc(hostlist_t *hostlist);
extern void slurm_sprint_cpu_bind_type(char *text, cpu_bind_type_t type);
extern uint64_t slurmdb_find_tres_count_in_string(char *tres, int id);

extern int slurm_time_str2mins(const char *text);
extern int slurm_time_str2secs(const char *text);
extern void slurm_mins2time_str(uint32_t minutes, char *text, int size);
extern void slurm_secs2time_str(time_t seconds, char *text, int size);
extern void slurm_make_time_str(time_t *time, char *text, int size);
extern time_t slurm_parse_time(const char *text, int past);

extern void slurm_free_job_info(job_info_t *job);
extern void slurm_free_node_info_members(node_info_t *node);
extern void slurm_free_update_node_msg(update_node_msg_t *message);
extern void slurm_xfree_ptr(void *pointer);

#endif
