"""GPUs kept for jobs that did not opt in: elastic jobs must not grow past a waiting plain job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ones.policies.model import Job, Node, Seconds, node_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job outside our hands that waits for GPUs in Slurm's queue."""

    submitted: Seconds
    gpus: int
    nodes: frozenset[str]  # where it may run


def reserve(nodes: Sequence[Node], jobs: Sequence[Job], waiting: Sequence[Waiting]) -> list[Node]:
    """The nodes with the GPUs of waiting plain jobs marked as taken, so that plans leave room.

    First come, first served between the two kinds: a plain job gets room only beyond the requests
    of the elastic jobs that were submitted before it, which is what it would have had to wait for
    on a plain Slurm. Whole it gets it or not at all. The room is taken where the elastic jobs hold
    least, so that few of them have to make way.
    """
    held: dict[str, int] = {}
    for job in jobs:
        for name, gpus in job.placement.gpus_on if job.placement else ():
            held[name] = held.get(name, 0) + gpus
    ordered = list(node_order(nodes))
    for plain in sorted(waiting, key=lambda plain: plain.submitted):
        room = [node for node in ordered if node.usable and node.name in plain.nodes]
        spare = sum(node.gpus - node.taken for node in room)
        spare -= sum(job.requested for job in jobs if job.submitted <= plain.submitted)
        if spare < plain.gpus:
            continue
        wanted = plain.gpus
        for node in sorted(room, key=lambda node: held.get(node.name, 0)):
            given = min(wanted, node.gpus - node.taken)
            if given:
                wanted -= given
                at = ordered.index(node)
                ordered[at] = replace(node, taken=node.taken + given)
    return ordered
