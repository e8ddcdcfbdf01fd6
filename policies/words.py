"""How reasons say times and numbers."""

from __future__ import annotations

from math import isfinite

OTHERS_GAIN_MORE = "other jobs make more of the GPUs now"
"""A policy's reason for a job to wait, where it only weighs who makes most of the GPUs."""
NO_SIZE_FITS = "none of its sizes fits the cluster"


def lasting(seconds: float) -> str:
    """`45 s`, and from a minute on D-HH:MM:SS, as Slurm prints elapsed times."""
    if not isfinite(seconds) or seconds >= 59.5:
        return clocked(seconds)
    return f"{max(0, round(seconds))} s"


def clocked(seconds: float) -> str:
    """[D-]HH:MM:SS; what has no end, or is no number, in Slurm's word for that."""
    if not isfinite(seconds):
        return "UNLIMITED" if seconds > 0 else "INVALID"
    days, rest = divmod(max(0, round(seconds)), 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def counted(count: int, thing: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
