"""What ONES may give each job, and its worth: tables over job, GPU type, size and batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ones.policies.forecast import by_name, own_batch, seconds_left, seconds_left_on, type_of
from ones.policies.model import MAX_WAIT, Floats, Ints, Job, JobId, Problem, Seconds, Shape
from ones.policies.ones_batch import BatchLimit
from ones.policies.shapes import shapes_by_size

BATCHES = 3  # batch sizes offered for each size: the largest allowed, a half and a quarter of it
PRESENT = BATCHES  # the last column: the batch the job runs with now
SIZES = 24  # more sizes than this are thinned out
NONE = 2**30  # a size no cluster has, where a job has fewer sizes than others
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How ONES searches, and what it strives for."""

    objective: Literal["flow", "sruf"] = "flow"
    """`sruf` is the paper's score: the GPU-seconds that the scheduled jobs still need, of schedules
    that leave no GPU unused. `flow`, the default, values what a job is given by its speed-up over
    the square root of its remaining utilisation: the same preference for short jobs, but it also
    counts who waits, so that it is the mean completion time that falls."""
    exponent: float = 0.5  # of the remaining utilisation, in `flow`
    population: int = 24
    generations: int = 6
    mutation: float = 0.1  # chance that a job of a candidate is preempted
    finalists: int = 3  # candidates placed on real nodes
    kept: int = 8  # candidates carried to the next round
    max_wait: Seconds = MAX_WAIT  # who waited longer comes first


@dataclass(frozen=True, slots=True)
class Options:
    """The tables; J jobs, T GPU types, K sizes (0 is none), L batches. `inf` is not on offer."""

    jobs: tuple[Job, ...]
    types: tuple[str, ...]
    sizes: Ints  # [J, K] GPUs
    shapes: Mapping[tuple[int, int, int], list[Shape]]  # (job, type, size index) -> shapes to try
    seconds: Floats  # [J, T, K, L] to the end, restart not counted
    batch: Floats  # [J, T, K, L] global
    present: Ints  # [J, 3]: type, size and batch index now; size 0 for a waiting job
    cost: Floats  # [J] of a restart
    least: Floats  # [J] the least GPU-seconds to the end: the remaining utilisation
    horizon: Seconds  # for how long a decision is expected to stand
    urgent: Bools  # [J]


def build(
    problem: Problem,
    jobs: Sequence[Job],
    limits: Mapping[JobId, BatchLimit],
    settings: Settings,
) -> Options:
    """The options of the jobs that may be started or moved."""
    nodes = by_name(problem.nodes)
    types = tuple(sorted({node.gpu_type for node in problem.nodes}))
    by_size = [shapes_by_size(job.shapes) for job in jobs]
    counts = [
        _thinned(sorted(sizes.keys() | ({job.placement.gpus} if job.placement else set())), job)
        for job, sizes in zip(jobs, by_size, strict=True)
    ]
    width = 1 + max((len(sizes) for sizes in counts), default=0)
    sizes = np.full((len(jobs), width), NONE, dtype=np.int64)
    seconds = np.full((len(jobs), len(types), width, BATCHES + 1), np.inf)
    batch = np.ones_like(seconds)
    present = np.zeros((len(jobs), 3), dtype=np.int64)
    shapes: dict[tuple[int, int, int], list[Shape]] = {}
    for j, job in enumerate(jobs):
        sizes[j, 0] = 0
        sizes[j, 1 : 1 + len(counts[j])] = counts[j]
        for t, kind in enumerate(types):
            room = sorted(
                (
                    node.gpus - node.taken
                    for node in problem.nodes
                    if node.usable and node.gpu_type == kind and node.name in job.nodes
                ),
                reverse=True,
            )
            fits: dict[int, Shape] = {}
            for k, size in enumerate(counts[j], start=1):
                fitting = [
                    shape
                    for shape in by_size[j].get(size, [])
                    if shape.nodes <= len(room) and room[shape.nodes - 1] >= shape.gpus_per_node
                ]
                if fitting:
                    shapes[j, t, k] = fitting
                    fits[k] = fitting[0]
            if fits:
                offers = _offers(problem, job, kind, fits, limits.get(job.id))
                seconds[j, t, offers.size, offers.level] = offers.seconds
                batch[j, t, offers.size, offers.level] = offers.batch
        if job.placement is not None:
            t = types.index(type_of(job.placement, nodes)) if types else 0
            k = int(np.searchsorted(sizes[j], job.placement.gpus))
            present[j] = t, k, PRESENT
            seconds[j, t, k, PRESENT] = seconds_left_on(problem, job, job.placement)
            batch[j, t, k, PRESENT] = own_batch(job, problem.outlooks[job.id])
            # The same batch in another column would be a restart for nothing.
            same = batch[j, t, k, :PRESENT] == batch[j, t, k, PRESENT]
            seconds[j, t, k, :PRESENT][same] = np.inf
    spent = np.where(np.isinf(seconds), np.inf, seconds) * np.maximum(sizes, 1)[:, None, :, None]
    least = spent.min(axis=(1, 2, 3), initial=np.inf)
    return Options(
        jobs=tuple(jobs),
        types=types,
        sizes=sizes,
        shapes=shapes,
        seconds=seconds,
        batch=batch,
        present=present,
        cost=np.array([problem.outlooks[job.id].restart_cost for job in jobs]),
        least=np.where(np.isinf(least), 1.0, np.maximum(least, 1e-9)),
        horizon=_horizon(problem),
        urgent=np.array([job.waited > settings.max_wait for job in jobs], dtype=np.bool_),
    )


def values(options: Options, settings: Settings, draw: Floats) -> Floats:
    """[J, T, K, L]: what each option is worth; size 0 holds what it is worth to get nothing.

    `draw` scales each job's remaining work: 1 is its expectation, other values are draws of
    Y (1/rho - 1) with rho ~ Beta(alpha, beta), shared by all candidates of a generation.
    """
    here = np.arange(len(options.jobs)), *options.present.T
    running = options.present[:, 1] > 0
    wide = (slice(None), None, None, None)
    left = options.seconds * draw[wide]
    cost = options.cost[wide]
    changed = np.broadcast_to(running[wide], left.shape).copy()
    changed[here] = False
    if settings.objective == "sruf":
        gpus = np.where(options.sizes == NONE, 0, options.sizes)[:, None, :, None]
        spent = np.where(np.isfinite(left), left + np.where(changed, cost, 0.0), 0.0) * gpus
        # Every GPU in use is worth more than any utilisation, so that only full schedules compete.
        full = 1.0 + float(np.max(spent, initial=0.0)) * len(draw)
        worth = full * gpus - spent
        nothing = np.where(running, -options.cost * options.sizes[here[0], here[2]], 0.0)
    else:
        weight = (options.least * draw) ** -settings.exponent
        # A restart is paid out of the time for which the decision stands (at most to the end).
        stands = np.minimum(options.horizon, left + cost)
        charge = np.where(changed, np.maximum(0.0, 1.0 - cost / stands), 1.0)
        worth = (weight * options.least)[wide] / left * charge
        stopped = np.minimum(1.0, options.cost / options.horizon)
        nothing = np.where(running, -worth[here] * stopped, 0.0)
    offered = np.isfinite(left)
    first = 1e3 * float(np.max(np.abs(worth), where=offered, initial=1.0))
    worth = np.where(offered, worth + np.where(options.urgent, first, 0.0)[wide], -np.inf)
    worth[:, :, 0, :] = nothing[:, None, None]
    return worth


@dataclass(frozen=True, slots=True)
class _Offers:
    """The options of one job on one GPU type."""

    size: Ints  # index
    level: Ints  # batch index
    seconds: Floats
    batch: Floats


def _offers(
    problem: Problem, job: Job, kind: str, fits: Mapping[int, Shape], limit: BatchLimit | None
) -> _Offers:
    """Asks the job's speed once for all its sizes and batches on one type."""
    rows = [
        (k, level, shape.nodes, shape.gpus, batch)
        for k, shape in fits.items()
        for level, batch in enumerate(_batches(problem, job, shape.gpus, limit))
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    k, level, nodes, gpus = table[:, :4].astype(np.int64).T
    batches = table[:, 4]
    times = seconds_left(job, problem.outlooks[job.id], kind, nodes=nodes, gpus=gpus, batch=batches)
    return _Offers(k, level, np.maximum(times, 1e-6), batches)


def _batches(problem: Problem, job: Job, gpus: int, limit: BatchLimit | None) -> list[float]:
    """The global batches on offer at a size, the largest first; multiples of the size."""
    if job.batches is None or limit is None:
        return [own_batch(job, problem.outlooks[job.id])]
    most = min(limit.most, gpus * job.batches.most_per_gpu) // gpus
    halves = [most >> power for power in range(BATCHES)]
    return [float(gpus * each) for each in halves if each >= max(1, job.batches.least_per_gpu)]


def _thinned(sizes: list[int], job: Job) -> list[int]:
    """At most about SIZES sizes: the ends, the present one, the request, and a geometric few."""
    if len(sizes) <= SIZES:
        return sizes
    wanted = np.geomspace(sizes[0], sizes[-1], SIZES - 2)
    near = {sizes[int(np.argmin(np.abs(np.array(sizes) - size)))] for size in wanted}
    near |= {size for size in (job.requested, 1, 2, 4, 8, 16, 32, 64) if size in sizes}
    return sorted(near | ({job.placement.gpus} if job.placement else set()))


def _horizon(problem: Problem) -> Seconds:
    """1.5 times the mean time to the next arrival or end of a job, within 2 restarts and 1000 s."""
    costs = [outlook.restart_cost for outlook in problem.outlooks.values()]
    cost = max(float(np.median(costs)) if costs else 0.0, 0.5)
    ends = sum(
        1.0 / max(seconds_left_on(problem, job, job.placement), 4.0 * cost)
        for job in problem.jobs
        if job.placement is not None
    )
    rate = problem.arrival_rate + ends
    return float(np.clip(1.5 / rate if rate > 0 else np.inf, 2.0 * cost, max(1000.0, 4.0 * cost)))
