"""When and where a job can first have what it asks for, by what others hold until when.

Slurm's backfill asks the same. Times are looked at one after the other, and of all nodes only those
at which something changes: on a large cluster most of both are alike.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import inf

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Ints, JobId, Node, Placement, Seconds, Shape


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks of Slurm, were every job rigid."""

    id: JobId
    place: tuple[float, ...]
    gpus: int
    nodes: frozenset[str]
    shapes: tuple[Shape, ...]  # empty: any split
    limit: Seconds
    elastic: bool  # which has all its GPUs of one type
    began: Seconds | None  # in truth, its present run
    whole: Seconds | None  # that it takes here from its beginning to its end; None: not known


@dataclass(slots=True)
class Timetable:
    """The GPUs that are free on each node, as time goes on: now, and what changes when."""

    nodes: tuple[Node, ...]
    now: Seconds
    free: Ints  # [nodes] from now on, but for the changes; below 0 where more is held than is there
    index: Mapping[str, int]
    kinds: Ints  # [nodes] GPU type as a number, in the order of their names
    times: list[Seconds]  # at which anything may change, the first first; now is one of them
    changes: dict[Seconds, list[tuple[int, int]]] = field(default_factory=dict)
    """Time -> nodes, and the GPUs that come free there from then on, or are taken: below 0."""
    dips: dict[Seconds, Ints] = field(default_factory=dict)
    """What is free, by node, whenever GPUs are taken after now: between two of these times, and
    between now and the first, it never becomes less."""
    allowed: dict[frozenset[str], NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node], now: Seconds) -> Timetable:
        there = tuple(node for node in nodes if node.usable)
        free = np.array([node.gpus for node in there], dtype=np.int64)
        index = {node.name: at for at, node in enumerate(there)}
        names = sorted({node.gpu_type for node in there})
        kinds = np.array([names.index(node.gpu_type) for node in there], dtype=np.int64)
        return cls(there, now, free, index, kinds, [now])

    def take(self, placement: Placement, begin: Seconds, end: Seconds) -> None:
        held = [(self.index[name], gpus) for name, gpus in placement.gpus_on if name in self.index]
        if begin > self.now and begin not in self.dips:
            self.dips[begin] = self._at(begin)
        for time, dip in self.dips.items():
            if begin <= time < end:
                for node, gpus in held:
                    dip[node] -= gpus
        if begin <= self.now:
            for node, gpus in held:
                self.free[node] -= gpus
        else:
            self._change(begin, [(node, -gpus) for node, gpus in held])
        if end < inf:
            self._change(end, held)

    def _change(self, time: Seconds, held: Iterable[tuple[int, int]]) -> None:
        if time not in self.changes:
            self.changes[time] = []
            if time > self.now:
                insort(self.times, time)
        self.changes[time] += held

    def _at(self, time: Seconds) -> Ints:
        """What is free then."""
        row = self.free.copy()
        for each in self.times[1 : bisect_right(self.times, time)]:
            for node, gpus in self.changes[each]:
                row[node] += gpus
        return row

    def earliest(self, job: Request, *, until: Seconds = inf) -> tuple[Seconds, Placement] | None:
        """When, by then, and where it can first have what it asks for, as long as it may run."""
        allowed = self.allowed.get(job.nodes)
        if allowed is None:
            allowed = np.array([node.name in job.nodes for node in self.nodes], dtype=np.bool_)
            self.allowed[job.nodes] = allowed
        if until <= self.now and self.free[allowed].clip(0).sum() < job.gpus:
            return None
        room = _Vacant(job, self.free, allowed, self.kinds)
        for time in self.times:
            if time > until:
                break
            if time > self.now:
                room.change(self.changes[time])
            if room.may_fit():
                dips = (dip for at, dip in self.dips.items() if time < at < time + job.limit)
                lowest = reduce(np.minimum, dips, room.free)
                placement = self.fit(job, np.where(allowed, lowest.clip(0), 0))
                if placement is not None:
                    return time, placement
        return None

    def fit(self, job: Request, free: Ints) -> Placement | None:
        """Where it would go with so many GPUs free on each node: the fullest that will do."""
        kinds = self.kinds if job.elastic else np.zeros_like(self.kinds)
        for kind in range(kinds.max(initial=-1) + 1):
            there = np.where(kinds == kind, free, 0)
            for shape in job.shapes:
                enough = np.flatnonzero(there >= shape.gpus_per_node)
                if len(enough) >= shape.nodes:
                    chosen = enough[np.argsort(there[enough], kind="stable")][: shape.nodes]
                    return Placement.of(
                        {self.nodes[at].name: shape.gpus_per_node for at in chosen.tolist()}
                    )
            if not job.shapes and there.sum() >= job.gpus:
                given, missing = {}, job.gpus
                for at in np.argsort(-there, kind="stable").tolist():
                    given[self.nodes[at].name] = min(missing, int(there[at]))
                    missing -= given[self.nodes[at].name]
                return Placement.of(given)
        return None


class _Vacant:
    """What is free for one job as time goes on, and whether its request can fit in at all.

    Counted from change to change, because most times nothing fits, and all nodes are many.
    """

    def __init__(self, job: Request, free: Ints, allowed: NDArray[np.bool_], kinds: Ints) -> None:
        self.free = free.copy()
        self._gpus = job.gpus
        self._shapes = job.shapes
        self._allowed = allowed
        self._kinds = kinds if job.elastic else np.zeros_like(kinds)
        self._total = int(free[allowed].clip(0).sum())
        count = int(self._kinds.max(initial=0)) + 1
        self._enough = [  # [shapes][kinds] nodes that have as many GPUs free as it wants of each
            np.bincount(
                self._kinds[allowed & (free >= shape.gpus_per_node)], minlength=count
            ).tolist()
            for shape in job.shapes
        ]

    def change(self, changes: Iterable[tuple[int, int]]) -> None:
        """So many more GPUs, or fewer, on these nodes."""
        for node, gpus in changes:
            before = int(self.free[node])
            after = before + gpus
            self.free[node] = after
            if self._allowed[node]:
                self._total += max(after, 0) - max(before, 0)
                for shape, enough in zip(self._shapes, self._enough, strict=True):
                    each = shape.gpus_per_node
                    enough[self._kinds[node]] += (after >= each) - (before >= each)

    def may_fit(self) -> bool:
        """Whether there is enough, before anybody looks at what is taken later."""
        if self._total < self._gpus:
            return False
        return not self._shapes or any(
            count >= shape.nodes
            for shape, enough in zip(self._shapes, self._enough, strict=True)
            for count in enough
        )
