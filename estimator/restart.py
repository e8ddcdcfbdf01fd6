"""What a restart costs a job: from the signal to the first new step, as measured."""

from __future__ import annotations

from dataclasses import dataclass

from ones.policies.model import JobId, Seconds

RECENT = 5  # restarts of which the median is taken
LEAST_LIVE: Seconds = 1.0
"""What a resize without a restart costs at least: training may stand still for less, but Slurm and
onesd have work with it, and jobs must not be resized for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCost:
    """One measured restart; queueing between stop and start is not part of it."""

    job: JobId
    family: str
    seconds: Seconds
    live: bool = False  # whether it was no restart: workers came and went while the others trained
