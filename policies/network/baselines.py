"""Placements to compare with: random, spread, pack, and what Slurm's tree plugin would choose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Ints
from ones.policies.network.gangs import NOWHERE, Batch, Gang, hosts_of, interleaved
from ones.policies.network.topology import Topology

_Choice = Callable[[Ints], int]  # among free GPUs of the nodes that can take a task: which


def random_fit(batch: Batch, rng: np.random.Generator) -> Ints:
    """Every task on any node with room."""
    return _one_by_one(batch, lambda free: int(rng.integers(len(free))))


def spread(batch: Batch) -> Ints:
    """Every task on the node with the most free GPUs."""
    return _one_by_one(batch, lambda free: int(free.argmax()))


def pack(batch: Batch) -> Ints:
    """Every task on the node with the fewest free GPUs that holds it."""
    return _one_by_one(batch, lambda free: int(free.argmin()))


def slurm(batch: Batch) -> Ints:
    """What Slurm's topology/tree does for tasks of equal size, nodes being of equal weight.

    It starts from the leaf switch with the fewest available nodes among those that hold what is
    missing, or else lies under the best such switch above, or else has the most nodes; then goes
    on to the nearest leaf that fits, and so forth. On a leaf nodes are taken in their order, each
    as full as it gets. Nodes, not GPUs, are counted to tell which leaf fits best. Gangs of unequal
    tasks are counted by their largest.
    """
    sites = batch.nowhere()
    free = batch.free.copy()
    for number, gang in enumerate(batch.gangs):
        largest = max(gang.tasks)
        room = np.where(hosts_of(gang, free, largest), free // largest, 0)
        room = np.minimum(room, 1 if gang.apart else len(gang.tasks))
        if room.sum() < len(gang.tasks):
            continue
        found: list[int] = []
        for node in _slurm_order(batch.topology, room, len(gang.tasks)):
            found += [node] * min(int(room[node]), len(gang.tasks) - len(found))
        sites[batch.tasks_of(number)] = found
        np.subtract.at(free, np.array(found), np.array(gang.tasks))
    return sites


def _one_by_one(batch: Batch, choose: _Choice) -> Ints:
    sites = batch.nowhere()
    free = batch.free.copy()
    for number, gang in enumerate(batch.gangs):
        found = _seat(gang, free, choose)
        if found is not None:
            sites[batch.tasks_of(number)] = found
            np.subtract.at(free, found, np.array(gang.tasks))
    return sites


def _seat(gang: Gang, free: Ints, choose: _Choice) -> Ints | None:
    sites = np.full(len(gang.tasks), NOWHERE, dtype=np.int64)
    left = free.copy()
    for task in interleaved(gang):
        able = hosts_of(gang, left, gang.tasks[task])
        if gang.apart:
            able[sites[sites != NOWHERE]] = False
        nodes = np.flatnonzero(able)
        if not len(nodes):
            return None
        sites[task] = nodes[choose(left[nodes])]
        left[sites[task]] -= gang.tasks[task]
    return sites


def _slurm_order(topology: Topology, room: Ints, missing: int) -> list[int]:
    """Nodes with room, leaf switch by leaf switch, until they hold what is missing."""
    above = topology.above
    has = (room > 0).astype(np.int64)
    nodes = [np.bincount(row, weights=has).astype(np.int64) for row in above]
    holds = [np.bincount(row, weights=room).astype(np.int64) for row in above]
    paths: NDArray[np.int64] = np.unique(above.T, axis=0)  # [leaves, levels]
    far = np.zeros(len(paths))  # summed number of levels to the leaves taken so far
    open_ = nodes[0][paths[:, 0]] > 0
    order: list[int] = []
    while missing > 0:
        best = -1
        for leaf in np.flatnonzero(open_):
            if best < 0:
                best = int(leaf)
                continue
            fits, better = _compare(paths[leaf], paths[best], nodes, holds, missing)
            nearer = far[leaf] < far[best] and fits
            if nearer or (far[leaf] == far[best] and better > 0):
                best = int(leaf)
        here = np.flatnonzero((above[0] == paths[best, 0]) & (room > 0))
        order += here.tolist()
        missing -= int(room[here].sum())
        open_[best] = False
        for level, switch in enumerate(paths[best]):
            nodes[level][switch] -= len(here)
        far += (paths != paths[best]).sum(axis=1)
    return order


def _compare(
    one: Ints, other: Ints, nodes: list[Ints], holds: list[Ints], missing: int
) -> tuple[bool, int]:
    """Whether the first of two leaves or a switch above it fits; > 0 where it is the better."""
    fits = False
    for level in range(len(one)):
        i, j = one[level], other[level]
        fits, rival = bool(holds[level][i] >= missing), bool(holds[level][j] >= missing)
        if fits != rival:
            return fits, 1 if fits else -1
        if fits:
            return fits, int(np.sign(nodes[level][j] - nodes[level][i]))
        if level + 1 == len(one) or one[level + 1] == other[level + 1]:
            return fits, int(np.sign(nodes[level][i] - nodes[level][j]))
    return fits, 0
