"""How many file descriptors a daemon of ours may have, and how many of them its visitors may."""

from __future__ import annotations

import resource

WANTED = 16_384  # as LimitNOFILE in our units
RESERVED = 256  # for our own files, Slurm's commands, and connections that are being refused
BACKLOG = 64  # connections of one door that are accepted at once, before any is looked at


def for_visitors(most: int) -> int:
    """Raise the limit as far as we may; how many connections leave enough for everything else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < WANTED:
        soft = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(128, min(most, soft - RESERVED))
