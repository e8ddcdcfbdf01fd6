"""GPUs kept for jobs that did not opt in: elastic jobs must not grow past a waiting plain job."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

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
    ours: dict[frozenset[str], _Kept] = {}
    for plain in first[:DEPTH]:
        room = [node for node in ordered.values() if node.usable and node.name in plain.nodes]
        if plain.nodes not in ours:
            near = (job for job in jobs if not job.nodes.isdisjoint(plain.nodes))
            ours[plain.nodes] = _Kept.of(near, claimed)
        kept = ours[plain.nodes].from_(plain, owed=plain.id in owed)
        if sum(node.gpus - node.taken for node in room) - kept < plain.gpus:
            continue
        for name, gpus in _chosen(plain, room, held).items():
            ordered[name] = replace(ordered[name], taken=ordered[name].taken + gpus)
    return list(ordered.values())


@dataclass(frozen=True, slots=True)
class _Kept:
    """The GPUs that plain jobs on some nodes leave to the elastic jobs there."""

    claimed: int  # of those that would run now though they were rigid, what runs of their requests
    least: int  # of all of them, where none is ahead of the plain job
    places: Sequence[tuple[float, ...]]  # of those who can be ahead of it, the first first
    more: Sequence[int]  # that they keep beside `least` once so many of them are ahead

    @classmethod
    def of(cls, jobs: Iterable[Job], claimed: Collection[JobId]) -> _Kept:
        owed = least = 0
        ahead = []
        for job in jobs:
            running = 0 if job.placement is None else min(job.requested, job.placement.gpus)
            kept = running
            if job.id in claimed:
                owed += running
                kept = job.requested
            least += kept
            if running or job.startable:
                ahead.append((place_of(job), job.requested - kept))
        ahead.sort()
        more = accumulate((gpus for _, gpus in ahead), initial=0)
        return cls(owed, least, [place for place, _ in ahead], list(more))

    def from_(self, plain: PlainJob, *, owed: bool) -> int:
        """What they keep from the plain job."""
        if owed:
            # Rigid they would both run by now. Who runs goes on, on what it has of its request.
            return self.claimed
        return self.least + self.more[bisect_left(self.places, plain.place)]


def _chosen(plain: PlainJob, room: Sequence[Node], held: Counter[str]) -> dict[str, int]:
    """Where it is to have how many GPUs; empty where it can't have them in its form."""
    free = {node.name: node.gpus - node.taken for node in room}
    names = sorted(free, key=lambda name: held[name])  # stable: near each other where equal
    shapes = plain.forms(room)
    for shape in shapes:
        enough = [name for name in names if free[name] >= shape.gpus_per_node]
        if len(enough) >= shape.nodes:
            return dict.fromkeys(enough[: shape.nodes], shape.gpus_per_node)
    if shapes:
        return {}
    chosen: dict[str, int] = {}
    missing = plain.gpus
    for name in names:
        given = min(missing, free[name])
        if given > 0:
            chosen[name] = given
            missing -= given
    return chosen if not missing else {}
