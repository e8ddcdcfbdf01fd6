"""What a job will need (Liquid §1): estimates with their uncertainty, learnt from runs."""
