"""Plain first come first served, at the size each job asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ones.policies.model import Assignment, Job, JobId, Plan, Problem
from ones.policies.placement import Room
from ones.policies.shapes import shapes_by_size, size_as_requested
from ones.policies.sizes import in_gpus


@dataclass(frozen=True, slots=True)
class Fifo:
    """Nobody is moved, and nobody overtakes a job that waits for some of the same nodes."""

    name: str = "fifo"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        assignments: dict[JobId, Assignment] = {}
        idle: dict[JobId, str] = {}
        room = Room.of(problem.nodes, (job.placement for job in problem.jobs if job.placement))
        empty = Room.of([replace(node, taken=0) for node in problem.nodes])
        head: dict[str, Job] = {}  # node -> the first job that waits for it
        for job in sorted(problem.jobs, key=queue_order):
            if job.placement is not None:
                assignments[job.id] = Assignment(job.placement, job.batch, "runs to its end")
                continue
            if not job.startable or job.fixed:
                idle[job.id] = job.fixed or "waits for a reason of its own"
                continue
            size = size_as_requested(job.shapes, job.requested)
            shapes = shapes_by_size(job.shapes)[size] if size else []
            ahead = next((head[node] for node in sorted(job.nodes) if node in head), None)
            if ahead is not None:
                idle[job.id] = f"job {ahead.id} is ahead of it and waits for its GPUs"
                continue
            placement = room.place_job(job, shapes)
            if placement is not None:
                room.take(placement)
                assignments[job.id] = Assignment(placement, None, "first in the queue")
            elif empty.place_job(replace(job, crowded={}), shapes) is None:
                # It would block the queue for ever.
                idle[job.id] = f"the usable nodes can't hold its {in_gpus(job.requested)}"
            else:
                idle[job.id] = f"waits for {in_gpus(size or job.requested)}"
                head.update(dict.fromkeys(job.nodes, job))
        return Plan(assignments, idle), None


def queue_order(job: Job) -> tuple[int, float, int]:
    """Slurm's priority, larger first; then first submission."""
    return -job.priority, job.submitted, job.id
