"""GPUs kept for jobs that did not opt in: elastic jobs must not grow past a waiting plain job."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from math import floor, inf

from ones.policies.caps import SLACK
from ones.policies.crowding import NOTHING, Amounts, Crowding
from ones.policies.model import Job, JobId, Node, node_order
from ones.policies.rigid import DEPTH, PlainJob, place_of


def reserve(
    nodes: Sequence[Node],
    jobs: Sequence[Job],
    waiting: Sequence[PlainJob],
    *,
    owed: Collection[JobId] = (),
    claimed: Collection[JobId] = (),
    ended: Iterable[tuple[frozenset[str], int]] = (),
) -> list[Node]:
    """The nodes with the GPUs of waiting plain jobs marked as taken, so that plans leave room.

    In Slurm's order. A plain job gets room beyond the requests of the elastic jobs that are ahead
    of it, or that would run by now even if they were rigid: the `claimed`, and those that have
    `ended` sooner than that (the nodes of each, and its GPUs). One that would itself run then
    (`owed`) gets it from what elastic jobs hold beyond the requests of these two, whoever of them
    runs there. Whole it gets it, in its own form, or not at all: half of it would stand empty. The
    room is taken where elastic jobs hold least, so that few make way. Of CPUs and memory it gets
    what it asks for, too: elastic jobs have as many GPUs less on its nodes as these go with. Where
    others outside our hands hold them it gets nothing, for Slurm would not start it.
    """
    held = Counter[str]()
    for job in jobs:
        held.update(dict(job.placement.gpus_on if job.placement else ()))
    ordered = node_order(nodes)
    free = {node.name: node.gpus - node.taken for node in ordered}
    first = sorted(
        waiting,
        key=lambda plain: (plain.id not in owed, *plain.place[:2], plain.expected, plain.place),
    )
    elastic = _Elastic.of(jobs, claimed, ended)
    beside = _Beside(Crowding.of(nodes, jobs), held)
    rooms: dict[frozenset[str], _Room] = {}
    for plain in first[:DEPTH]:
        room = rooms.get(plain.nodes)
        if room is None:
            there = [node for node in ordered if node.usable and node.name in plain.nodes]
            # The sort is stable: near each other where equal.
            names = sorted((node.name for node in there), key=held.__getitem__)
            room = rooms[plain.nodes] = _Room(there, names, elastic.near(plain.nodes))
        kept = room.kept.from_(plain, owed=plain.id in owed)
        if sum(map(free.__getitem__, room.names)) - kept < plain.gpus:
            continue
        chosen = _chosen(plain, room, free, beside)
        left = {
            name: int(min(free[name] - gpus, beside.kept(name, plain.needs(gpus))))
            for name, gpus in chosen.items()
        }
        if sum(free[name] for name in room.names) - kept < sum(free[n] - left[n] for n in left):
            continue  # elastic jobs have a right to what goes with these CPUs
        for name, gpus in chosen.items():
            beside.promise(name, plain.needs(gpus))
        free |= left
    return [
        node
        if node.name not in beside.promised
        else replace(
            node,
            taken=node.gpus - free[node.name],
            cpus=max(0.0, node.cpus - beside.promised[node.name][0]),
            memory=max(0.0, node.memory - beside.promised[node.name][1]),
        )
        for node in ordered
    ]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The GPUs that plain jobs on some nodes leave to the elastic jobs there."""

    claimed: int  # of what they hold, up to the requests of those who would run though rigid
    least: int  # of all of them, where none is ahead of the plain job
    places: Sequence[tuple[float, ...]]  # of those who can be ahead of it, the first first
    more: Sequence[int]  # that they keep beside `least` once so many of them are ahead

    def from_(self, plain: PlainJob, *, owed: bool) -> int:
        """What they keep from the plain job."""
        if owed:
            # Rigid they would all run by now. Elastic jobs may have passed GPUs on among
            # themselves: who stops for another, or ends sooner on more, gives a plain one nothing.
            return self.claimed
        return self.least + self.more[bisect_left(self.places, plain.place)]


@dataclass(frozen=True, slots=True)
class _One:
    """What an elastic job counts for."""

    held: int  # GPUs
    kept: int  # of its request, where it isn't ahead of a plain job
    claimed: bool
    more: tuple[tuple[float, ...], int] | None  # its place, and what it keeps more ahead of one


@dataclass(frozen=True, slots=True)
class _Elastic:
    """The elastic jobs by the nodes on which they may run: most share theirs."""

    on: Mapping[frozenset[str], Sequence[_One]]
    known: dict[frozenset[frozenset[str]], _Kept] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        jobs: Iterable[Job],
        claimed: Collection[JobId],
        ended: Iterable[tuple[frozenset[str], int]],
    ) -> _Elastic:
        on: dict[frozenset[str], list[_One]] = {}
        for job in jobs:
            held = 0 if job.placement is None else job.placement.gpus
            kept = job.requested if job.id in claimed else min(job.requested, held)
            ahead = held or job.startable
            more = (place_of(job), job.requested - kept) if ahead else None
            on.setdefault(job.nodes, []).append(_One(held, kept, job.id in claimed, more))
        for nodes, gpus in ended:
            on.setdefault(nodes, []).append(_One(0, gpus, True, None))
        return cls(on)

    def near(self, nodes: frozenset[str]) -> _Kept:
        """What those keep that may run on some of these nodes."""
        near = frozenset(theirs for theirs in self.on if not theirs.isdisjoint(nodes))
        found = self.known.get(near)
        if found is None:
            jobs = [one for theirs in near for one in self.on[theirs]]
            ahead = sorted(one.more for one in jobs if one.more is not None)
            found = self.known[near] = _Kept(
                claimed=min(
                    sum(one.held for one in jobs),
                    sum(one.kept for one in jobs if one.claimed),
                ),
                least=sum(one.kept for one in jobs),
                places=[place for place, _ in ahead],
                more=list(accumulate((gpus for _, gpus in ahead), initial=0)),
            )
        return found


@dataclass(frozen=True, slots=True)
class _Room:
    """The usable nodes on which a plain job may run."""

    nodes: Sequence[Node]
    names: Sequence[str]  # where elastic jobs hold least first
    kept: _Kept


@dataclass(slots=True)
class _Beside:
    """CPUs and memory of nodes, with what waiting plain jobs have been promised of them."""

    crowding: Crowding
    held: Mapping[str, int]  # GPUs of elastic jobs
    promised: dict[str, Amounts] = field(default_factory=dict)

    def _rest(self, name: str, needs: Amounts) -> Amounts:
        """What elastic jobs could have beside these needs."""
        have = self.crowding.have.get(name, (inf, inf))
        others = self.promised.get(name, NOTHING)
        return have[0] - others[0] - needs[0], have[1] - others[1] - needs[1]

    def has(self, name: str, needs: Amounts) -> bool:
        """Whether there would be so much if all elastic jobs left the node."""
        return min(self._rest(name, needs)) >= -SLACK

    def kept(self, name: str, needs: Amounts) -> float:
        """The most GPUs there that leave elastic jobs no more than the rest."""
        used, rest = self.crowding.used.get(name, NOTHING), self._rest(name, needs)
        shares = [left / has for has, left in zip(used, rest, strict=True) if has > left + SLACK]
        return floor(self.held[name] * max(0.0, min(shares)) + SLACK) if shares else inf

    def promise(self, name: str, needs: Amounts) -> None:
        others = self.promised.get(name, NOTHING)
        self.promised[name] = others[0] + needs[0], others[1] + needs[1]


def _chosen(
    plain: PlainJob, room: _Room, free: Mapping[str, int], beside: _Beside
) -> dict[str, int]:
    """Where it is to have how many GPUs; empty where it can't have them in its form."""
    if not plain.gpus:
        able = (name for name in room.names if beside.has(name, plain.needs(0)))
        enough = list(islice(able, plain.least_nodes))
        return dict.fromkeys(enough, 0) if len(enough) == plain.least_nodes else {}
    shapes = plain.forms(room.nodes)
    for shape in shapes:
        each, needs = shape.gpus_per_node, plain.needs(shape.gpus_per_node)
        able = (name for name in room.names if free[name] >= each and beside.has(name, needs))
        enough = list(islice(able, shape.nodes))
        if len(enough) == shape.nodes:
            return dict.fromkeys(enough, each)
    if shapes:
        return {}
    chosen: dict[str, int] = {}
    missing = plain.gpus
    for name in room.names:
        given = min(missing, free[name])
        if given > 0 and beside.has(name, plain.needs(given)):
            chosen[name] = given
            missing -= given
    return chosen if not missing else {}
