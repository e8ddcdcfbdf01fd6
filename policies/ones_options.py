"""What ONES may give each job, and how long it would take: tables over job, type, size, batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ones.policies.forecast import (
    own_batch,
    seconds_left_alike,
    seconds_left_at,
    seconds_left_on,
    tuned_alike,
    type_of,
)
from ones.policies.model import (
    Batch,
    Floats,
    Ints,
    Job,
    JobId,
    Outlook,
    Problem,
    Seconds,
    Shape,
)
from ones.policies.ones_batch import BatchLimit
from ones.policies.ones_settings import Settings
from ones.policies.ones_slack import slack
from ones.policies.shapes import shapes_by_size

BATCHES = 3  # batch sizes offered for each size: the best one, a half and a quarter of it
PRESENT = BATCHES  # the last column: as the job runs now
SIZES = 18  # more sizes than this are thinned out
NEAR = 0.05  # batches closer than this, in logarithms, are not worth a change
NONE = 2**30  # a size no cluster has, where a job has fewer sizes than others
Bools = NDArray[np.bool_]


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
    cost: Floats  # [J, T, K] charged for getting there from where a job runs; size 0: for a restart
    least: Floats  # [J] the least GPU-seconds to the end: the remaining utilisation
    lateness: Floats  # [J] finish-time fairness, 1 where a job is as far as by an equal share
    slack: Floats  # [J] for how long it can wait if all are to end soon: 1 for long enough, to 0
    untold: tuple[Ints, ...]  # jobs of one family each whose length is a guess, by submission
    horizon: Seconds  # for how long a decision is expected to stand
    urgent: Bools  # [J] waited too long: first of all
    kept: Bools  # [J] running, and stopped for nobody but those


@dataclass(frozen=True, slots=True)
class _Menu:
    """The sizes that jobs with the same terms may have, and where they fit."""

    sizes: list[int]
    fits: tuple[Mapping[int, list[Shape]], ...]  # of each type: size -> shapes, fewest nodes first


def build(
    problem: Problem,
    jobs: Sequence[Job],
    limits: Mapping[JobId, BatchLimit],
    settings: Settings,
) -> Options:
    """The options of the jobs that may be started or moved."""
    types = tuple(sorted({node.gpu_type for node in problem.nodes}))
    menus: dict[object, _Menu] = {}
    chosen = []
    for job in jobs:
        # By the identity of the shapes, which most jobs share: to hash them takes longer.
        key = (id(job.shapes), job.nodes, job.requested)
        if key not in menus:
            menus[key] = _menu(problem, job, types)
        chosen.append(menus[key])
    counts = [
        sorted({*menu.sizes, job.placement.gpus}) if job.placement else menu.sizes
        for job, menu in zip(jobs, chosen, strict=True)
    ]
    width = 1 + max((len(sizes) for sizes in counts), default=0)
    sizes = np.full((len(jobs), width), NONE, dtype=np.int64)
    least_charge = min(settings.least_charge, problem.round_seconds)
    seconds = np.full((len(jobs), len(types), width, BATCHES + 1), np.inf)
    batch = np.ones_like(seconds)
    present = np.zeros((len(jobs), 3), dtype=np.int64)
    shapes: dict[tuple[int, int, int], list[Shape]] = {}
    outlooks = [_believed(problem.outlooks[job.id], settings) for job in jobs]
    alike: dict[tuple[int, tuple[int, ...], Batch | None, int], list[int]] = {}
    for j, (job, menu, outlook) in enumerate(zip(jobs, chosen, outlooks, strict=True)):
        sizes[j, 0] = 0
        sizes[j, 1 : 1 + len(counts[j])] = counts[j]
        batches = _within(job.batches, limits.get(job.id))
        terms = id(menu), tuple(counts[j]), batches, len(outlook.segments)
        alike.setdefault(terms, []).append(j)
    for (_, _, batches, _), found in alike.items():
        first = found[0]
        for t, kind in enumerate(types):
            fits = {
                k: chosen[first].fits[t][size]
                for k, size in enumerate(counts[first], start=1)
                if size in chosen[first].fits[t]
            }
            if not fits:
                continue
            shapes.update({(j, t, k): fitting for j in found for k, fitting in fits.items()})
            these, theirs = [jobs[j] for j in found], [outlooks[j] for j in found]
            offer = _offer(these, theirs, batches, kind, list(fits.values()))
            at = np.ix_(found, [t], list(fits))
            seconds[at], batch[at] = offer.seconds[:, None], offer.batch[:, None]
    for j, (job, outlook) in enumerate(zip(jobs, outlooks, strict=True)):
        if job.placement is not None:
            t = types.index(type_of(job.placement, problem.by_name)) if types else 0
            k = int(np.searchsorted(sizes[j], job.placement.gpus))
            present[j] = t, k, PRESENT
            here = _as_it_is(job, outlook, types[t], limits.get(job.id))
            seconds[j, t, k, PRESENT], batch[j, t, k, PRESENT] = here
            # The same batch in another column would be a restart for nothing.
            same = (batch[j, t, k, :PRESENT] == here[1]) | _tunes(job)
            seconds[j, t, k, :PRESENT][same] = np.inf
    spent = np.where(np.isinf(seconds), np.inf, seconds) * np.maximum(sizes, 1)[:, None, :, None]
    least = spent.min(axis=(1, 2, 3), initial=np.inf)
    least = np.where(np.isinf(least), 1.0, np.maximum(least, 1e-9))
    return Options(
        jobs=tuple(jobs),
        types=types,
        sizes=sizes,
        shapes=shapes,
        seconds=seconds,
        batch=batch,
        present=present,
        cost=np.maximum(_costs(problem, jobs, types, sizes), least_charge),
        least=least,
        lateness=_lateness(problem, jobs, sizes, seconds),
        slack=(
            slack(problem, jobs, types, sizes, seconds) if settings.makespan else np.ones(len(jobs))
        ),
        untold=_untold(problem, jobs),
        horizon=settings.horizon or _horizon(problem, least_charge),
        urgent=np.array([job.waited > settings.max_wait for job in jobs], dtype=np.bool_),
        kept=_kept(problem, jobs, least),
    )


def _lateness(problem: Problem, jobs: Sequence[Job], sizes: Ints, seconds: Floats) -> Floats:
    """rho = (age + time left) / time in all, both on an equal share of the GPUs.

    Finish-time fairness (Mahajan et al., Themis, 2020, §3.2), as if it had that share from now on.
    """
    gpus = sum(max(node.gpus - node.taken, 0) for node in problem.nodes if node.usable)
    share = max(gpus, 1) / max(len(problem.jobs), 1)
    fastest = seconds.min(axis=(1, 3), initial=np.inf)
    found = np.ones(len(jobs))
    for j, job in enumerate(jobs):
        offered = np.isfinite(fastest[j])
        if not offered.any():
            continue
        size = sizes[j, offered]
        left = np.exp(np.interp(np.log(share), np.log(size), np.log(fastest[j, offered])))
        left *= max(1.0, float(size[0]) / share)  # below its least size a job has it in turns
        outlook = problem.outlooks[job.id]
        whole = left * (outlook.processed + outlook.remaining) / outlook.remaining
        found[j] = (job.waited + job.executed + left) / whole
    return found


def _untold(problem: Problem, jobs: Sequence[Job]) -> tuple[Ints, ...]:
    """Jobs of one user and name of whose length nobody knows anything, where there are several."""
    alike: dict[tuple[str, str], list[int]] = {}
    for j, job in enumerate(jobs):
        if problem.outlooks[job.id].guessed:
            alike.setdefault((job.user, job.name), []).append(j)
    return tuple(np.array(found, dtype=np.int64) for found in alike.values() if len(found) > 1)


def _kept(problem: Problem, jobs: Sequence[Job], least: Floats) -> Bools:
    """Running jobs that are not stopped for the sake of others, though they may be shrunk.

    A stop pays where a job that waits is shorter by more than what the stop destroys. That must be
    known: of a job whose length is a guess nobody knows that it is short. Where it is the running
    one's length that is a guess, the known one comes before the unknown.
    """
    known = np.array(
        [
            job.placement is None and job.startable and not problem.outlooks[job.id].guessed
            for job in jobs
        ],
        dtype=np.bool_,
    )
    running = np.array([job.placement is not None for job in jobs], dtype=np.bool_)
    shortest = float(np.min(least, where=known, initial=np.inf))
    destroyed = np.array(
        [
            problem.outlooks[job.id].restart_cost * job.placement.gpus if job.placement else 0.0
            for job in jobs
        ]
    )
    return np.asarray(running & (shortest + destroyed >= least))


def _costs(problem: Problem, jobs: Sequence[Job], types: Sequence[str], sizes: Ints) -> Floats:
    """A restart's; a live resize's where a job grows out of what it keeps, on GPUs of its type."""
    restart = np.array([problem.outlooks[job.id].restart_cost for job in jobs], dtype=np.float64)
    costs = np.tile(restart[:, None, None], (1, len(types), sizes.shape[1]))
    for j, job in enumerate(jobs):
        live = problem.outlooks[job.id].live_cost
        if job.keeps is not None and live is not None:
            t = types.index(type_of(job.keeps, problem.by_name))
            costs[j, t, sizes[j] >= job.keeps.gpus] = live
    return costs


def _menu(problem: Problem, job: Job, types: Sequence[str]) -> _Menu:
    by_size = shapes_by_size(job.shapes)
    fits: list[Mapping[int, list[Shape]]] = []
    largest = 1
    for kind in types:
        room = sorted(
            (
                node.gpus - node.taken
                for node in problem.nodes
                if node.usable and node.gpu_type == kind and node.name in job.nodes
            ),
            reverse=True,
        )
        largest = max(largest, *room) if room else largest
        fitting = {
            size: [
                shape
                for shape in shapes
                if shape.nodes <= len(room) and room[shape.nodes - 1] >= shape.gpus_per_node
            ]
            for size, shapes in by_size.items()
        }
        fits.append({size: shapes for size, shapes in fitting.items() if shapes})
    return _Menu(_thinned(sorted(by_size), job.requested, largest), tuple(fits))


def _thinned(sizes: list[int], requested: int, per_node: int) -> list[int]:
    """At most about SIZES sizes: powers of two, whole nodes, and a geometric few beyond.

    Sizes between these buy nothing (they leave fragments) and cost time.
    """
    if len(sizes) <= SIZES:
        return sizes
    kept = [
        size
        for size in sizes
        if size & (size - 1) == 0 or size % per_node == 0 or size in (sizes[0], sizes[-1])
    ]
    if len(kept) > SIZES:
        wanted = np.geomspace(kept[0], kept[-1], SIZES)
        kept = sorted({kept[int(np.argmin(np.abs(np.array(kept) - size)))] for size in wanted})
    return sorted({*kept, requested} & set(sizes))


def _believed(outlook: Outlook, settings: Settings) -> Outlook:
    """Without goodput every sample counts fully, whatever the batch."""
    return outlook if settings.goodput else replace(outlook, segments=())


def _tunes(job: Job) -> bool:
    return job.batches is not None and job.batches.tunes


def _within(batches: Batch | None, limit: BatchLimit | None) -> Batch | None:
    """The batches that a job may have now."""
    if batches is None or limit is None or batches.most <= limit.most:
        return batches
    return replace(batches, most=limit.most)


def _as_it_is(
    job: Job, outlook: Outlook, kind: str, limit: BatchLimit | None
) -> tuple[Seconds, float]:
    """Time to the end where a running job is, and its batch; the best one if it can take that."""
    now = own_batch(job, outlook)
    nodes = len(job.placement.gpus_on) if job.placement else 1
    gpus = job.placement.gpus if job.placement else 1
    if not _tunes(job):
        return seconds_left_at(job, outlook, kind, nodes=nodes, gpus=gpus, batch=now), now
    allowed = _within(job.batches, limit)
    at = np.array([nodes]), np.array([gpus])
    best = tuned_alike([job], [outlook], allowed, kind, nodes=at[0], gpus=at[1])
    better = float(best.batch[0, 0])
    if not np.isfinite(better) or abs(np.log(better / now)) < NEAR:
        better = now
    return float(best.seconds[0, 0]), better


@dataclass(frozen=True, slots=True)
class _Offer:
    """Some jobs on one type, over the sizes that fit."""

    seconds: Floats  # [J, F, L]
    batch: Floats  # [J, F, L]


def _offer(
    jobs: Sequence[Job],
    outlooks: Sequence[Outlook],
    bounds: Batch | None,
    kind: str,
    fits: Sequence[Sequence[Shape]],
) -> _Offer:
    """The best batch at each size; for jobs that don't tune it themselves smaller ones as well.

    The jobs fit in the same shapes, may have the same batches, `bounds`, and have as many segments
    of work.
    """
    seconds = np.full((len(jobs), len(fits), BATCHES + 1), np.inf)
    batch = np.ones_like(seconds)
    nodes = np.array([shapes[0].nodes for shapes in fits])
    gpus = np.array([shapes[0].gpus for shapes in fits])
    best = tuned_alike(jobs, outlooks, bounds, kind, nodes=nodes, gpus=gpus)
    seconds[..., 0] = np.maximum(best.seconds, 1e-6)
    batch[..., 0] = np.where(np.isfinite(best.batch), best.batch, 1.0)
    offer = _Offer(seconds, batch)
    if bounds is None or bounds.tunes:
        return offer
    least = bounds.bounds(gpus)[0]
    for level in range(1, BATCHES):
        smaller = np.maximum(np.floor(batch[..., 0] / 2**level / gpus) * gpus, 1.0)
        times = seconds_left_alike(jobs, outlooks, kind, nodes=nodes, gpus=gpus, batch=smaller)
        offered = (smaller >= least) & np.isfinite(best.seconds)
        seconds[..., level] = np.where(offered, np.maximum(times, 1e-6), np.inf)
        batch[..., level] = smaller
    return offer


def _horizon(problem: Problem, least_charge: Seconds) -> Seconds:
    """3 times the mean time to the next arrival or end of a job.

    Within 2 of the usual charges, or 20 s, and 1000 s; of the ends, no job counts for more than one
    in 4 charges, or in 40 s: a job about to end would make every other decision look short-lived.
    """
    costs = [
        outlook.restart_cost if outlook.live_cost is None else outlook.live_cost
        for outlook in problem.outlooks.values()
    ]
    cost = max(float(np.median(costs)) if costs else 0.0, least_charge, 0.5)
    ends = sum(
        1.0 / max(seconds_left_on(problem, job, job.placement), 4.0 * cost, 40.0)
        for job in problem.jobs
        if job.placement is not None
    )
    rate = problem.arrival_rate + ends
    least = max(2.0 * cost, 20.0)
    return float(np.clip(3.0 / rate if rate > 0 else np.inf, least, max(1000.0, 2.0 * least)))
