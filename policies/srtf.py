"""Shortest remaining time first, preemptive, at the size each job asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ones.policies.forecast import seconds_left_as_requested
from ones.policies.model import MAX_WAIT, Assignment, Job, JobId, Plan, Problem, Seconds
from ones.policies.placement import Room
from ones.policies.shapes import own_forms
from ones.policies.words import lasting


@dataclass(frozen=True, slots=True)
class Srtf:
    """The job nearest its end is served first; a longer one is preempted where GPUs are missing."""

    max_wait: Seconds = MAX_WAIT
    name: str = "srtf"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        assignments: dict[JobId, Assignment] = {}
        idle: dict[JobId, str] = {}
        usable = {node.name for node in problem.nodes if node.usable}
        room = Room.of(problem.nodes)
        left: dict[Job, Seconds] = {}
        for job in problem.jobs:
            if job.placement is None and (job.fixed or not job.startable):
                idle[job.id] = job.fixed or "waits for a reason of its own"
            elif job.placement is not None and (
                job.fixed or not usable.issuperset(job.placement.nodes)
            ):
                assignments[job.id] = Assignment(job.placement, job.batch, job.fixed or "stays")
                room.take(job.placement)
            else:
                left[job] = _left(problem, job)
        running = {job for job in left if job.placement is not None}
        for job in sorted(left, key=lambda job: (job.waited <= self.max_wait, left[job], job.id)):
            shapes = own_forms(job.shapes, job.requested)
            running.discard(job)
            if job.placement is not None and room.fits(job.placement):
                assignments[job.id] = Assignment(
                    job.placement, job.batch, f"about {lasting(left[job])} left"
                )
                room.take(job.placement)
                continue
            spare = room.copy()
            for other in running:  # nobody is preempted where free GPUs do
                if other.placement is not None:
                    spare.take(other.placement)
            placement = spare.place_job(job, shapes) or room.place_job(job, shapes)
            if placement is None:
                idle[job.id] = f"shorter jobs have the GPUs; about {lasting(left[job])} left"
            else:
                room.take(placement)
                assignments[job.id] = Assignment(
                    placement, None, f"shortest: about {lasting(left[job])} left"
                )
        return Plan(assignments, idle), None


def _left(problem: Problem, job: Job) -> Seconds:
    """Time to the end at the requested size; a waiting job pays its restart as well."""
    waiting = problem.outlooks[job.id].restart_cost if job.placement is None else 0.0
    return seconds_left_as_requested(problem, job) + waiting
