"""A whole onesd on a simulated cluster, to look at: no Slurm, no GPU."""
