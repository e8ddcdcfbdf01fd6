"""Nobody falls behind his rigid run: what plain Slurm would have made of his job by now.

As far as it can be foreseen. A job's `due` is when it would have ended there (`policies/rigid.py`);
it may take so many times as long from its submission, and no longer.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np

from ones.policies.forecast import foreseeable, move_cost, own_batch, seconds_left, seconds_left_on
from ones.policies.model import Floats, Job, JobId, Outlook, Placement, Problem, Seconds, Shape
from ones.policies.rigid import Rigid
from ones.policies.shapes import shapes_by_size, size_as_requested
from ones.policies.sizes import Sizes
from ones.policies.words import lasting


def with_dues(problem: Problem, rigid: Rigid | None) -> Problem:
    """Every elastic job with when it would have ended; one that has ended there is due now."""
    if rigid is None:
        return problem
    dues = rigid_ends(problem, rigid)
    return replace(
        problem,
        jobs=tuple(
            replace(job, due=dues[job.id]) if job.id in dues else job for job in problem.jobs
        ),
    )


def rigid_ends(problem: Problem, rigid: Rigid) -> dict[JobId, Seconds]:
    """When each elastic job would end, were all of them rigid, where that can be told.

    It is now for one that would have ended by now.
    """
    found = {job.id: _due(problem, rigid, job.id) for job in problem.jobs}
    return {job: due for job, due in found.items() if due is not None}


class Ends:
    """When jobs end, and when they would were every elastic job rigid; worked out when asked for.

    Times are on the problem's clock; a rigid job that would have ended has that of the problem.
    """

    def __init__(self, problem: Problem, rigid: Rigid | None) -> None:
        self.rigid = {} if rigid is None else rigid_ends(problem, rigid)
        self._problem = problem
        self._known: dict[JobId, Seconds | None] = {}

    def of(self, job: Job) -> Seconds | None:
        """When it ends on what it has; None where it waits, or nothing is known of it."""
        if job.id not in self._known:
            told = job.placement is not None and job.id in self._problem.outlooks
            self._known[job.id] = self._end(job) if told else None
        return self._known[job.id]

    def _end(self, job: Job) -> Seconds | None:
        assert job.placement is not None, "a waiting job has no end"
        left = foreseeable(seconds_left_on(self._problem, job, job.placement))
        return self._problem.now + left if isfinite(left) else None


def _due(problem: Problem, rigid: Rigid, job: JobId) -> Seconds | None:
    if job in rigid.through:
        return problem.now
    request = rigid.requests.get(job)
    if request is None or request.whole is None:
        return None
    claim = rigid.claims.get(job)
    # Who still waits there starts now at the earliest.
    return (problem.now if claim is None else claim.since) + request.whole


def in_time(problem: Problem, bound: float | None, *, max_wait: Seconds) -> Problem:
    """The problem as policies are to see it, so that nobody falls behind by more than the bound.

    A running job keeps no size at which it would; a job that has no time left to lose counts as
    having waited too long: it comes first, and is not preempted.
    """
    if bound is None:
        return problem
    return replace(
        problem,
        jobs=tuple(_in_time(problem, job, bound, max_wait) for job in problem.jobs),
    )


def _in_time(problem: Problem, job: Job, bound: float, max_wait: Seconds) -> Job:
    outlook = problem.outlooks.get(job.id)
    latest = latest_end(job, bound)
    if outlook is None or latest is None or not job.shapes:
        return job
    shapes = shapes_by_size(job.shapes)
    sizes = sorted(shapes)
    at_start = problem.now + problem.round_seconds + outlook.restart_cost
    own = size_as_requested(job.shapes, job.requested) or sizes[0]
    as_asked = _left(problem, job, outlook, [shapes[own][0]])[0]
    if at_start + as_asked > latest:
        job = replace(job, waited=max(job.waited, max_wait + 1.0))
    if job.placement is None:
        return job
    now = job.placement.gpus
    ends = (
        problem.now
        + outlook.restart_cost
        + _left(problem, job, outlook, [shapes[size][0] for size in sizes])
    )
    kept = {size for size, end in zip(sizes, ends, strict=True) if size >= now or end <= latest}
    if len(kept) == len(sizes):
        return job
    found = tuple(shape for shape in job.shapes if shape.gpus in kept)
    counts = tuple(size for size in job.sizes if size >= now or size in kept)
    if not found or not counts:
        return job
    return replace(job, shapes=found, sizes=Sizes(counts))


def _left(problem: Problem, job: Job, outlook: Outlook, shapes: list[Shape]) -> Floats:
    """Seconds to its end on each of these shapes, at its own batch."""
    first = min((name for name in job.nodes if name in problem.by_name), default="")
    kind = problem.by_name[first].gpu_type if first else ""
    batch = np.full(len(shapes), own_batch(job, outlook))
    return seconds_left(
        job,
        outlook,
        kind,
        nodes=np.array([shape.nodes for shape in shapes]),
        gpus=np.array([shape.gpus for shape in shapes]),
        batch=batch,
    )


def latest_end(job: Job, bound: float) -> Seconds | None:
    """Until when it has to end; None: nobody knows."""
    return None if job.due is None else job.submitted + bound * (job.due - job.submitted)


def behind(problem: Problem, job: Job, target: Placement | None, bound: float | None) -> str:
    """Why a running job may not shrink to, or be stopped for, this; empty: it may."""
    outlook = problem.outlooks.get(job.id)
    if bound is None or outlook is None or job.placement is None:
        return ""
    latest = latest_end(job, bound)
    if latest is None:
        return ""
    left = seconds_left_on(problem, job, target or job.placement)
    end = problem.now + move_cost(job, outlook, target) + left
    if target is None:
        end += problem.round_seconds
    if end <= latest:
        return ""
    late = lasting(end - job.submitted)
    return f"it would end {late} after submission; rigid it would have taken " + lasting(
        (job.due or latest) - job.submitted
    )
