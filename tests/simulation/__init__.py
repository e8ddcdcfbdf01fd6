"""The whole onesd on a simulated Slurm, on a virtual clock, with faults: see scripts/simulate."""
