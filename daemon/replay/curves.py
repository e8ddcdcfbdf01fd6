"""How many GPUs were held and how many jobs waited, over the time of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ones.daemon.replay.simulation import Run
from ones.policies.model import Seconds

MOST_POINTS = 8000  # of a curve; one with more changes has the means of so many intervals
Change = tuple[Seconds, int]  # when, and by how much more


@dataclass(frozen=True, slots=True)
class Curve:
    """From each of these whole seconds on it is the value beside it, until the next."""

    times: list[int]
    values: list[float]

    @classmethod
    def of(cls, changes: Iterable[Change], *, most: int = MOST_POINTS) -> Curve:
        """What these changes add up to, from zero."""
        every = np.array(sorted(changes), dtype=float).reshape(-1, 2)
        times, which = np.unique(np.round(every[:, 0]).astype(int), return_inverse=True)
        values = np.cumsum(np.bincount(which, weights=every[:, 1]))
        kept = np.flatnonzero(np.diff(values, prepend=0.0))
        times, values = times[kept], values[kept]
        if len(times) > most:
            edges = np.unique(np.round(np.linspace(times[0], times[-1], most)).astype(int))
            total = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])
            at = np.searchsorted(times, edges, side="right") - 1
            upto = total[at] + values[at] * (edges - times[at])
            means = np.diff(upto) / np.diff(edges)
            times, values = edges, np.append(np.round(means, 2), values[-1])
        return cls([int(one) for one in times], [float(one) for one in values])


def gpus_held(run: Run) -> Curve:
    """Restarts included."""
    return Curve.of(_sizes(run))


def jobs_waiting(run: Run) -> Curve:
    """Submitted, not yet ended, and without GPUs."""
    return Curve.of(_waits(run))


def _sizes(run: Run) -> Iterator[Change]:
    for job in run.jobs:
        before = 0
        for at, gpus in job.sizes:
            yield at, gpus - before
            before = gpus


def _waits(run: Run) -> Iterator[Change]:
    for job in run.jobs:
        yield job.trace.submitted, 1
        before = 0
        for at, gpus in job.sizes:
            waits = gpus == 0 and at != job.finished
            yield at, waits - (before == 0)
            before = gpus
