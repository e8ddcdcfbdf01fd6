"""Slurm's own scheduling of rigid jobs, as far as GPUs go: what every operator compares with."""
