"""All that knows Slurm: reading it, acting on it, its plugins, and what runs inside a job."""
