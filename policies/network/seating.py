"""Where one gang goes: the lowest, tightest subtree with room for all of it, on few nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Ints
from ones.policies.network.gangs import Gang, hosts_of
from ones.policies.network.topology import Topology


def place(topology: Topology, free: Ints, gang: Gang) -> Ints | None:
    """The node of each of the gang's tasks, servers where they are nearest to their workers."""
    largest = max(gang.tasks)
    able = hosts_of(gang, free, min(gang.tasks))
    if int(free[able].sum()) < gang.gpus:
        return None
    if min(gang.tasks) == largest:
        most = 1 if gang.apart else len(gang.tasks)
        room = np.where(able, np.minimum(free // largest, most), 0)
        counts = seats(topology, room, free, len(gang.tasks), largest)
        return None if counts is None else _seated(topology, gang, counts)
    return _unequal(topology, gang, np.where(able, free, 0))


def seats(topology: Topology, room: Ints, free: Ints, wanted: int, gpus: int = 1) -> Ints | None:
    """[nodes] how many of `wanted` equal tasks go where, each node having `room` for some.

    Among subtrees of a level the one that needs the fewest parts below, then the fullest.
    """
    alone = np.flatnonzero(room >= wanted)
    if len(alone):
        inside = topology.inside
        joins = (
            np.zeros(len(alone))
            if inside is None
            else np.array([inside[node][wanted * gpus] for node in alone])
        )
        best = alone[np.lexsort((alone, free[alone], joins))[0]]
        return _only(len(room), best, wanted)
    total = int(room.sum())
    if total < wanted:
        return None
    parts = room
    inner = np.arange(len(room))  # the part of each node
    for level in range(topology.levels):
        switch = topology.above[level]
        holds = np.bincount(switch, weights=room).astype(np.int64)
        able = holds >= wanted
        if able.any():
            outer = switch[np.unique(inner, return_index=True)[1]]  # the switch of each part
            few = _parts_needed(outer, parts, wanted, len(holds))
            candidates = np.flatnonzero(able)
            order = np.lexsort((candidates, holds[candidates], few[candidates]))
            chosen = candidates[order[0]]
            return _Nodes(topology, room, free).fill(level, switch == chosen, wanted)
        parts, inner = holds, switch
    return None


def _parts_needed(outer: Ints, parts: Ints, wanted: int, switches: int) -> Ints:
    """[switches] how many of the parts under each it takes to hold `wanted`, fullest first."""
    order = np.lexsort((-parts, outer))
    running = np.cumsum(parts[order])
    group = outer[order]
    first = np.searchsorted(group, np.arange(switches))
    before = np.where(first > 0, running[np.maximum(first - 1, 0)], 0)
    short = (running - before[group]) < wanted
    return np.bincount(group, weights=short, minlength=switches).astype(np.int64) + 1


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes of a cluster with their room for tasks of a kind, and what is free on them."""

    topology: Topology
    room: Ints
    free: Ints

    def fill(self, level: int, under: NDArray[np.bool_], wanted: int) -> Ints:
        """So many tasks under one switch: the fullest parts whole, the rest where it fits best."""
        nodes = np.flatnonzero(under & (self.room >= wanted))
        if len(nodes):
            return _only(len(self.room), nodes[self.free[nodes].argmin()], wanted)
        if level == 0:
            return self._fill_leaf(np.flatnonzero(under & (self.room > 0)), wanted)
        counts = np.zeros(len(self.room), dtype=np.int64)
        nodes = np.flatnonzero(under & (self.room > 0))
        switch = self.topology.above[level - 1]
        numbers, part = np.unique(switch[nodes], return_inverse=True)
        holds = np.bincount(part, weights=self.room[nodes]).astype(np.int64)
        while wanted:
            holding = np.flatnonzero(holds >= wanted)
            at = holding[holds[holding].argmin()] if len(holding) else holds.argmax()
            some = min(wanted, int(holds[at]))
            counts += self.fill(level - 1, under & (switch == numbers[at]), some)
            wanted -= some
            holds[at] = 0
        return counts

    def _fill_leaf(self, nodes: Ints, wanted: int) -> Ints:
        counts = np.zeros(len(self.room), dtype=np.int64)
        while wanted:
            holding = nodes[self.room[nodes] >= wanted]
            if len(holding):
                counts[holding[self.free[holding].argmin()]] = wanted
                return counts
            at = nodes[np.lexsort((self.free[nodes], -self.room[nodes]))[0]]
            counts[at] = self.room[at]
            wanted -= int(self.room[at])
            nodes = nodes[nodes != at]
        return counts


def _only(nodes: int, at: np.int64, wanted: int) -> Ints:
    counts = np.zeros(nodes, dtype=np.int64)
    counts[at] = wanted
    return counts


def _seated(topology: Topology, gang: Gang, counts: Ints) -> Ints:
    """Equal tasks by their number on each node: servers next to as many workers as possible."""
    nodes = np.flatnonzero(counts)
    if not gang.servers or len(nodes) == 1:
        return np.repeat(nodes, counts[nodes])
    far = topology.distance(nodes[:, None], nodes[None, :])
    left = counts[nodes].copy()
    servers: list[int] = []
    for _ in range(gang.servers):
        cost = far @ left - far.diagonal()  # the others, itself being no worker
        at = int(np.where(left > 0, cost, np.inf).argmin())
        servers.append(at)
        left[at] -= 1
    return np.concatenate([nodes[servers], np.repeat(nodes, left)])


def _unequal(topology: Topology, gang: Gang, free: Ints) -> Ints | None:
    """Tasks of several sizes: largest first onto the emptiest nodes of ever larger subtrees."""
    sizes = np.array(gang.tasks)
    order = np.argsort(-sizes, kind="stable")
    levels: list[Ints] = [np.arange(len(free)), *topology.above]
    for switch in levels:
        holds = np.bincount(switch, weights=free).astype(np.int64)
        able = np.flatnonzero(holds >= gang.gpus)
        for chosen in able[np.argsort(holds[able], kind="stable")]:
            nodes = np.flatnonzero((switch == chosen) & (free > 0))
            if (found := _first_fit(nodes, free, sizes, order, apart=gang.apart)) is not None:
                return found
    return None


def _first_fit(nodes: Ints, free: Ints, sizes: Ints, order: Ints, *, apart: bool) -> Ints | None:
    left = free[nodes].astype(np.float64)
    by_room = np.argsort(-left, kind="stable")
    nodes, left = nodes[by_room], left[by_room]
    found = np.zeros(len(sizes), dtype=np.int64)
    for task in order:
        able = left >= sizes[task]
        if not able.any():
            return None
        at = int(able.argmax())
        found[task] = nodes[at]
        left[at] = -1.0 if apart else left[at] - sizes[task]
    return found
