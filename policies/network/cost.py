"""What the places of tasks cost on the network: Liquid's score (Liquid §2.1).

A server and a worker cost their job's bandwidth times their distance. An all-reduce costs it for
every hop between ranks in topology order, the best order there is; a ring closes with one more hop
over the largest distance, a tree doesn't.
"""

from __future__ import annotations

import numpy as np

from ones.policies.model import Floats, Ints
from ones.policies.network.gangs import NOWHERE, Batch


def network_cost(batch: Batch, sites: Ints) -> Floats:
    """[..., gangs] the network cost of each gang for [..., tasks] nodes; of one nowhere, 0."""
    gangs = batch.gangs
    many = np.atleast_2d(sites)
    rows = np.arange(len(many))[:, None] * len(gangs)
    cost = np.zeros(len(many) * len(gangs))
    if not len(gangs):
        return np.asarray(cost.reshape(*np.shape(sites)[:-1], 0))
    topology = batch.topology

    def add(gang: Ints, hops: Floats) -> None:
        nonlocal cost
        cost += np.bincount((rows + gang).ravel(), weights=hops.ravel(), minlength=len(cost))

    servers, workers = batch.pairs
    if len(servers):
        u, v = many[:, servers], many[:, workers]
        add(batch.gang_of[servers], np.where(u == NOWHERE, 0.0, topology.distance(u, v)))
    reduces = np.array([gang.servers == 0 for gang in gangs])
    tasks = np.flatnonzero(reduces[batch.gang_of])
    if len(tasks):
        key = len(topology.nodes) + 1
        ordered = np.sort(batch.gang_of[tasks] * key + many[:, tasks] + 1, axis=1)
        gang, node = ordered // key, ordered % key - 1
        hop = np.where(
            (gang[:, 1:] == gang[:, :-1]) & (node[:, 1:] != NOWHERE),
            topology.distance(node[:, 1:], node[:, :-1]),
            0.0,
        )
        add(gang[:, 1:], hop)
        rings = np.array([one.pattern == "ring" and len(one.tasks) > 1 for one in gangs])
        closing = np.flatnonzero(rings)
        first = np.searchsorted(batch.gang_of[tasks], closing)
        last = np.searchsorted(batch.gang_of[tasks], closing, side="right") - 1
        ends = node[:, first], node[:, last]
        add(closing, np.where(ends[0] == NOWHERE, 0.0, topology.distance(*ends)))
    each = cost.reshape(len(many), len(gangs))
    if topology.inside is not None:
        each = each + _inside(batch, many)
    each = each * np.array([gang.bandwidth for gang in gangs])
    return np.asarray(each.reshape(*np.shape(sites)[:-1], len(gangs)))


def least_cost(batch: Batch) -> Floats:
    """[gangs] what none of them can cost less than, even on an empty cluster."""
    topology = batch.topology
    if topology.inside is not None or not len(topology.nodes):
        return np.zeros(len(batch.gangs))
    largest = int(topology.gpus.max())
    near, step = topology.within, float(topology.steps[0])
    bounds = []
    for gang in batch.gangs:
        count = len(gang.tasks)
        nodes = count if gang.apart else -(-gang.gpus // max(1, largest))
        if gang.servers:
            pairs = gang.servers * (count - gang.servers)
            hops = pairs * (step if gang.apart else near)
        else:
            closing = float(gang.pattern == "ring" and count > 1)
            hops = (nodes - 1) * step + (count - nodes) * near
            hops += closing * (step if nodes > 1 else near)
        bounds.append(gang.bandwidth * hops)
    return np.array(bounds)


def used_nodes(sites: Ints) -> Ints:
    """[...] how many nodes are used."""
    ordered = np.sort(np.atleast_2d(sites), axis=1)
    if not ordered.shape[1]:
        return np.zeros(np.shape(sites)[:-1], dtype=np.int64)
    new = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1) + 1
    return np.asarray((new - (ordered[:, 0] == NOWHERE)).reshape(np.shape(sites)[:-1]))


def score(batch: Batch, sites: Ints) -> Floats:
    """[...] Liquid's score without its load term: network cost + used nodes / tasks."""
    nodes = used_nodes(sites) / max(1, len(batch.gang_of))
    return np.asarray(network_cost(batch, sites).sum(axis=-1) + nodes)


def _inside(batch: Batch, many: Ints) -> Floats:
    """What the hops within nodes cost beyond `within`, by the NVLink of each node."""
    topology = batch.topology
    assert topology.inside is not None
    extra = np.zeros((len(many), len(batch.gangs)))
    for row, sites in enumerate(many):
        for number, gang in enumerate(batch.gangs):
            part = batch.tasks_of(number)
            nodes = sites[part]
            for node in np.unique(nodes[nodes != NOWHERE]):
                here = nodes == node
                gpus = int(batch.gpus_of[part][here].sum())
                count = int(here.sum())
                if gpus < 2:
                    continue
                chain = float(topology.inside[node][gpus])
                if gang.servers:
                    pairs = int(here[: gang.servers].sum()) * int(here[gang.servers :].sum())
                    extra[row, number] += pairs * (chain / (gpus - 1) - topology.within)
                else:
                    extra[row, number] += chain - (count - 1) * topology.within
    return extra
