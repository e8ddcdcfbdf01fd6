"""Tiresias (NSDI'19): least attained service first, in two queues, at each job's own size."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from ones.policies.model import Job, JobId, Placement, Plan, Problem, Seconds
from ones.policies.peers import Draft, find_nodes, size_asked_for
from ones.policies.sizes import in_gpus
from ones.policies.words import lasting

THRESHOLD = 16 * 3600.0  # GPU-seconds of service after which a job goes to the second queue


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Who has had little service yet comes first; the others are preempted where GPUs are missing.

    Within the first queue by submission, within the second by the time of demotion (Tiresias §3.3,
    discretised two-dimensional least attained service). A job that goes on keeps its nodes.
    """

    threshold: float = THRESHOLD
    max_wait: Seconds = inf  # as published; a daemon sets its own
    name: str = "tiresias"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        draft = Draft.of(problem)
        demoted = self._demoted(problem, memory)
        rank = {id_: place for place, id_ in enumerate(demoted)}
        order = sorted(
            draft.open, key=lambda job: (job.waited <= self.max_wait, rank.get(job.id, -1))
        )
        free = draft.room.gpus
        sizes: dict[JobId, int] = {}
        served: list[Job] = []
        for job in order:
            size = size_asked_for(job)
            if size is not None and size <= free:
                sizes[job.id] = size
                served.append(job)
                free -= size
            else:
                draft.idle[job.id] = "those with less service behind them have the GPUs"
        kept: dict[JobId, Placement] = {}
        for job in served:
            if job.placement is not None and job.placement.gpus == sizes[job.id]:
                kept[job.id] = job.placement
                draft.room.take(job.placement)
        for place, job in enumerate(served):
            queue = "second queue" if job.id in rank else "first queue"
            placement = kept.get(job.id)
            if placement is not None:
                draft.room.give_back(placement)  # booked above; `give` books it again
            else:
                placement = _make_room(draft, job, sizes[job.id], kept, served[place + 1 :])
            if placement is None:
                draft.idle[job.id] = f"no nodes are free for its {in_gpus(sizes[job.id])}"
            else:
                draft.give(job, placement, f"{queue}, {lasting(job.executed)} of service")
        return draft.plan(), {"demoted": demoted}

    def _demoted(self, problem: Problem, memory: object) -> list[JobId]:
        """The jobs of the second queue, in the order in which they came there."""
        jobs = {job.id: job for job in problem.jobs}
        before = memory.get("demoted", []) if isinstance(memory, dict) else []
        demoted = [JobId(id_) for id_ in before if id_ in jobs]
        there = set(demoted)
        for job in sorted(problem.jobs, key=lambda job: (job.submitted, job.id)):
            size = size_asked_for(job) or job.requested
            if job.id not in there and job.executed * size >= self.threshold:
                demoted.append(job.id)
        return demoted


def _make_room(
    draft: Draft, job: Job, gpus: int, kept: dict[JobId, Placement], behind: list[Job]
) -> Placement | None:
    """Nodes for the job; those behind it lose theirs, last first, where they are in its way."""
    placement = find_nodes(draft.room, job, gpus)
    moved: list[JobId] = []
    for other in reversed(behind):
        if placement is not None:
            break
        if other.id in kept:
            moved.append(other.id)
            draft.room.give_back(kept[other.id])
            placement = find_nodes(draft.room, job, gpus)
    for id_ in moved:
        if placement is None:
            draft.room.take(kept[id_])
        else:
            del kept[id_]
    return placement
