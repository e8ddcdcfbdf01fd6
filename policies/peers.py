"""What the peer schedulers share: a plan in the making, spreading over nodes, a job's past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ones.policies.forecast import tuned
from ones.policies.model import (
    Assignment,
    Floats,
    Ints,
    Job,
    JobId,
    Outlook,
    Placement,
    Plan,
    Problem,
    Seconds,
    Segment,
)
from ones.policies.placement import Room
from ones.policies.shapes import nearest, shapes_by_size
from ones.policies.words import OTHERS_GAIN_MORE


@dataclass(slots=True)
class Draft:
    """A plan in the making: what is settled, what is free, and whom the policy may still move."""

    room: Room
    open: list[Job]  # by submission
    stays: list[Job]  # running, and not to be moved
    assignments: dict[JobId, Assignment]
    idle: dict[JobId, str]

    @classmethod
    def of(cls, problem: Problem) -> Draft:
        draft = cls(Room.of(problem.nodes), [], [], {}, {})
        usable = {node.name for node in problem.nodes if node.usable}
        for job in sorted(problem.jobs, key=lambda job: (job.submitted, job.id)):
            if job.placement is None and (job.fixed or not job.startable):
                draft.idle[job.id] = job.fixed or "waits for a reason of its own"
            elif job.placement is not None and (
                job.fixed or not usable.issuperset(job.placement.nodes)
            ):
                together = any(job.beside == other.id for other in draft.stays) or any(
                    other.beside == job.id for other in draft.stays
                )
                draft.stays.append(job)
                # Two on one GPU take it once; the plan leaves both as they are.
                if together:
                    stays = Assignment(job.placement, job.batch, job.fixed or "stays")
                    draft.assignments[job.id] = stays
                else:
                    draft.give(job, job.placement, job.fixed or "stays", batch=job.batch)
            else:
                draft.open.append(job)
        return draft

    def give(
        self, job: Job, placement: Placement, reason: str, *, batch: int | None = None
    ) -> None:
        self.room.take(placement)
        self.assignments[job.id] = Assignment(placement, batch, reason)

    def place(self, wanted: Sequence[tuple[Job, int, str]]) -> None:
        """Jobs with the GPUs they are to have, and why: unchanged sizes stay where they are; the
        others follow, the smallest first."""
        moved = []
        for job, gpus, why in wanted:
            if job.placement is not None and job.placement.gpus == gpus:
                self.give(job, job.placement, why)
            else:
                moved.append((job, gpus, why))
        for job, gpus, why in sorted(moved, key=lambda one: one[1]):
            placement = find_nodes(self.room, job, gpus) if gpus else None
            if placement is None:
                self.idle[job.id] = OTHERS_GAIN_MORE
            else:
                self.give(job, placement, why)

    def plan(self) -> Plan:
        return Plan(self.assignments, self.idle)


def accepted_sizes(job: Job) -> list[int]:
    """The GPU counts the job can be given here, ascending."""
    if job.uneven:
        return list(job.sizes)
    return sorted({shape.gpus for shape in job.shapes})


def size_asked_for(job: Job) -> int | None:
    """The size nearest to the job's own request, the smaller one first; None: it has none."""
    return nearest(accepted_sizes(job), job.requested)


def find_nodes(room: Room, job: Job, gpus: int) -> Placement | None:
    """Nodes for so many GPUs of one type: the emptiest first where any split will do."""
    if not job.uneven:
        return room.place_job(job, shapes_by_size(job.shapes).get(gpus, ()))
    spreads = (emptiest_first(room, job, gpus, kind) for kind in kinds_of(room, job))
    found = [placement for placement in spreads if placement is not None]
    return min(found, key=lambda placement: len(placement.gpus_on), default=None)


def find_at_most(room: Room, job: Job, sizes: Sequence[int], gpus: int) -> Placement | None:
    """Nodes for the largest of these sizes, the least first, that is no larger and finds any."""
    options = (find_nodes(room, job, size) for size in reversed(sizes) if size <= gpus)
    return next((found for found in options if found is not None), None)


def emptiest_first(room: Room, job: Job, gpus: int, kind: str) -> Placement | None:
    """So many GPUs from the node with the most free ones, then the next, on nodes of one type."""
    free = {name: min(gpus, job.crowded.get(name, gpus)) for name, gpus in room.free.items()}
    hosts = [
        node.name
        for node in room.nodes
        if node.gpu_type == kind and free.get(node.name, 0) and node.name in job.nodes
    ]
    given: dict[str, int] = {}
    missing = gpus
    for name in sorted(hosts, key=lambda name: -free[name]):
        if missing == 0:
            break
        given[name] = min(missing, free[name])
        missing -= given[name]
    return Placement.of(given) if given and missing == 0 else None


def kinds_of(room: Room, job: Job) -> list[str]:
    """The GPU types of the nodes on which the job may run."""
    return sorted({node.gpu_type for node in room.nodes if node.name in job.nodes})


def rate(
    job: Job, outlook: Outlook, kind: str, *, nodes: Ints, gpus: Ints
) -> tuple[Floats, Floats]:
    """Goodput with the best batch, as things are now, and that batch (Pollux §3.2).

    In efficient samples a second; 0, with a batch of nan, where the job can't run like that.
    """
    part = outlook.segments[0] if outlook.segments else Segment(1.0, None)
    now = replace(outlook, remaining=1.0, segments=(replace(part, samples=1.0),))
    best = tuned(job, now, kind, nodes=nodes, gpus=gpus)
    with np.errstate(divide="ignore"):
        goodput = 1.0 / best.seconds
    return np.where(np.isfinite(goodput), goodput, 0.0), best.batch


def batch_after_epoch(job: Job, outlook: Outlook, gpu_type: str) -> int | None:
    """The batch of the largest goodput where the job runs; see TunesBetweenRounds."""
    return None if job.placement is None else batch_for(job, outlook, gpu_type, job.placement)


def batch_for(job: Job, outlook: Outlook, kind: str, placement: Placement) -> int | None:
    """The batch of the largest goodput on this placement; B0 as long as nothing was measured.

    None for a job that keeps its own batch, or would have to restart for another one.
    """
    if job.batches is None:
        return None
    if placement == job.placement and not job.batches.tunes:
        return job.batch
    gpus = np.array([placement.gpus])
    least, most = job.batches.bounds(gpus)
    if least[0] > most[0]:
        return None
    if outlook.points == 0:
        return int(least[0])
    nodes = np.array([len(placement.gpus_on)])
    _, batch = rate(job, outlook, kind, nodes=nodes, gpus=gpus)
    return int(min(max(batch[0], least[0]), most[0])) if np.isfinite(batch[0]) else None


@dataclass(frozen=True, slots=True)
class Past:
    """What a job has been through, as its placements from round to round tell."""

    placement: Placement | None = None  # at the last round
    starts: int = 0
    largest: int = 0  # GPUs it has run on at most
    service: float = 0.0  # GPU-seconds it has had

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)


def look_back(problem: Problem, memory: object) -> dict[JobId, Past]:
    """The past of each job of the problem, from what `remember` kept and what is seen now."""
    kept = memory.get("past", {}) if isinstance(memory, dict) else {}
    before = float(memory["at"]) if isinstance(memory, dict) and "at" in memory else problem.now
    return {
        job.id: _since(_read(kept.get(str(job.id))), job, seconds=problem.now - before)
        for job in problem.jobs
    }


def remember(now: Seconds, past: Mapping[JobId, Past]) -> dict[str, Any]:
    """What `look_back` needs next time, fit for JSON."""
    return {
        "at": now,
        "past": {
            str(id_): [
                one.placement.gpus_on if one.placement else (),
                one.starts,
                one.largest,
                one.service,
            ]
            for id_, one in past.items()
        },
    }


def _since(past: Past, job: Job, *, seconds: Seconds) -> Past:
    if job.placement is None:
        return replace(past, placement=None)
    return Past(
        placement=job.placement,
        starts=past.starts + (job.placement != past.placement),
        largest=max(past.largest, job.placement.gpus),
        service=past.service + seconds * job.placement.gpus,
    )


def _read(kept: Any) -> Past:
    if kept is None:
        return Past()
    gpus_on, starts, largest, service = kept
    placement = Placement.of({str(name): int(gpus) for name, gpus in gpus_on}) if gpus_on else None
    return Past(placement, int(starts), int(largest), float(service))
