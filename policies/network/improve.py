"""A placement made cheaper without ever being made worse: gangs change places, or move."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from ones.policies.model import Floats, Ints
from ones.policies.network.cost import least_cost, network_cost
from ones.policies.network.gangs import NOWHERE, Batch, Gang
from ones.policies.network.seating import place

PASSES = 3
GAIN = 1e-9


def improved(batch: Batch, sites: Ints) -> Ints:
    """The places dealt out anew among gangs alike, and dear gangs moved where there is room."""
    present = sites
    for _ in range(PASSES):
        before = float(network_cost(batch, present).sum())
        present = relocated(batch, exchanged(batch, present))
        if float(network_cost(batch, present).sum()) > before - GAIN:
            break
    return present


def exchanged(batch: Batch, sites: Ints) -> Ints:
    """Of gangs alike but for their bandwidth, who talks most gets the places that cost least."""
    unit = _unit_costs(batch, sites)
    alike: dict[Hashable, list[int]] = {}
    for number, gang in enumerate(batch.gangs):
        if len(gang.tasks) > 1 and sites[batch.starts[number]] != NOWHERE:
            alike.setdefault(_form(gang), []).append(number)
    found = sites.copy()
    for numbers in alike.values():
        cheap = sorted(numbers, key=lambda one: (unit[one], one))
        loud = sorted(numbers, key=lambda one: (-batch.gangs[one].bandwidth, unit[one], one))
        for talker, place_of in zip(loud, cheap, strict=True):
            found[batch.tasks_of(talker)] = sites[batch.tasks_of(place_of)]
    return found


def relocated(batch: Batch, sites: Ints) -> Ints:
    """Every gang that might cost less, the dearest first, where it would now."""
    free = batch.free.copy()
    there = sites != NOWHERE
    np.subtract.at(free, sites[there], batch.gpus_of[there])
    found = sites.copy()
    cost = network_cost(batch, sites)
    spare = cost - least_cost(batch)
    for number in np.argsort(-cost, kind="stable"):
        if spare[number] <= GAIN:
            continue
        part, gang = batch.tasks_of(number), batch.gangs[number]
        np.add.at(free, found[part], batch.gpus_of[part])
        moved = place(batch.topology, free, gang)
        if moved is not None:
            alone = Batch(batch.topology, batch.free, (gang,))
            if float(network_cost(alone, moved)[0]) < cost[number] - GAIN:
                found[part] = moved
        np.subtract.at(free, found[part], batch.gpus_of[part])
    return found


def _unit_costs(batch: Batch, sites: Ints) -> Floats:
    """What each gang's place would cost at a bandwidth of 1."""
    equal = tuple(replace(gang, bandwidth=1.0) for gang in batch.gangs)
    return network_cost(Batch(batch.topology, batch.free, equal), sites)


def _form(gang: Gang) -> Hashable:
    where = None if gang.where is None else gang.where.tobytes()
    return gang.tasks, gang.servers, gang.tree, gang.apart, where
