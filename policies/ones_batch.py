"""The limit R_j on each job's global batch: it follows the job, never jumps (ONES §4.2).

Four rules. Start: a new job's limit is the batch it was submitted with. Scale-up: the limit
doubles, at most once a finished epoch of steady training. Resume: a preempted job comes back with
the batch it last had. Scale-down: while jobs queue, a job that has had more than its share of the
time between arrivals gives its limit back by half, never below what it was submitted with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ones.policies.model import Batch, Job, JobId, Problem

SHARE = 4.0  # of the mean time between arrivals that a job may run before its limit shrinks


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """A job's limit with the finished epochs and the batch it had when that was last changed."""

    most: int
    epochs: int
    ran_with: int | None  # None: it has not run yet

    @classmethod
    def read(cls, row: object) -> BatchLimit | None:
        """From JSON; None where it isn't one of ours."""
        match row:
            case [int(most), int(epochs), int() | None as ran_with] if most > 0:
                return cls(most, epochs, ran_with)
        return None

    def row(self) -> list[int | None]:
        return [self.most, self.epochs, self.ran_with]


def batch_limits(problem: Problem, before: Mapping[JobId, BatchLimit]) -> dict[JobId, BatchLimit]:
    """This round's limits of the jobs whose batch may change."""
    queue = any(job.placement is None and job.startable for job in problem.jobs)
    limits: dict[JobId, BatchLimit] = {}
    for job in problem.jobs:
        if job.batches is None:
            continue
        epochs = int(problem.outlooks[job.id].epochs)
        running = job.placement is not None
        last = before.get(job.id)
        if last is None:
            most = max(job.batch or 0, _first(job, job.batches))
            limits[job.id] = BatchLimit(
                min(most, job.batches.most), epochs, job.batch if running else None
            )
            continue
        most, since, ran_with = last.most, last.epochs, last.ran_with
        overstayed = job.executed * problem.arrival_rate > SHARE
        if not running:
            most = min(most, ran_with) if ran_with else most
        elif epochs > since:
            since = epochs
            most = most // 2 if queue and overstayed else most * 2
        most = min(max(most, _first(job, job.batches)), job.batches.most)
        limits[job.id] = BatchLimit(most, since, job.batch if running else ran_with)
    return limits


def _first(job: Job, batches: Batch) -> int:
    """What it was submitted with; more where no size it can have could run with so little."""
    # Nearly always, and no need to look through its shapes.
    if batches.submitted >= job.sizes.most * batches.least_per_gpu:
        return batches.submitted
    least = min((shape.gpus for shape in job.shapes), default=job.sizes.least)
    return max(batches.submitted, least * batches.least_per_gpu)
