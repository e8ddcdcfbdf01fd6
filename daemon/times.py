"""Times as Slurm's own commands print them."""

from __future__ import annotations

import time

from ones.policies.words import clocked


def duration(seconds: float | None) -> str:
    """D-HH:MM:SS, as Slurm prints elapsed times."""
    return "-" if seconds is None else clocked(seconds)


def moment(at: float | None) -> str:
    """Local time as sacct prints it."""
    return "-" if not at else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def hour(at: float, now: float) -> str:
    """`14:20` where that is today, else the date as well."""
    then, today = time.localtime(at), time.localtime(now)
    same = then[:3] == today[:3]
    return time.strftime("%H:%M" if same else "%Y-%m-%dT%H:%M", then)
