"""Liquid's immediate mode: each task goes where it adds least to the cost (Liquid §2.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Floats, Ints
from ones.policies.network.gangs import NOWHERE, Batch, Gang, hosts_of, interleaved

CANDIDATES = 3, 5  # nodes looked at: so many times the tasks, and so many more


def best_fit(batch: Batch, *, cap: bool = True) -> Ints:
    """The gangs one after another, their tasks servers and workers in turn.

    With `cap` a gang looks at 3 * tasks + 5 nodes only, as published, in the order of Liquid's
    resource pool: that of a hash of their names, which has nothing to do with the network.
    """
    sites = batch.nowhere()
    free = batch.free.copy()
    order = _hash_order([node.name for node in batch.topology.nodes])
    used = np.zeros(len(free), dtype=np.bool_)
    for number, gang in enumerate(batch.gangs):
        able = order[hosts_of(gang, free, min(gang.tasks))[order]]
        if cap:
            able = able[: CANDIDATES[0] * len(gang.tasks) + CANDIDATES[1]]
        found = _place(batch, gang, able, free, used)
        if found is not None:
            sites[batch.tasks_of(number)] = found
            np.subtract.at(free, found, np.array(gang.tasks))
            used[found] = True
    return sites


def _place(
    batch: Batch, gang: Gang, nodes: Ints, free: Ints, used: NDArray[np.bool_]
) -> Ints | None:
    """The gang's tasks on these nodes; None where one of them finds no room."""
    topology = batch.topology
    sites = np.full(len(gang.tasks), NOWHERE, dtype=np.int64)
    left = free[nodes].copy()
    total = topology.gpus[nodes]
    count = len(batch.gang_of)
    opened = used[nodes].copy()
    far = _Far(batch, gang, nodes)
    for task in interleaved(gang):
        gpus = gang.tasks[task]
        able = left >= gpus
        if gang.apart:
            able &= ~np.isin(nodes, sites)
        if not able.any():
            return None
        # Servers spread over idle nodes, workers pack onto busy ones.
        load = (total - left + 1 + gpus) / np.maximum(total, 1)
        sign = 1.0 if task < gang.servers else -1.0
        cost = far.added(task) + sign * load / count + ~opened / count
        at = int(np.where(able, cost, np.inf).argmin())
        sites[task] = nodes[at]
        left[at] -= gpus
        opened[at] = True
        far.seat(task, int(nodes[at]))
    return sites


class _Far:
    """What each candidate would add to the network cost of a gang that is half seated."""

    def __init__(self, batch: Batch, gang: Gang, nodes: Ints) -> None:
        self._topology, self._gang, self._nodes = batch.topology, gang, nodes
        self._servers = np.zeros(len(nodes))  # summed distance to the servers that are seated
        self._workers = np.zeros(len(nodes))
        self._nearest = np.full(len(nodes), np.inf)  # to any that is seated
        self._furthest = np.zeros(len(nodes))
        self._widest = 0.0  # between any two that are seated

    def added(self, task: int) -> Floats:
        gang = self._gang
        if gang.servers:
            far = self._workers if task < gang.servers else self._servers
            return gang.bandwidth * far
        hop = np.where(np.isfinite(self._nearest), self._nearest, 0.0)
        if not gang.tree:
            hop = hop + np.maximum(self._furthest - self._widest, 0.0)
        return np.asarray(gang.bandwidth * hop)

    def seat(self, task: int, node: int) -> None:
        far = self._topology.distance(self._nodes, np.array(node))
        if task < self._gang.servers:
            self._servers += far
        else:
            self._workers += far
        at = np.flatnonzero(self._nodes == node)[0]
        self._widest = max(self._widest, float(self._furthest[at]))
        self._nearest = np.minimum(self._nearest, far)
        self._furthest = np.maximum(self._furthest, far)


def _hash_order(names: Sequence[str]) -> Ints:
    """Node numbers by the FNV-32a hash of their names, the key of Liquid's pool (Liquid §3.4)."""
    hashes = []
    for name in names:
        value = 0x811C9DC5
        for byte in name.encode():
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
        hashes.append(value)
    return np.argsort(np.array(hashes, dtype=np.int64), kind="stable")
