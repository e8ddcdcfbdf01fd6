/* As much of Slurm's header as the plugin needs: it is built without Slurm for fuzzing. */

#ifndef FUZZ_SLURM_H
#define FUZZ_SLURM_H

#define SLURM_BATCH_SCRIPT 0xfffffffb

void slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
