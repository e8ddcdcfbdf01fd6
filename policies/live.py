"""Plans and jobs that are resized live: what such a job holds already, it keeps where it can.

Policies plan uniform shapes, on whichever nodes suit them. A live job goes from one placement to
another without a restart only if its own allocation, `Job.keeps`, is part of both; the rest comes
and goes on any node. So a plan is gone over once more before it is acted upon: sizes and batches
stay as the policy chose them, places are chosen near the present ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from ones.policies.crowding import against
from ones.policies.forecast import by_id, type_of
from ones.policies.model import Job, Node, Placement, Plan, Problem
from ones.policies.placement import Room


def settle(problem: Problem, plan: Plan) -> Plan:
    """The plan with its live jobs placed so that they need no restart, where there is room."""
    jobs = by_id(problem.jobs)
    moved = [
        job
        for id_, assignment in plan.assignments.items()
        if (job := jobs[id_]).keeps is not None
        and job.placement is not None
        and not job.fixed
        and not job.share
        and assignment.beside is None
        and assignment.placement != job.placement
    ]
    if not moved:
        return plan
    final = {job.id: job.placement for job in problem.jobs if job.placement is not None}
    final = {id_: placement for id_, placement in final.items() if id_ not in plan.idle}
    final |= {id_: assignment.placement for id_, assignment in plan.assignments.items()}
    used = Counter[str]()
    for placement in final.values():
        used.update(dict(placement.gpus_on))
    assignments = dict(plan.assignments)
    empty = Room.of(problem.nodes)
    room = empty.copy()
    room.leave(empty, used, used)
    for job in sorted(moved, key=lambda job: job.id):
        target = assignments[job.id].placement
        used.subtract(dict(target.gpus_on))
        room.leave(empty, used, target.nodes)
        found = _near(problem, room, job, target)
        if found is not None:
            assignments[job.id] = replace(assignments[job.id], placement=found)
        there = found or target
        used.update(dict(there.gpus_on))
        room.leave(empty, used, there.nodes)
    return replace(plan, assignments=assignments)


def _near(problem: Problem, room: Room, job: Job, target: Placement) -> Placement | None:
    """A placement of the target's size around what the job keeps; None: it must restart."""
    held, kept = job.placement, job.keeps
    assert held is not None and kept is not None, "only live jobs are settled"
    nodes = problem.by_name
    kind = type_of(kept, nodes)
    if type_of(target, nodes) != kind or target.gpus < kept.gpus or not room.fits(kept):
        return None
    closer = len(target.nodes) < len(held.nodes)
    if held.gpus == target.gpus and room.fits(held) and not (closer and target.covers(kept)):
        return held
    grows = target.gpus > held.gpus and room.fits(held)
    fits = target.covers(kept) and room.fits(target) and not against(job, target)
    # What is added on a node can't be split: to give a part of it back, all of it has to leave.
    if fits and (closer or not grows or target.covers(held)):
        return target

    def may(node: Node) -> bool:
        return node.gpu_type == kind and node.usable and node.name in job.nodes

    for core in (held, kept) if grows else (kept,):
        if (found := _around(core, room, may, target, job)) is not None:
            return found
    return target if fits else None


def _around(
    core: Placement, room: Room, may: Callable[[Node], bool], target: Placement, job: Job
) -> Placement | None:
    """As many GPUs as the target's, `core` among them; None where the nodes it `may` use have too
    few free."""
    given, missing = dict(core.gpus_on), target.gpus - core.gpus
    wanted, present = dict(target.gpus_on), dict(job.placement.gpus_on if job.placement else ())
    near = given.keys() | present.keys() | wanted.keys()

    def rank(name: str) -> tuple[bool, bool, bool, int, int]:
        away = name not in given, name not in present, name not in wanted
        return *away, -room.free_on(name), room.position(name)

    def fill(hosts: Iterable[str]) -> None:
        nonlocal missing
        for name in sorted(hosts, key=rank):
            free = room.free_on(name)
            free = min(free, max(job.crowded.get(name, free), present.get(name, 0)))
            more = min(missing, free - given.get(name, 0))
            if more > 0:
                given[name] = given.get(name, 0) + more
                missing -= more

    fill(name for name in near if (node := room.node(name)) is not None and may(node))
    if missing > 0:  # elsewhere, which is nearly all nodes
        fill(node.name for node in room.nodes if node.name not in near and may(node))
    return Placement.of(given) if missing == 0 else None
