"""How long a job still needs under a given allocation, as its outlook has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ones.policies.model import Floats, Ints, Job, JobId, Node, Outlook, Placement, Problem, Seconds


def own_batch(job: Job, outlook: Outlook) -> float:
    """The global batch a job runs with when nobody changes it."""
    if job.batch:
        return float(job.batch)
    return float(job.batches.submitted) if job.batches else outlook.batch


def seconds_left(
    outlook: Outlook, gpu_type: str, *, nodes: Ints, gpus: Ints, batch: Floats
) -> Floats:
    """Time to the end: remaining / X(B, c), where the throughput X is B / step time (ONES §3)."""
    step = outlook.speed.step_seconds(gpu_type, nodes, gpus, batch)
    return np.asarray(outlook.remaining * step / batch, dtype=np.float64)


def seconds_left_on(
    problem: Problem, job: Job, placement: Placement, batch: int | None = None
) -> Seconds:
    """Time to the end of `job` on `placement`, restart not counted."""
    outlook = problem.outlooks[job.id]
    return float(
        seconds_left(
            outlook,
            type_of(placement, by_name(problem.nodes)),
            nodes=np.array([len(placement.gpus_on)]),
            gpus=np.array([placement.gpus]),
            batch=np.array([float(batch or own_batch(job, outlook))]),
        )[0]
    )


def by_name(nodes: Sequence[Node]) -> dict[str, Node]:
    return {node.name: node for node in nodes}


def by_id(jobs: Sequence[Job]) -> dict[JobId, Job]:
    return {job.id: job for job in jobs}


def type_of(placement: Placement, nodes: Mapping[str, Node]) -> str:
    """The GPU type of a placement; that of its first known node where types are mixed."""
    return next((nodes[name].gpu_type for name in placement.nodes if name in nodes), "")
