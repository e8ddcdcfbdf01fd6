"""What a restart costs a job: from the signal to the first new step, as measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ones.policies.model import JobId, Seconds

RECENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCost:
    """One measured restart; queueing between stop and start is not part of it."""

    job: JobId
    family: str
    seconds: Seconds


def restart_cost(
    job: JobId, family: str, measured: Sequence[RestartCost], *, prior: Seconds
) -> Seconds:
    """The median of the job's own last restarts, else its family's, else all, else the prior."""
    for mine in (
        [one.seconds for one in measured if one.job == job],
        [one.seconds for one in measured if one.family == family],
        [one.seconds for one in measured],
    ):
        if mine:
            return median(mine[-RECENT:])
    return prior
