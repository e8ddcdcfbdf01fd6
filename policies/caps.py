"""The site's limits on several jobs together: what a placement takes of them, and what is left.

A limit on one job alone is no cap: such sizes are not among the job's shapes to begin with. A cap
never tells a job to give back what it holds. A job that stays where it is keeps to every cap,
whatever the sum; only what is added, or would have to be asked of Slurm anew, is held against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ones.policies.forecast import by_id
from ones.policies.model import (
    Cap,
    Floats,
    Job,
    JobId,
    Node,
    Placement,
    Plan,
    Problem,
    Shape,
    Take,
)
from ones.policies.shapes import own_forms
from ones.policies.sizes import Sizes

Waiting = TypeVar("Waiting")  # a job outside our hands
Limit = TypeVar("Limit")  # what stops it
Counts = TypeVar("Counts", float, Floats)
SLACK = 1e-6  # of a unit: sums of fractions are not exact


def taken(cap: Cap, job: Job, placement: Placement | None, nodes: Mapping[str, Node]) -> float:
    """What the job takes of the cap on this placement; 0 where it does not count."""
    take = cap.takes.get(job.id)
    if take is None or placement is None:
        return 0.0
    on = dict(placement.gpus_on)
    if cap.gpu_type:
        on = {n: g for n, g in on.items() if n in nodes and nodes[n].gpu_type == cap.gpu_type}
        if not on:
            return 0.0
    jobs, wide = 1, float(len(on))
    if job.keeps is not None and job.goes_live(placement):
        # Slurm counts the jobs that hold GPUs for it as well, one a node.
        kept = dict(job.keeps.gpus_on)
        more = {name: gpus - kept.get(name, 0) for name, gpus in on.items()}
        jobs += sum(1 for gpus in more.values() if gpus > 0)
        if take.spread:
            wide = len(kept) + sum(more.values()) / min(kept.values())
    return take.once + take.each * jobs + take.node * wide + take.gpu * sum(on.values())


def present(cap: Cap, job: Job, nodes: Mapping[str, Node]) -> float:
    """What the job has of the cap: Slurm counts what it holds until that is given back."""
    return max(cap.held.get(job.id, 0.0), taken(cap, job, job.placement, nodes))


def of_shape(take: Take, shape: Shape) -> float:
    """What a job takes on this shape."""
    return of_counts(take, shape.nodes, shape.gpus)


def of_counts(take: Take, nodes: Counts, gpus: Counts) -> Counts:
    """What it takes on so many nodes, with so many GPUs in all; of arrays, element by element."""
    return take.once + take.each + take.node * nodes + take.gpu * gpus


def most_taken(take: Take, job: Job) -> float:
    """What it may take at most, live or not."""
    widest = max((of_shape(take, shape) for shape in job.shapes), default=0.0)
    if job.keeps is None:
        return widest
    least = min(job.keeps.gpus_on, key=lambda one: one[1])[1]
    most = max((shape.gpus for shape in job.shapes), default=0)
    beside = take.each * len(job.nodes) + take.node * most / least * take.spread
    return widest + beside


@dataclass(slots=True)
class Ledger:
    """What is left of every cap while a plan is drawn up."""

    problem: Problem
    left: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem) -> Ledger:
        return cls(problem, [cap.left for cap in problem.caps])

    def copy(self) -> Ledger:
        return Ledger(self.problem, [*self.left])

    def add(self, job: Job, placement: Placement | None) -> None:
        """The job is to have this placement."""
        problem = self.problem
        for at in problem.caps_of.get(job.id, ()):
            self.left[at] -= taken(problem.caps[at], job, placement, problem.by_name)

    def against(self, job: Job, placement: Placement) -> str:
        """The cap that has not enough left for it, in words; empty: none."""
        problem = self.problem
        for at in problem.caps_of.get(job.id, ()):
            cap = problem.caps[at]
            if taken(cap, job, placement, problem.by_name) > max(self.left[at], 0.0) + SLACK:
                return cap.words
        return ""


def gives_back(job: Job, placement: Placement) -> bool:
    """Whether Slurm has nothing to agree to: the job only leaves some of what it holds, live."""
    held = job.placement
    return held is not None and held.covers(placement) and job.goes_live(placement)


def final(problem: Problem, plan: Plan) -> dict[JobId, Placement]:
    """Who holds what once the plan is carried out."""
    held = {job.id: job.placement for job in problem.jobs if job.placement is not None}
    held = {id_: placement for id_, placement in held.items() if id_ not in plan.idle}
    return held | {id_: given.placement for id_, given in plan.assignments.items()}


def exceeded(problem: Problem, held: Mapping[JobId, Placement]) -> list[Cap]:
    """The caps of which these placements take more than is left."""
    jobs, found = by_id(problem.jobs), []
    for cap in problem.caps:
        counted = ((jobs[id_], held.get(id_)) for id_ in cap.takes if id_ in jobs)
        total = sum(taken(cap, job, where, problem.by_name) for job, where in counted)
        if total > cap.left + SLACK:
            found.append(cap)
    return found


def breakers(problem: Problem, plan: Plan) -> dict[JobId, str]:
    """The jobs to which a plan gives what a cap does not allow, with its words."""
    held = final(problem, plan)
    found: dict[JobId, str] = {}
    for cap in exceeded(problem, held) if problem.caps else ():
        for job in problem.jobs:
            to = held.get(job.id)
            if to is None or to == job.placement or gives_back(job, to):
                continue
            if taken(cap, job, to, problem.by_name) > 0:
                found.setdefault(job.id, cap.words)
    return found


def left_by(problem: Problem, plan: Plan) -> list[tuple[Cap, float]]:
    """Every cap, with what is left of it once the plan is carried out."""
    ledger, held = Ledger.of(problem), final(problem, plan)
    for job in problem.jobs:
        ledger.add(job, held.get(job.id))
    return list(zip(problem.caps, ledger.left, strict=True))


def kept_off(problem: Problem, plan: Plan) -> dict[JobId, str]:
    """Who waits and gets nothing, and would not with all GPUs free: what is left of a cap is less
    than its least."""
    if not problem.caps:
        return {}
    rest, held = left_by(problem, plan), final(problem, plan)
    waiting = (
        within_room(problem, job, rest)
        for job in problem.jobs
        if job.placement is None and job.startable and job.id not in held
    )
    return {job.id: job.limited for job in waiting if not job.startable}


def narrow(problem: Problem) -> Problem:
    """The problem without the sizes that no plan can give a job, whatever the others get."""
    if not problem.caps:
        return problem
    jobs = by_id(problem.jobs)
    room: list[tuple[Cap, float]] = []
    for cap in problem.caps:
        firm = [jobs[id_] for id_ in cap.takes if id_ in jobs and jobs[id_].fixed]
        used = sum(taken(cap, job, job.placement, problem.by_name) for job in firm)
        room.append((cap, cap.left - used))
    return replace(
        problem,
        jobs=tuple(
            job if job.fixed else within_room(problem, _as_asked(problem, job), room)
            for job in problem.jobs
        ),
    )


def _as_asked(problem: Problem, job: Job) -> Job:
    """The job without sizes beyond its request, where a job outside our hands waits for a limit
    that it takes of: as long as all are rigid, that one waits no longer for it."""
    words = problem.awaited.get(job.id)
    if words is None:
        return job
    most = max(job.requested, job.placement.gpus if job.placement else 0)
    shapes = tuple(shape for shape in job.shapes if shape.gpus <= most)
    counts = tuple(size for size in job.sizes if size <= most)
    if len(shapes) == len(job.shapes) or not shapes or not counts:
        return job
    return replace(job, shapes=shapes, sizes=Sizes(counts), limited=words)


def least_awaited(
    stopped: Mapping[Waiting, Mapping[Limit, float]],
) -> dict[Limit, tuple[float, Waiting]]:
    """Of each limit that stops jobs, how much of it the one would have that would have least, and
    which job that is."""
    found: dict[Limit, tuple[float, Waiting]] = {}
    for job, limits in stopped.items():
        for limit, asks in limits.items():
            if limit not in found or asks < found[limit][0]:
                found[limit] = asks, job
    return found


def too_large(problem: Problem, waiting: Sequence[Job]) -> frozenset[JobId]:
    """Those of these waiting jobs that can't have their own request as long as all others keep
    what they hold: Slurm would not start them."""
    if not waiting:
        return frozenset()
    jobs, nodes = by_id(problem.jobs), problem.by_name
    room = [
        (cap, cap.left - sum(present(cap, jobs[id_], nodes) for id_ in cap.takes if id_ in jobs))
        for cap in problem.caps
    ]
    as_asked = (
        replace(
            job,
            shapes=own_forms(job.shapes, job.requested, job.requested_nodes),
            sizes=Sizes((job.requested,)),
        )
        for job in waiting
    )
    found = (within_room(problem, job, room) for job in as_asked)
    return frozenset(job.id for job in found if not job.startable)


def within_room(problem: Problem, job: Job, room: Sequence[tuple[Cap, float]]) -> Job:
    """The job without the shapes that take more of a cap than there is room. `room` has all caps of
    the problem, in their order.

    A job that runs keeps the one it has. One that waits, and has none left, can't be started.
    """
    for at in problem.caps_of.get(job.id, ()):
        cap, left = room[at]
        job = _without(problem, job, cap, cap.takes[job.id], max(0.0, left))
    return job


def _without(problem: Problem, job: Job, cap: Cap, take: Take, left: float) -> Job:
    def fits(shape: Shape) -> bool:
        return of_shape(take, shape) <= left + SLACK or shape == now

    now = job.placement.shape if job.placement else None
    if cap.gpu_type:
        # On nodes of other types it may have what it likes. Slurm may have stopped to name a node
        # on which it runs: of what type that was nobody knows.
        nodes = problem.by_name
        others = frozenset(
            name for name in job.nodes if name in nodes and nodes[name].gpu_type != cap.gpu_type
        ) | frozenset(job.placement.nodes if job.placement else ())
        if not others.issuperset(job.nodes) and not any(fits(shape) for shape in job.shapes):
            job = replace(job, nodes=others, limited=cap.words)
        if others.intersection(job.nodes):
            return job
    sizes = job.sizes
    if job.uneven:
        counts = tuple(n for n in sizes if of_shape(take, Shape(1, n)) <= left + SLACK)
        sizes = Sizes(counts) if counts else sizes
        if not counts and job.placement is None:
            return barred(job, cap.words)
    shapes = tuple(shape for shape in job.shapes if fits(shape))
    if len(shapes) == len(job.shapes) and sizes == job.sizes:
        return job
    if not shapes and job.placement is None:
        return barred(job, cap.words)
    return replace(job, shapes=shapes or job.shapes, sizes=sizes, limited=cap.words)


def barred(job: Job, words: str) -> Job:
    """A waiting job that isn't to be started, because of a limit."""
    return replace(job, startable=False, fixed=words, limited=words)


def without(problem: Problem, away: Iterable[Job]) -> tuple[Cap, ...]:
    """The caps once these jobs are nobody's to decide on, and hold what they hold."""
    gone = {job.id: job for job in away}
    return tuple(
        replace(
            cap,
            left=cap.left
            - sum(present(cap, gone[id_], problem.by_name) for id_ in cap.takes if id_ in gone),
            takes={id_: take for id_, take in cap.takes.items() if id_ not in gone},
        )
        if not gone.keys().isdisjoint(cap.takes)
        else cap
        for cap in problem.caps
    )
