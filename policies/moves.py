"""From a plan to the fewest moves that bring it about, in an order that can be carried out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ones.policies.forecast import by_id, move_cost, seconds_left_on
from ones.policies.model import Assignment, Job, JobId, Placement, Plan, Problem, Seconds
from ones.policies.sharing import speed_beside

Kind = Literal["start", "resize", "preempt", "tune"]
LEAST_SPEED = 0.01  # of a job beside another, whatever is expected
_ORDER: dict[Kind, int] = {"preempt": 0, "tune": 0, "resize": 1, "start": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One change to one job. A resize may keep the size and change nodes or batch only.

    A `tune` changes the batch alone, of a job that takes another one while it runs.
    """

    job: JobId
    kind: Kind
    target: Placement | None = None  # None: a preempt
    batch: int | None = None  # global; None leaves it to the job
    reason: str = ""
    beside: JobId | None = None  # with whom it is to share its GPU
    gain: Seconds = 0.0
    """How much sooner this job itself should end, its restart paid; negative where it gives way to
    others. 0 for a start."""


def is_live(move: Move, job: Job) -> bool:
    """Whether a move needs no restart: what the job keeps is part of where it goes."""
    # With a new batch alone there is nobody to come or go.
    elsewhere = move.kind == "resize" and move.target != job.placement
    return elsewhere and job.goes_live(move.target)


def reconcile(problem: Problem, plan: Plan) -> list[Move]:
    """The moves from the present placements to the plan: what frees GPUs before what takes them."""
    jobs = by_id(problem.jobs)
    moves = [
        move
        for job, assignment in plan.assignments.items()
        if (move := _towards(problem, jobs[job], assignment)) is not None
    ]
    moves += [
        Move(
            job=job,
            kind="preempt",
            reason=reason,
            gain=-problem.outlooks[job].restart_cost if job in problem.outlooks else 0.0,
        )
        for job, reason in plan.idle.items()
        if jobs[job].placement is not None
    ]

    def order(move: Move) -> tuple[int, int, float, int]:
        job = jobs[move.job]
        grows = (
            move.target.gpus - (job.placement.gpus if job.placement else 0) if move.target else 0
        )
        # Shrinks come before starts, and starts before growth: nobody waits for another's comfort.
        rank = 3 if move.kind == "resize" and grows > 0 else _ORDER[move.kind]
        return rank, grows if move.kind == "resize" else 0, job.submitted, job.id

    return sorted(moves, key=order)


def _towards(problem: Problem, job: Job, assignment: Assignment) -> Move | None:
    if job.placement is None:
        return Move(
            job=job.id,
            kind="start",
            target=assignment.placement,
            batch=assignment.batch,
            reason=assignment.reason,
            beside=assignment.beside,
        )
    new_batch = assignment.batch is not None and job.batch not in (None, assignment.batch)
    # Who runs on a whole GPU is restarted to share it; who shares one is joined, or left, there.
    shares = assignment.beside is not None and not job.share
    if assignment.placement == job.placement and not new_batch and not shares:
        return None
    tunes = job.batches is not None and job.batches.tunes
    if assignment.placement == job.placement and tunes and not shares:
        return Move(
            job=job.id,
            kind="tune",
            target=assignment.placement,
            batch=assignment.batch,
            reason=assignment.reason,
        )
    gain = 0.0
    if job.id in problem.outlooks:
        before = seconds_left_on(problem, job, job.placement)
        after = seconds_left_on(problem, job, assignment.placement, assignment.batch)
        before /= max(LEAST_SPEED, speed_beside(problem.pairs, job.id, job.beside))
        after /= max(LEAST_SPEED, speed_beside(problem.pairs, job.id, assignment.beside))
        gain = before - after - move_cost(job, problem.outlooks[job.id], assignment.placement)
    return Move(
        job=job.id,
        kind="resize",
        target=assignment.placement,
        batch=assignment.batch,
        reason=assignment.reason,
        beside=assignment.beside,
        gain=gain,
    )
