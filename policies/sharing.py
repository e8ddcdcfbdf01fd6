"""Two jobs on one GPU: how a plan says so, and who is put beside whom.

Both assignments name the other job and the same placement of one GPU, and that GPU counts once. A
job that runs on whole GPUs has to be restarted to share its GPU; one that is alone on a shared GPU
is joined where it is. Nobody can tell Slurm which GPU of a node is meant, so a node gets one new
pair at a time, and none beside a job other than the one that is alone on a shared GPU there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from math import inf

from ones.policies.model import Assignment, Job, JobId, Node, Pairs, Placement, Plan, Problem

Allows = Callable[[JobId, JobId], bool]


def pair_of(one: JobId, other: JobId) -> tuple[JobId, JobId]:
    """The pair as `Pairs` names it."""
    return (one, other) if one < other else (other, one)


def speed_beside(pairs: Pairs, job: JobId, other: JobId | None) -> float:
    """How fast a job is expected to be beside another, relative to its speed alone."""
    if other is None:
        return 1.0
    speeds = pairs.get(pair_of(job, other), (1.0, 1.0))
    return speeds[0] if job < other else speeds[1]


def occupied(held: Mapping[JobId, Placement], beside: Mapping[JobId, JobId | None]) -> Counter[str]:
    """GPUs in use by node, the one that two jobs share counted once."""
    used = Counter[str]()
    for placement in held.values():
        used.update(dict(placement.gpus_on))
    pairs = {pair_of(one, other) for one, other in beside.items() if other is not None}
    for one, other in pairs:
        if one in held and held[one] == held.get(other):
            used.subtract(dict(held[one].gpus_on))
    return used


def riders(problem: Problem) -> dict[JobId, JobId]:
    """Of every pair on a GPU now, the job that came later, and the one that it is beside."""
    there = {job.id: job for job in problem.jobs}
    return {
        job.id: job.beside
        for job in problem.jobs
        if job.beside in there
        and there[job.beside].placement == job.placement
        and _came(there[job.beside]) < _came(job)
    }


def _came(job: Job) -> tuple[float, JobId]:
    return inf if job.started is None else job.started, job.id


def without_riders(problem: Problem) -> Problem:
    """The problem for a policy that knows nothing of pairs: one job stands for both, and stays."""
    second = riders(problem)
    if not second:
        return problem
    hosts = {host: rider for rider, host in second.items()}
    return replace(
        problem,
        jobs=tuple(
            replace(job, fixed=job.fixed or f"shares its GPU with job {hosts[job.id]}")
            if job.id in hosts
            else job
            for job in problem.jobs
            if job.id not in second
        ),
    )


def with_riders(problem: Problem, plan: Plan) -> Plan:
    """The plan for the problem without them, and every pair as it is."""
    assignments = dict(plan.assignments)
    jobs = {job.id: job for job in problem.jobs}
    for rider, host in riders(problem).items():
        for id_, other in ((rider, host), (host, rider)):
            job = jobs[id_]
            assert job.placement is not None, "who shares a GPU runs"
            why = f"shares its GPU with job {other}"
            assignments[id_] = Assignment(job.placement, job.batch, why, beside=other)
    return replace(plan, assignments=assignments)


def keep_pairs(problem: Problem, plan: Plan) -> Plan:
    """The plan where both of a pair that shares a GPU now, and got a GPU each on its node, and may
    go on sharing, do so: parting them would cost a restart."""
    assignments = dict(plan.assignments)
    jobs = {job.id: job for job in problem.jobs}
    for rider, host in riders(problem).items():
        both = rider, host
        stay = all(
            id_ in assignments
            and assignments[id_].beside is None
            and assignments[id_].placement == jobs[id_].placement
            for id_ in both
        )
        if stay and pair_of(*both) in problem.pairs:
            for id_, other in (both, both[::-1]):
                assignments[id_] = replace(assignments[id_], beside=other)
    return replace(plan, assignments=assignments)


def fill(
    problem: Problem, plan: Plan, order: Iterable[JobId], *, kept: Collection[str] = ()
) -> Plan:
    """The plan with the GPUs that pairs leave free given to those of `order` who could do with one.

    Nothing is given on the nodes in `kept`, and who runs is not moved for what is left over.
    """
    jobs = {job.id: job for job in problem.jobs}
    assignments, idle = dict(plan.assignments), dict(plan.idle)
    shared = {one.placement.nodes[0] for one in assignments.values() if one.beside is not None}
    used = occupied(
        {id_: given.placement for id_, given in assignments.items()},
        {id_: given.beside for id_, given in assignments.items()},
    )
    free = {
        node.name: node.gpus - node.taken - used[node.name]
        for node in problem.nodes
        if node.usable and node.name in shared and node.name not in kept
    }
    for id_ in order:
        job = jobs[id_]
        if id_ not in idle or job.placement is not None or job.requested != 1:
            continue
        found = next((name for name in sorted(job.nodes) if free.get(name, 0) > 0), None)
        if found is not None and _may_join(job):
            free[found] -= 1
            given = Placement.of({found: 1})
            assignments[id_] = Assignment(given, None, "others share a GPU, which leaves it one")
            del idle[id_]
    return replace(plan, assignments=assignments, idle=idle)


def pair_up(
    problem: Problem,
    plan: Plan,
    guests: Iterable[JobId],
    *,
    restarts: bool = True,
    allows: Allows = lambda _one, _other: True,
) -> Plan:
    """The plan with as many of `guests`, who get nothing in it, put beside another job each.

    A job on a shared GPU of which it has one half is joined first, then one that starts now, then
    one that has to be restarted for it; among those the pair that is fastest in all.
    """
    jobs = {job.id: job for job in problem.jobs}
    assignments, idle = dict(plan.assignments), dict(plan.idle)
    halves = _halves(problem, assignments)
    met: set[str] = set()  # nodes that have their new pair
    for id_ in guests:
        guest = jobs[id_]
        if id_ not in idle or not _may_join(guest):
            continue
        found = [
            (rank, host)
            for host, given in assignments.items()
            if (rank := _rank(guest, jobs[host], given, problem=problem, halves=halves, met=met))
            is not None
            and (restarts or rank[0] < RESTART)
            and allows(id_, host)
        ]
        if not found:
            continue
        rank, host = min(found)
        given = assignments[host]
        speeds = [speed_beside(problem.pairs, *pair) for pair in ((id_, host), (host, id_))]
        words = "shares the GPU of job {}: {:.0%} and {:.0%} of their speeds expected"
        if rank[0] != TOGETHER:
            met.update(given.placement.nodes)
        assignments[host] = replace(given, beside=id_)
        if jobs[host].placement is None or not jobs[host].share:
            why = words.format(id_, *reversed(speeds))
            assignments[host] = replace(assignments[host], reason=why)
        batch = guest.batch if guest.placement == given.placement else None
        assignments[id_] = Assignment(
            given.placement, batch, words.format(host, *speeds), beside=host
        )
        del idle[id_]
    return replace(plan, assignments=assignments, idle=idle)


TOGETHER, HALF, STARTS, RESTART = range(4)  # what a pair costs: nothing is to be done, ...


def _may_join(guest: Job) -> bool:
    if guest.fixed or (guest.placement is None and not guest.startable):
        return False
    return any(shape.gpus == 1 for shape in guest.shapes)


def _rank(
    guest: Job,
    host: Job,
    given: Assignment,
    *,
    problem: Problem,
    halves: Mapping[str, set[JobId]],
    met: set[str],
) -> tuple[int, float, JobId] | None:
    """The lowest is the best; None where the two can't share."""
    pair = problem.pairs.get(pair_of(guest.id, host.id))
    if pair is None or given.beside is not None or given.placement.gpus != 1:
        return None
    (name,) = given.placement.nodes
    node: Node | None = problem.by_name.get(name)
    if node is None or not node.shares or not node.usable or name not in guest.nodes:
        return None
    stays = given.placement == host.placement
    if stays and host.beside == guest.id:
        return TOGETHER, -sum(pair), host.id
    if name in met or halves.get(name, set()) - {host.id}:
        return None
    if stays and host.share:
        # On a GPU that a job which did not opt in has half of there is no place.
        return (HALF, -sum(pair), host.id) if host.id in halves.get(name, ()) else None
    if host.placement is None:
        return STARTS, -sum(pair), host.id
    return None if host.fixed else (RESTART, -sum(pair), host.id)


def _halves(problem: Problem, assignments: Mapping[JobId, Assignment]) -> dict[str, set[JobId]]:
    """Node -> the jobs that will be alone on a shared GPU there, as the plan is so far."""
    there = {job.id for job in problem.jobs}  # a rider may have been left out
    stay = {
        job.id
        for job in problem.jobs
        if job.share
        and job.placement is not None
        and (job.id not in assignments or assignments[job.id].placement == job.placement)
    }
    found: dict[str, set[JobId]] = {}
    for job in problem.jobs:
        left = job.beside is None or (job.beside in there and job.beside not in stay)
        if job.id in stay and job.placement is not None and left:
            found.setdefault(job.placement.nodes[0], set()).add(job.id)
    return found
