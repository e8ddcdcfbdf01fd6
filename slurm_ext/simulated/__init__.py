"""A simulated Slurm: slurmctld, slurmds and accounting as objects in memory, on a virtual clock."""
