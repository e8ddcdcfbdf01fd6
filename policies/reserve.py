"""GPUs kept for jobs that did not opt in: elastic jobs must not grow past a waiting plain job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from ones.policies.model import Job, JobId, Node, node_order
from ones.policies.rigid import DEPTH, PlainJob, place_of


def reserve(
    nodes: Sequence[Node],
    jobs: Sequence[Job],
    waiting: Sequence[PlainJob],
    *,
    owed: Collection[JobId] = (),
    claimed: Collection[JobId] = (),
) -> list[Node]:
    """The nodes with the GPUs of waiting plain jobs marked as taken, so that plans leave room.

    In Slurm's order. A plain job gets room beyond the requests of the elastic jobs that are ahead
    of it, or that would run by now even if they were rigid (`claimed`); one that would itself run
    then (`owed`) gets it in any case. Whole it gets it, in its own form, or not at all: half of it
    would stand empty. The room is taken where elastic jobs hold least, so that few make way.
    """
    held = Counter[str]()
    for job in jobs:
        held.update(dict(job.placement.gpus_on if job.placement else ()))
    ordered = {node.name: node for node in node_order(nodes)}
    first = sorted(
        waiting,
        key=lambda plain: (plain.id not in owed, *plain.place[:2], plain.expected, plain.place),
    )
    for plain in first[:DEPTH]:
        room = [node for node in ordered.values() if node.usable and node.name in plain.nodes]
        kept = sum(
            _kept(job, job.id in claimed, plain, owed=plain.id in owed)
            for job in jobs
            if not job.nodes.isdisjoint(plain.nodes)
        )
        if sum(node.gpus - node.taken for node in room) - kept < plain.gpus:
            continue
        for name, gpus in _chosen(plain, room, held).items():
            ordered[name] = replace(ordered[name], taken=ordered[name].taken + gpus)
    return list(ordered.values())


def _kept(job: Job, claimed: bool, plain: PlainJob, *, owed: bool) -> int:
    """The GPUs that the plain job leaves to an elastic one."""
    running = 0 if job.placement is None else min(job.requested, job.placement.gpus)
    if owed:
        # Rigid they would both run by now. Who runs goes on, on what it has of its request.
        return running if claimed else 0
    ahead = (running or job.startable) and place_of(job) < plain.place
    return job.requested if claimed or ahead else running


def _chosen(plain: PlainJob, room: Sequence[Node], held: Counter[str]) -> dict[str, int]:
    """Where it is to have how many GPUs; empty where it can't have them in its form."""
    free = {node.name: node.gpus - node.taken for node in room}
    names = sorted(free, key=lambda name: held[name])  # stable: near each other where equal
    whole = plain.least_nodes == 1 and any(node.gpus >= plain.gpus for node in room)
    each = plain.per_node or (plain.gpus if whole else 0)
    if each:
        count = -(-plain.gpus // each)
        enough = [name for name in names if free[name] >= each]
        return dict.fromkeys(enough[:count], each) if len(enough) >= count else {}
    chosen: dict[str, int] = {}
    missing = plain.gpus
    for name in names:
        given = min(missing, free[name])
        if given > 0:
            chosen[name] = given
            missing -= given
    return chosen if not missing else {}
