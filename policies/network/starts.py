"""From a plan to the seats that are free for what it starts, and back."""

from __future__ import annotations

from collections.abc import Mapping

from ones.policies.model import Ints, JobId, Placement, Plan, Problem
from ones.policies.network.topology import Topology


def placement_of(topology: Topology, sites: Ints, tasks: tuple[int, ...]) -> Placement:
    """The nodes and GPUs of a gang's tasks."""
    gpus_on: dict[str, int] = {}
    for node, gpus in zip(sites.tolist(), tasks, strict=True):
        name = topology.nodes[node].name
        gpus_on[name] = gpus_on.get(name, 0) + gpus
    return Placement.of(gpus_on)


def free_beside(problem: Problem, plan: Plan, topology: Topology) -> Ints:
    """What is free once everybody has what the plan gives, or keeps what it has."""
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
    }
    for placement in held.values():
        for name, gpus in placement.gpus_on if placement else ():
            at = topology.index.get(name)
            if at is not None:
                free[at] = max(0, free[at] - gpus)
    return free
