"""The last step of every plan: what the site's limits don't allow is taken from it again.

Who stays where it is comes first, then who gives something back, then the others in the policy's
own order. A waiting job gets the largest of its shapes that is allowed, on the nodes it was to
have, or nothing. A job that runs keeps what it has rather than being stopped for a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ones.policies.caps import Ledger, barred, final, gives_back, left_by, within_room
from ones.policies.forecast import by_id
from ones.policies.model import Assignment, Cap, Job, JobId, Placement, Plan, Problem, Shape
from ones.policies.sharing import occupied


@dataclass(frozen=True, slots=True)
class Cut:
    """A plan that keeps to every cap."""

    plan: Plan
    words: Mapping[JobId, str]  # the jobs that got less than the policy wanted, and why
    displaced: frozenset[JobId] = frozenset()
    """Those of them that no cap is against: somebody keeps the GPUs that they were to have."""


def within(problem: Problem, plan: Plan) -> Cut:
    """The plan, cut down where it exceeds a cap."""
    if not problem.caps:
        return Cut(plan, {})
    stuck: dict[JobId, str] = {}
    displaced: set[JobId] = set()
    while True:
        cut = _attempt(problem, plan, stuck)
        # Who runs and has to stay keeps what others were to have: they come after it.
        runs = {job.id for job in problem.jobs if job.placement is not None}
        stay = {id_: why for id_, why in cut.words.items() if id_ in runs - stuck.keys()}
        stay = {id_: why for id_, why in stay.items() if _same(problem, cut.plan, id_)}
        if stay:
            stuck |= stay
        elif (found := _in_the_way(problem, cut)) is not None:
            stuck[found[0]] = found[1]
            displaced.add(found[0])
        else:
            return replace(cut, displaced=frozenset(displaced))


def _same(problem: Problem, plan: Plan, job: JobId) -> bool:
    placed = plan.assignments.get(job)
    return placed is not None and placed.placement == by_id(problem.jobs)[job].placement


def _attempt(problem: Problem, plan: Plan, stuck: Mapping[JobId, str]) -> Cut:
    """The plan with the `stuck` left as they are, and the others cut to the caps."""
    jobs, ledger = by_id(problem.jobs), Ledger.of(problem)
    assignments, idle = dict(plan.assignments), dict(plan.idle)
    words: dict[JobId, str] = {}
    for id_, why in stuck.items():
        words[id_] = why
        _keep(jobs[id_], assignments, idle, why)
    moved: list[tuple[bool, Job]] = []
    for job in problem.jobs:
        given = assignments.get(job.id)
        if given is not None and given.placement != job.placement:
            if gives_back(job, given.placement):
                ledger.add(job, given.placement)
        elif job.id not in idle:
            ledger.add(job, job.placement)
    for id_, given in assignments.items():
        job, to = jobs[id_], given.placement
        if to != job.placement and not gives_back(job, to):
            less = job.placement is not None and to.gpus < job.placement.gpus
            moved.append((not less, job))
    for _, job in sorted(moved, key=lambda one: one[0]):
        given = assignments[job.id]
        why = ledger.against(job, given.placement)
        if why:
            words[job.id] = why
            smaller = _smaller(job, given.placement, ledger)
            if smaller is None:
                _keep(job, assignments, idle, why)
            else:
                bounds, batch = job.batches, given.batch
                suits = bounds and batch is not None and bounds.accepts(batch, smaller.gpus)
                reason = f"{given.reason}; {why}"
                assignments[job.id] = Assignment(smaller, batch if suits else None, reason)
            _part(assignments, job.id, given)
        if job.id in assignments:
            ledger.add(job, assignments[job.id].placement)
    return Cut(replace(plan, assignments=assignments, idle=idle) if words else plan, words)


def _keep(job: Job, assignments: dict[JobId, Assignment], idle: dict[JobId, str], why: str) -> None:
    """The job stays as it is."""
    before = assignments.pop(job.id, None)
    if job.placement is None:
        idle[job.id] = why
    else:
        assignments[job.id] = Assignment(job.placement, job.batch, f"stays: {why}")
    if before is not None:
        _part(assignments, job.id, before)


def _part(assignments: dict[JobId, Assignment], job: JobId, before: Assignment) -> None:
    """Whoever was to share a GPU with it has it alone."""
    other = before.beside
    if other in assignments and assignments[other].beside == job:
        assignments[other] = replace(assignments[other], beside=None)


def _smaller(job: Job, target: Placement, ledger: Ledger) -> Placement | None:
    """The largest of the job's shapes, within its nodes of the plan, that every cap allows.

    None of a running job's is smaller than what it has.
    """
    least = job.placement.gpus if job.placement else 0
    for shape in sorted(set(job.shapes), key=lambda shape: (-shape.gpus, shape.nodes)):
        if not least < shape.gpus < target.gpus:
            continue
        found = _inside(target, shape)
        if found is not None and not ledger.against(job, found):
            return found
    return None


def _inside(target: Placement, shape: Shape) -> Placement | None:
    hosts = [name for name, gpus in target.gpus_on if gpus >= shape.gpus_per_node]
    if len(hosts) < shape.nodes:
        return None
    return Placement.of(dict.fromkeys(hosts[: shape.nodes], shape.gpus_per_node))


def _in_the_way(problem: Problem, cut: Cut) -> tuple[JobId, str] | None:
    """A job whose new GPUs are those of one that stays after all; None: everybody has room."""
    if not cut.words:
        return None
    room = {node.name: node.gpus - node.taken for node in problem.nodes}
    before = {job.id: job.placement for job in problem.jobs if job.placement is not None}
    beside = {job.id: job.beside for job in problem.jobs}
    present = occupied(before, beside)
    for id_, given in cut.plan.assignments.items():
        if given.beside is not None or given.placement != before.get(id_):
            beside[id_] = given.beside
    wanted = occupied(final(problem, cut.plan), beside)
    full = {
        name for name, gpus in wanted.items() if gpus > present[name] and gpus > room.get(name, 0)
    }
    for id_, given in reversed(list(cut.plan.assignments.items())) if full else ():
        had = before.get(id_)
        if given.placement == had:
            continue
        here = dict(had.gpus_on) if had else {}
        for name, gpus in given.placement.gpus_on:
            if name in full and (gpus > here.get(name, 0) or given.beside is not None):
                return id_, f"its GPUs on {name} are kept: {next(iter(cut.words.values()))}"
    return None


def held_down(problem: Problem, cut: Cut) -> Problem:
    """The problem for another try: who was cut can't have more, and others use what it leaves."""
    placed, rest = final(problem, cut.plan), left_by(problem, cut.plan)
    return replace(
        problem, jobs=tuple(_held_down(problem, job, cut, placed, rest) for job in problem.jobs)
    )


def _held_down(
    problem: Problem,
    job: Job,
    cut: Cut,
    placed: Mapping[JobId, Placement],
    rest: list[tuple[Cap, float]],
) -> Job:
    if job.fixed:
        return job
    now = placed.get(job.id)
    if job.id not in cut.words or (job.id in cut.displaced and job.placement is None):
        return within_room(problem, job, rest) if now is None and job.startable else job
    if now is None:
        less = within_room(problem, job, rest)
        return less if less.nodes != job.nodes else barred(job, cut.words[job.id])
    if now == job.placement:
        return replace(job, fixed=cut.words[job.id])
    has = job.placement.shape if job.placement else None
    shapes = tuple(shape for shape in job.shapes if shape.gpus <= now.gpus or shape == has)
    return replace(job, shapes=shapes)
