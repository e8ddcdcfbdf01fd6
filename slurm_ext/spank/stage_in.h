/* The --stage-in option of sbatch, and what a job that used it finds where it starts. */

#ifndef ONES_STAGE_IN_H
#define ONES_STAGE_IN_H

#include <stdbool.h>

#include <slurm/spank.h>

extern struct spank_option stage_in_option;

/* Whether --stage-in was among the options. */
bool stage_in_given(void);

/* In sbatch: submit the stage-in job, and tell the main job of it. Where the job can't have one, as it
 * is not elastic or no batch job, tell job_submit.lua, which refuses it. */
int stage_in_submit(spank_t spank, bool elastic, int argc, char *argv[]);

/* In slurmstepd: leave ONES_STAGE_IN to the job only where its data are. */
void stage_in_check(spank_t spank);

/* In the batch script's process: say on its standard error what stage_in_check found missing. */
void stage_in_tell(spank_t spank);

#endif
