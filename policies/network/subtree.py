"""Our packer: the smallest part of the tree that holds the whole gang, most bandwidth first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ones.policies.model import Ints
from ones.policies.network.best_fit import best_fit
from ones.policies.network.cost import score
from ones.policies.network.gangs import NOWHERE, Batch, Gang
from ones.policies.network.improve import improved
from ones.policies.network.seating import place

Order = Callable[[Batch], Sequence[int]]


def by_bandwidth(batch: Batch) -> Sequence[int]:
    """The gangs that talk most first, then the larger, then the earlier."""
    return _sorted(batch, lambda gang: (-_talk(gang), -gang.gpus))


def by_bandwidth_then_small(batch: Batch) -> Sequence[int]:
    return _sorted(batch, lambda gang: (-_talk(gang), gang.gpus))


def by_traffic(batch: Batch) -> Sequence[int]:
    """By the bandwidth of all tasks together."""
    return _sorted(batch, lambda gang: (-_talk(gang) * len(gang.tasks), -gang.gpus))


def by_size(batch: Batch) -> Sequence[int]:
    return _sorted(batch, lambda gang: (-gang.gpus, -_talk(gang)))


def by_arrival(batch: Batch) -> Sequence[int]:
    return range(len(batch.gangs))


ORDERS: tuple[Order, ...] = (
    by_bandwidth,
    by_bandwidth_then_small,
    by_traffic,
    by_size,
    by_arrival,
)


def packed(batch: Batch) -> Ints:
    """The best of several orders, and of Liquid's best fit, improved: most gangs placed first.

    So it is never worse than immediate mode, ours or Liquid's.
    """
    orders = ORDERS if len(batch.gangs) > 1 else ORDERS[:1]
    tried = [subtree(batch, order=order) for order in orders]
    tried.append(best_fit(batch))
    return improved(batch, min(tried, key=lambda sites: worth(batch, sites)))


def worth(batch: Batch, sites: Ints) -> tuple[int, float]:
    """The fewer tasks are left out the better, then the cheaper."""
    return int((sites == NOWHERE).sum()), float(score(batch, sites))


def subtree(batch: Batch, *, order: Order = by_bandwidth) -> Ints:
    """Every gang in the lowest, tightest subtree with room for all of it, on as few nodes.

    Immediate mode is the same with gangs by arrival.
    """
    sites = batch.nowhere()
    free = batch.free.copy()
    for number in order(batch):
        found = place(batch.topology, free, batch.gangs[number])
        if found is not None:
            sites[batch.tasks_of(number)] = found
            np.subtract.at(free, found, np.array(batch.gangs[number].tasks))
    return sites


def _talk(gang: Gang) -> float:
    """A single task has nobody to talk to, wherever it is."""
    return gang.bandwidth if len(gang.tasks) > 1 else 0.0


def _sorted(batch: Batch, key: Callable[[Gang], tuple[float, float]]) -> Sequence[int]:
    return sorted(range(len(batch.gangs)), key=lambda one: (*key(batch.gangs[one]), one))
