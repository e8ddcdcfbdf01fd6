"""Policies: what a cluster, a job and a plan are; how plans are made. Pure: no clock, no I/O."""
