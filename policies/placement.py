"""Where a shape goes: fewest switches, then fewest nodes, whole nodes first, else the best fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Ints, Job, Node, Placement, Shape, node_order

_FAR = 2**40  # by which a job's own nodes go before all others


@dataclass(frozen=True, slots=True)
class _Floor:
    """What doesn't change of a cluster while a plan is drawn up; arrays are in topology order."""

    nodes: tuple[Node, ...]
    index: Mapping[str, int]
    usable: NDArray[np.bool_]
    kind: Ints  # GPU type as a number
    kinds: tuple[str, ...]
    above: Ints  # [levels, nodes] the switch at each level, leaf first, as a number
    hosts: dict[frozenset[str], tuple[Ints, ...]] = field(default_factory=dict)
    most: dict[int, tuple[Mapping[str, int], Ints]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> _Floor:
        ordered = tuple(node_order(nodes))
        kinds = tuple(dict.fromkeys(node.gpu_type for node in ordered))
        levels = max((len(node.switches) for node in ordered), default=0)
        above = np.zeros((max(levels, 1), len(ordered)), dtype=np.int64)
        for level in range(levels):
            names: dict[str, int] = {}
            for i, node in enumerate(ordered):
                switch = node.switches[level] if level < len(node.switches) else ""
                above[level, i] = names.setdefault(switch, len(names))
        return cls(
            ordered,
            {node.name: i for i, node in enumerate(ordered)},
            np.array([node.usable for node in ordered], dtype=np.bool_),
            np.array([kinds.index(node.gpu_type) for node in ordered], dtype=np.int64),
            kinds,
            above,
        )

    def among(self, allowed: Collection[str]) -> tuple[Ints, ...]:
        """The allowed nodes of each GPU type; remembered: jobs of a partition share theirs."""
        key = allowed if isinstance(allowed, frozenset) else frozenset(allowed)
        found = self.hosts.get(key)
        if found is None:
            mask = np.array([node.name in key for node in self.nodes], dtype=np.bool_)
            found = tuple(np.flatnonzero(mask & (self.kind == t)) for t in range(len(self.kinds)))
            self.hosts[key] = found
        return found

    def bounded(self, crowded: Mapping[str, int]) -> Ints:
        """GPUs that a job can have of each node; remembered: jobs that take alike share theirs."""
        found = self.most.get(id(crowded))
        if found is None:
            names = ((node.name, node.gpus) for node in self.nodes)
            most = np.array([crowded.get(name, gpus) for name, gpus in names], dtype=np.int64)
            found = self.most[id(crowded)] = crowded, most
        return found[1]


@dataclass(slots=True)
class Room:
    """The free GPUs of each usable node while a plan is being drawn up."""

    _floor: _Floor
    _free: Ints  # none on nodes that are not usable

    @classmethod
    def of(cls, nodes: Sequence[Node], held: Iterable[Placement] = ()) -> Room:
        """What is free on usable nodes once jobs that did not opt in, and `held`, have theirs."""
        floor = _Floor.of(nodes)
        free = [max(0, node.gpus - node.taken) if node.usable else 0 for node in floor.nodes]
        room = cls(floor, np.array(free, dtype=np.int64))
        for placement in held:
            room.take(placement)
        return room

    def copy(self) -> Room:
        return Room(self._floor, self._free.copy())

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in topology order."""
        return self._floor.nodes

    @property
    def free(self) -> dict[str, int]:
        """The free GPUs of each usable node."""
        pairs = zip(self._floor.nodes, self._free.tolist(), strict=True)
        return {node.name: gpus for node, gpus in pairs if node.usable}

    def free_on(self, name: str) -> int:
        """The free GPUs of a node."""
        return int(self._free[self._floor.index[name]])

    def position(self, name: str) -> int:
        """A node's place in topology order."""
        return self._floor.index[name]

    def node(self, name: str) -> Node | None:
        index = self._floor.index.get(name)
        return None if index is None else self._floor.nodes[index]

    @property
    def gpus(self) -> int:
        """Free GPUs in all."""
        return int(self._free.sum())

    def fits(self, placement: Placement) -> bool:
        index, free = self._floor.index, self._free
        return all(name in index and free[index[name]] >= gpus for name, gpus in placement.gpus_on)

    def take(self, placement: Placement) -> None:
        """Book the GPUs; a node that is not usable, or fuller than it can be, stays at nothing."""
        for name, gpus in placement.gpus_on:
            i = self._floor.index.get(name)
            if i is not None:
                self._free[i] = max(0, self._free[i] - gpus)

    def give_back(self, placement: Placement) -> None:
        for name, gpus in placement.gpus_on:
            i = self._floor.index.get(name)
            if i is not None and self._floor.usable[i]:
                self._free[i] += gpus

    def leave(self, empty: Room, used: Mapping[str, int], names: Iterable[str]) -> None:
        """On these nodes leave what is free in `empty` beyond what is used there."""
        for name in names:
            i = self._floor.index.get(name)
            if i is not None:
                self._free[i] = max(0, empty._free[i] - max(0, used[name]))

    def place(
        self,
        shape: Shape,
        allowed: Collection[str],
        *,
        gpu_type: str | None = None,
        near: Placement | None = None,
        crowded: Mapping[str, int] | None = None,
    ) -> Placement | None:
        """Nodes for `shape` among `allowed`, all of one GPU type; None where it doesn't fit.

        Nodes that `near` (usually the job's present placement) uses are taken first. Of `crowded`
        ones no more GPUs are taken than these can give.
        """
        if near is not None and near.shape == shape and self._suits(near, allowed, gpu_type):
            return near
        floor, each = self._floor, shape.gpus_per_node
        most = floor.bounded(crowded) if crowded else None
        fit: Ints | None = None
        found: list[Ints] = []
        for kind, hosts in zip(floor.kinds, floor.among(allowed), strict=True):
            if gpu_type not in (None, kind) or len(hosts) < shape.nodes:
                continue
            able = hosts[self._free[hosts] >= each]
            if most is not None:
                able = able[most[able] >= each]
            if len(able) < shape.nodes:
                continue
            if fit is None:
                # Its own nodes first, then those where it leaves the smallest gap.
                fit = self._free - each
                for name in near.nodes if near else ():
                    if name in floor.index:
                        fit[floor.index[name]] -= _FAR
            found.append(self._closest(able, fit, shape.nodes))
        if not found:
            return None
        best = found[0] if len(found) == 1 else min(found, key=self._cost)
        return Placement.of({floor.nodes[i].name: each for i in best.tolist()})

    def _cost(self, hosts: Ints) -> tuple[int, int]:
        """Leaf switches, and what is free there."""
        return len(np.unique(self._floor.above[0][hosts])), int(self._free[hosts].sum())

    def place_job(
        self, job: Job, shapes: Iterable[Shape], *, gpu_type: str | None = None
    ) -> Placement | None:
        """The first of `shapes` that finds room on the job's nodes."""
        for shape in shapes:
            placement = self.place(
                shape, job.nodes, gpu_type=gpu_type, near=job.placement, crowded=job.crowded
            )
            if placement is not None:
                return placement
        return None

    def holds(self, job: Job) -> bool:
        """Whether some size that the job accepts finds room on its nodes."""
        if not job.uneven:
            return self.place_job(job, job.shapes) is not None
        among = self._floor.among(job.nodes)
        return any(self._free[hosts].sum() >= job.sizes.least for hosts in among)

    def _suits(self, placement: Placement, allowed: Collection[str], gpu_type: str | None) -> bool:
        floor, free = self._floor, self._free
        kinds = set()
        for name, gpus in placement.gpus_on:
            i = floor.index.get(name)
            if i is None or name not in allowed or free[i] < gpus:
                return False
            kinds.add(floor.kinds[floor.kind[i]])
        return len(kinds) == 1 and gpu_type in (None, *kinds)

    def _closest(self, hosts: Ints, fit: Ints, wanted: int) -> Ints:
        """`wanted` of the hosts under the lowest switch that has enough of them."""
        if wanted == 1:
            return self._one(hosts, fit)
        for level, above in enumerate(self._floor.above):
            switch = above[hosts]
            count = np.bincount(switch)
            enough = count >= wanted
            if enough.any():
                # The fullest switch that holds it, so that larger gaps stay whole.
                tightest = np.full(len(count), _FAR)
                np.minimum.at(tightest, switch, fit[hosts])
                able = np.flatnonzero(enough)
                group = able[np.lexsort((count[able], tightest[able]))[0]]
                return self._under(level, hosts[switch == group], fit, wanted)
        return self._under(len(self._floor.above), hosts, fit, wanted)

    def _one(self, hosts: Ints, fit: Ints) -> Ints:
        """The best fit; of several the first below the fullest switch."""
        gaps = fit[hosts]
        best: Ints = hosts[gaps == gaps.min()]
        if len(best) > 1:
            leaf = self._floor.above[0]
            switch = leaf[best]
            count = np.bincount(leaf[hosts])[switch]
            best = best[np.lexsort((switch, count))]
        return best[:1]

    def _under(self, level: int, hosts: Ints, fit: Ints, wanted: int) -> Ints:
        """`wanted` of the hosts, all below a switch of this level, under few switches below it."""
        if level == 0:
            return hosts[np.argsort(fit[hosts], kind="stable")][:wanted]
        switch = self._floor.above[level - 1][hosts]
        count = np.bincount(switch)
        chosen: list[Ints] = []
        missing = wanted
        while missing:
            holding = np.flatnonzero(count >= missing)
            at = holding[count[holding].argmin()] if len(holding) else count.argmax()
            here = hosts[switch == at]
            taken = self._under(level - 1, here, fit, min(missing, len(here)))
            chosen.append(taken)
            missing -= len(taken)
            count[at] = 0
        return np.concatenate(chosen)
