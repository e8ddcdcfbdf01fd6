"""Runs that are begun anew before Slurm's time limit ends them.

A time limit is of the job at its own request. One that has had fewer GPUs is not yet done when it
is over, through no fault of its user's. It is restarted in time, and its next run has the whole
limit again; until its runs have used it up, in which a second on fewer GPUs counts in proportion.
Since no job gains from fewer GPUs in more than that proportion, none is ended before it has done
what it would have done at its own request; what it had beyond that is not held against it.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from ones.policies.forecast import foreseeable, seconds_left_on
from ones.policies.model import Job, JobId, Outlook, Placement, Problem, Seconds
from ones.policies.moves import Move
from ones.policies.sizes import in_gpus
from ones.policies.words import lasting

LEAD: Seconds = 600.0  # before the limit: to save a checkpoint may take half of it
PART = 4  # of a short limit: not more than a quarter of it before
WORTH = 2.0  # times a restart that a job must have left to be worth one
SLACK: Seconds = 1.0  # Slurm's times are of whole seconds
SURE = 0.5  # of what is left: a job that should be done within it is left to end


def limit_share(gpus: int, requested: int) -> float:
    """How much of its time limit a job uses up in a second on so many GPUs, in seconds."""
    return min(1.0, gpus / max(1, requested))


def renewals(problem: Problem, moving: Collection[JobId]) -> list[Move]:
    """A restart of each running job that its time limit would end too soon.

    Where it is, as far as an allocation can promise that and the job could start there again; else
    it makes way, and is planned anew. None of jobs that move anyhow.
    """
    return [
        _restart(problem, job)
        for job in problem.jobs
        if job.id not in moving and not job.fixed and _due(problem, job)
    ]


def ended_in(job: Job, outlook: Outlook | None, now: Seconds) -> Seconds:
    """Seconds until its time limit ends the running job; inf: it doesn't."""
    if job.time_left is None or _goes_on(job, outlook, now):
        return inf
    return job.time_left


def _goes_on(job: Job, outlook: Outlook | None, now: Seconds) -> bool:
    """Whether it will be worth another run once this one is at its limit."""
    left = _of_run(job, now)
    if left is None or job.limit_used is None or job.time_limit is None or job.placement is None:
        return False
    used = job.limit_used + left * limit_share(job.placement.gpus, job.requested)
    return job.time_limit - used > WORTH * (outlook.restart_cost if outlook else 0.0)


def _of_run(job: Job, now: Seconds) -> Seconds | None:
    """Until the limit of its present run; None where there is none, or something else ends it."""
    if job.time_left is None or job.time_limit is None or job.started is None:
        return None
    left = job.started + job.time_limit - now
    return max(0.0, left) if left <= job.time_left + SLACK else None


def _due(problem: Problem, job: Job) -> bool:
    left, outlook = _of_run(job, problem.now), problem.outlooks.get(job.id)
    if left is None or job.time_limit is None or job.placement is None:
        return False
    if left > min(max(LEAD, 2 * problem.round_seconds), job.time_limit / PART):
        return False
    if not _goes_on(job, outlook, problem.now):
        return False
    if outlook is None:
        return True
    return foreseeable(seconds_left_on(problem, job, job.placement)) > SURE * left


def _restart(problem: Problem, job: Job) -> Move:
    assert job.placement is not None and job.time_limit is not None, "only runs are renewed"
    there = _again(problem, job)
    outlook = problem.outlooks.get(job.id)
    same = there is not None and there.gpus == job.placement.gpus
    return Move(
        job=job.id,
        kind="preempt" if there is None else "resize",
        target=there,
        batch=job.batch if same and job.batches is not None else None,
        reason=f"its time limit of {lasting(job.time_limit)} is of {in_gpus(job.requested)}, and"
        " it has had less",
        gain=-outlook.restart_cost if outlook else 0.0,
    )


def _again(problem: Problem, job: Job) -> Placement | None:
    """What it has, or the most of it that one allocation can promise; None: nothing."""
    assert job.placement is not None, "it runs"
    if job.stays or job.share or job.beside is not None:
        return None
    usable = {node.name for node in problem.nodes if node.usable} & (job.nodes - job.closed)
    there = {name: gpus for name, gpus in job.placement.gpus_on if name in usable}
    if job.uneven:
        return job.placement if len(there) == len(job.placement.gpus_on) else None
    found: Placement | None = None
    for shape in job.shapes:
        each = shape.gpus_per_node
        nodes = [name for name, gpus in there.items() if gpus >= each][: shape.nodes]
        if len(nodes) == shape.nodes and (found is None or shape.gpus > found.gpus):
            found = Placement.of(dict.fromkeys(nodes, each))
    return found
