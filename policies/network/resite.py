"""Better nodes for what a plan starts: the same sizes and shapes, seated anew all together.

A policy places its jobs one after another, in the order in which they deserve GPUs. Which of those
that start get the nodes that lie close together is another question, and is settled here, whatever
the policy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ones.policies.forecast import type_of
from ones.policies.model import Assignment, Ints, Job, JobId, Placement, Plan, Problem
from ones.policies.network.cost import least_cost, network_cost, score
from ones.policies.network.gangs import Batch, Gang
from ones.policies.network.improve import improved
from ones.policies.network.sensitivity import sensitivity
from ones.policies.network.subtree import packed, worth
from ones.policies.network.topology import Distances, Topology

GAIN = 1e-9
MANY = 200  # starts in a round, beyond which they are only improved, not seated from scratch


def resite(problem: Problem, plan: Plan, distances: Distances | None = None) -> Plan:
    """The plan with its starts where they cost less on the network; else the plan itself.

    A start keeps its GPU type, its batch and how many GPUs it has on how many nodes. Jobs that run
    stay with what the plan has for them. Nothing changes without a topology.
    """
    if not any(node.switches for node in problem.nodes):
        return plan
    starts = [
        (job, plan.assignments[job.id])
        for job in problem.jobs
        if job.placement is None and job.id in plan.assignments
    ]
    if not any(len(given.placement.gpus_on) > 1 for _, given in starts):
        return plan
    topology = Topology.of(problem.nodes, distances)
    batch, present = _batch(problem, plan, topology, starts)
    if (network_cost(batch, present) <= least_cost(batch) + GAIN).all():
        return plan
    ways = [improved(batch, present)]
    if len(starts) <= MANY:
        ways.append(packed(batch))
    found = min(ways, key=lambda sites: worth(batch, sites))
    if score(batch, found) > score(batch, present) - GAIN:
        return plan
    moved: dict[JobId, Assignment] = {}
    for number, (job, given) in enumerate(starts):
        part = batch.tasks_of(number)
        moved[job.id] = replace(
            given, placement=placement_of(topology, found[part], batch.gangs[number].tasks)
        )
    return replace(plan, assignments={**plan.assignments, **moved})


def placement_of(topology: Topology, sites: Ints, tasks: tuple[int, ...]) -> Placement:
    """The nodes and GPUs of a gang's tasks."""
    gpus_on: dict[str, int] = {}
    for node, gpus in zip(sites.tolist(), tasks, strict=True):
        name = topology.nodes[node].name
        gpus_on[name] = gpus_on.get(name, 0) + gpus
    return Placement.of(gpus_on)


def _batch(
    problem: Problem, plan: Plan, topology: Topology, starts: list[tuple[Job, Assignment]]
) -> tuple[Batch, Ints]:
    """The starts as gangs with one task a node, and where the plan has them now."""
    free = free_beside(problem, plan, topology, {job.id for job, _ in starts})
    gangs, present = [], []
    for job, given in starts:
        kind = type_of(given.placement, problem.by_name)
        held = sorted(given.placement.gpus_on, key=lambda one: (-one[1], topology.index[one[0]]))
        gangs.append(
            Gang(
                tasks=tuple(gpus for _, gpus in held),
                bandwidth=sensitivity(
                    job,
                    problem.outlooks[job.id],
                    kind,
                    nodes=len(held),
                    gpus=given.placement.gpus,
                )
                if len(held) > 1
                else 0.0,
                apart=True,
                where=topology.hosts(job.nodes, kind),
            )
        )
        present += [topology.index[name] for name, _ in held]
    return Batch(topology, free, tuple(gangs)), np.array(present, dtype=np.int64)


def free_beside(
    problem: Problem, plan: Plan, topology: Topology, without: Collection[JobId] = ()
) -> Ints:
    """What is free once everybody but these jobs has what the plan gives, or keeps what it has."""
    free = topology.capacity()
    held: Mapping[JobId, Placement | None] = {
        job.id: (
            plan.assignments[job.id].placement
            if job.id in plan.assignments
            else None
            if job.id in plan.idle
            else job.placement
        )
        for job in problem.jobs
        if job.id not in without
    }
    for placement in held.values():
        for name, gpus in placement.gpus_on if placement else ():
            at = topology.index.get(name)
            if at is not None:
                free[at] = max(0, free[at] - gpus)
    return free
