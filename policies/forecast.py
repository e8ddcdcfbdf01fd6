"""How long a job still needs under a given allocation, as its outlook has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import (
    Batch,
    Floats,
    Ints,
    Job,
    JobId,
    Node,
    Outlook,
    Placement,
    Problem,
    Seconds,
    Shape,
)
from ones.policies.shapes import own_forms

FARTHEST: Seconds = 100 * 366 * 86400.0  # ends beyond it are not told
BATCHES = 50  # geometric samples of the global batch among which the best is chosen (Pollux §4.1)


def own_batch(job: Job, outlook: Outlook) -> float:
    """The global batch a job runs with when nobody changes it."""
    if job.batch:
        return float(job.batch)
    return float(job.batches.submitted) if job.batches else outlook.batch


def efficiency(noise: Floats | float, batch: Floats, reference: float) -> Floats:
    """What a sample at `batch` is worth against one at B0 (Pollux §3.1): (phi + B0) / (phi + B)."""
    return np.asarray((noise + reference) / (noise + batch), dtype=np.float64)


def noise_known(outlook: Outlook) -> bool:
    """Whether the noise scale of any part of the work is known."""
    return any(one.noise is not None or one.noise_at for one in outlook.segments)


def seconds_left(
    job: Job, outlook: Outlook, gpu_type: str, *, nodes: Ints, gpus: Ints, batch: Floats
) -> Floats:
    """Time to the end at one batch throughout: remaining / goodput, segment by segment.

    Where no noise scale is known the goodput is the throughput X = B / step time (ONES §3).
    """
    step = outlook.speed.step_seconds(gpu_type, nodes, gpus, batch)
    return np.asarray(_work(job, outlook, np.asarray(batch)) * step / batch, dtype=np.float64)


def seconds_left_at(
    job: Job,
    outlook: Outlook,
    gpu_type: str,
    *,
    nodes: int,
    gpus: int,
    batch: float,
    remaining: float | None = None,
) -> Seconds:
    """As `seconds_left`, of one allocation; with other samples `remaining` than the outlook's,
    where it doesn't tell them apart by their noise."""
    at = np.array([batch])
    step = outlook.speed.step_seconds(gpu_type, np.array([nodes]), np.array([gpus]), at)
    if outlook.segments and job.batches is not None:
        return float((_work(job, outlook, at) * step / at)[0])
    samples = outlook.remaining if remaining is None else remaining
    return samples * float(step[0]) / batch


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best batch at each size, and what comes of it."""

    batch: Floats  # global, in whole samples; nan where the job can't run at that size
    seconds: Floats  # to the end, the batch chosen anew as the noise changes; inf where it can't


def seconds_left_alike(
    jobs: Sequence[Job],
    outlooks: Sequence[Outlook],
    gpu_type: str,
    *,
    nodes: Ints,
    gpus: Ints,
    batch: Floats,
) -> Floats:
    """[J, K] as `seconds_left`, of several jobs at once, each at its own batches [J, K]."""
    return np.stack(
        [
            seconds_left(job, outlook, gpu_type, nodes=nodes, gpus=gpus, batch=own)
            for job, outlook, own in zip(jobs, outlooks, batch, strict=True)
        ]
    )


def tuned(job: Job, outlook: Outlook, gpu_type: str, *, nodes: Ints, gpus: Ints) -> Tuned:
    """The batch of the largest goodput now, and the time to the end with the best at each time.

    A job that keeps its own batch, or that can't change it without a restart, is taken to stay
    with the one that is best over all it still has to do.
    """
    found = tuned_alike([job], [outlook], job.batches, gpu_type, nodes=nodes, gpus=gpus)
    return Tuned(found.batch[0], found.seconds[0])


def tuned_alike(
    jobs: Sequence[Job],
    outlooks: Sequence[Outlook],
    bounds: Batch | None,
    gpu_type: str,
    *,
    nodes: Ints,
    gpus: Ints,
) -> Tuned:
    """[J, K] as `tuned`, of several jobs at once, if these are the batches that each accepts.

    Their work has as many segments.
    """
    if bounds is None:
        own = [own_batch(job, outlook) for job, outlook in zip(jobs, outlooks, strict=True)]
        batch = np.repeat(np.array(own)[:, None], len(gpus), axis=1)
        seconds = seconds_left_alike(jobs, outlooks, gpu_type, nodes=nodes, gpus=gpus, batch=batch)
        return Tuned(batch, seconds)
    real, possible = _batches(bounds, tuple(gpus.tolist()))
    down, across = nodes[:, None], gpus[:, None]
    step = [outlook.speed.step_seconds(gpu_type, down, across, real) for outlook in outlooks]
    each = np.stack(step) / real  # [J, K, BATCHES] seconds per sample
    if bounds.tunes and outlooks[0].segments:
        noise = np.stack([[one.noise_of(real) for one in outlook.segments] for outlook in outlooks])
        parts = np.array([[one.samples for one in outlook.segments] for outlook in outlooks])
        counted = _counted(noise, real, bounds.reference)  # [J, S, K, BATCHES]
        least = (each[:, None] * counted).min(axis=3)
        seconds = (parts[..., None] * least).sum(axis=1)
        best = (each * counted[:, 0]).argmin(axis=2)
    else:
        pairs = zip(jobs, outlooks, strict=True)
        spent = each * np.stack([_work(job, outlook, real) for job, outlook in pairs])
        best = (each if bounds.tunes else spent).argmin(axis=2)
        seconds = spent.min(axis=2)
    batch = real[np.arange(len(gpus)), best]
    return Tuned(np.where(possible, batch, np.nan), np.where(possible, seconds, np.inf))


@lru_cache(maxsize=2048)
def _batches(bounds: Batch, gpus: tuple[int, ...]) -> tuple[Floats, NDArray[np.bool_]]:
    """[K, BATCHES] the batches among which the best is looked for, and where there are any at all.

    They are the same in every round.
    """
    count = np.array(gpus)
    least, most = bounds.bounds(count)
    possible = least <= most
    least = np.minimum(least, most)
    share = np.linspace(0.0, 1.0, BATCHES)
    grid = np.exp(np.log(least)[:, None] * (1 - share) + np.log(most)[:, None] * share)
    grid = np.minimum(grid, most[:, None])  # which exp(log(most)) may exceed
    real = bounds.even(grid, count[:, None])
    real.flags.writeable = possible.flags.writeable = False
    return real, possible


def _counted(noise: Floats | float, batch: Floats, reference: float) -> Floats:
    """Real samples for one efficient sample; an unknown noise scale (inf) counts all fully."""
    with np.errstate(invalid="ignore"):
        cost = 1.0 / efficiency(noise, batch, reference)
    return np.where(np.isfinite(noise), cost, 1.0)


def _work(job: Job, outlook: Outlook, batch: Floats) -> Floats:
    """Real samples still to do if all of them are done at `batch`."""
    if not outlook.segments or job.batches is None:
        return np.asarray(outlook.remaining + 0.0 * batch)
    reference = job.batches.reference
    total = np.zeros(np.shape(batch))
    for one in outlook.segments:
        total = total + one.samples * _counted(one.noise_of(batch), batch, reference)
    return total


def seconds_left_on(
    problem: Problem, job: Job, placement: Placement, batch: int | None = None
) -> Seconds:
    """Time to the end of `job` on `placement`, restart not counted.

    A job that tunes its batch is taken to do so, unless a batch is named.
    """
    outlook = problem.outlooks[job.id]
    kind = type_of(placement, problem.by_name)
    nodes, gpus = len(placement.gpus_on), placement.gpus
    if batch is None and job.batches is not None and job.batches.tunes:
        best = tuned(job, outlook, kind, nodes=np.array([nodes]), gpus=np.array([gpus]))
        return float(best.seconds[0])
    own = float(batch or own_batch(job, outlook))
    return seconds_left_at(job, outlook, kind, nodes=nodes, gpus=gpus, batch=own)


def seconds_left_as_requested(problem: Problem, job: Job) -> Seconds:
    """Time to the end at the job's own request, on the fastest GPU type that it may run on.

    0.0 where no node will have it.
    """
    outlook = problem.outlooks[job.id]
    shape = next(iter(own_forms(job.shapes, job.requested)), Shape(1, 1))
    kinds = sorted({node.gpu_type for node in problem.nodes if node.name in job.nodes})
    nodes, gpus = np.array([shape.nodes]), np.array([shape.gpus])
    batch = np.array([own_batch(job, outlook)])
    times = (
        seconds_left(job, outlook, kind, nodes=nodes, gpus=gpus, batch=batch) for kind in kinds
    )
    return min((float(time[0]) for time in times), default=0.0)


def foreseeable(left: Seconds) -> Seconds:
    """`left`, or infinity where it is so long that only a number without sense can give it."""
    return left if left <= FARTHEST else inf


def move_cost(job: Job, outlook: Outlook, target: Placement | None) -> Seconds:
    """What going to `target` costs a running job: a restart, unless what it keeps is part of it."""
    if outlook.live_cost is not None and job.goes_live(target):
        return outlook.live_cost
    return outlook.restart_cost


def by_name(nodes: Sequence[Node]) -> dict[str, Node]:
    return {node.name: node for node in nodes}


def by_id(jobs: Sequence[Job]) -> dict[JobId, Job]:
    return {job.id: job for job in jobs}


def type_of(placement: Placement, nodes: Mapping[str, Node]) -> str:
    """The GPU type of a placement; that of its first known node where types are mixed."""
    return next((nodes[name].gpu_type for name, _ in placement.gpus_on if name in nodes), "")
