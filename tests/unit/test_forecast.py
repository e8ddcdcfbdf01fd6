"""Times to the end and best batches of several jobs at once: the same as job by job."""

from __future__ import annotations

import numpy as np
import pytest
from policy_builders import PlainSpeed, a_job, an_outlook

from ones.policies.forecast import (
    Tuned,
    _batches,
    _counted,
    _work,
    own_batch,
    seconds_left,
    seconds_left_alike,
    tuned_alike,
)
from ones.policies.model import Batch, Ints, Job, Outlook, Segment


def plainly_tuned(
    job: Job, outlook: Outlook, bounds: Batch | None, *, nodes: Ints, gpus: Ints
) -> Tuned:
    """One job, segment by segment."""
    if bounds is None:
        batch = np.full(gpus.shape, own_batch(job, outlook))
        left = seconds_left(job, outlook, "v100", nodes=nodes, gpus=gpus, batch=batch)
        return Tuned(batch, left)
    real, possible = _batches(bounds, tuple(gpus.tolist()))
    step = outlook.speed.step_seconds("v100", nodes[:, None], gpus[:, None], real)
    each = step / real
    segments = outlook.segments or (Segment(outlook.remaining, None),)
    if not bounds.tunes:
        spent = each * _work(job, outlook, real)
        best = spent.argmin(axis=1)
        seconds = np.take_along_axis(spent, best[:, None], axis=1)[:, 0]
    else:
        noise = np.stack([one.noise_of(real) for one in segments])
        work = np.array([one.samples for one in segments])
        counted = _counted(noise, real, bounds.reference)
        seconds = (work[:, None] * (each * counted).min(axis=2)).sum(axis=0)
        best = (each * counted[0]).argmin(axis=1)
    batch = np.take_along_axis(real, best[:, None], axis=1)[:, 0]
    return Tuned(np.where(possible, batch, np.nan), np.where(possible, seconds, np.inf))


def some_jobs(rng: np.random.Generator, bounds: Batch | None) -> tuple[list[Job], list[Outlook]]:
    """Jobs with the same batches, of unlike speed and work, in as many segments."""
    parts = int(rng.integers(4))
    jobs, outlooks = [], []
    for number in range(1, 8):
        noises = (None, float(rng.uniform(1.0, 1e4)))
        measured = tuple((float(2**at), float(rng.uniform(10.0, 1e4))) for at in (3, 6, 9))
        segments = tuple(
            Segment(
                float(rng.uniform(0.0, 1e6)),
                noises[int(rng.integers(2))],
                measured if rng.random() < 0.3 else (),
            )
            for _ in range(parts)
        )
        speed = PlainSpeed(float(rng.uniform(1e-3, 1.0)), float(rng.uniform(0.0, 0.5)))
        more = {"speed": speed, "segments": segments, "batch": float(rng.integers(1, 512))}
        outlooks.append(an_outlook(float(rng.uniform(1.0, 1e7)), **more))
        jobs.append(a_job(number, batches=bounds, batch=rng.choice((None, 64))))
    return jobs, outlooks


def some_batches(rng: np.random.Generator) -> Batch | None:
    if rng.random() < 0.2:
        return None
    return Batch(
        submitted=32,
        most_per_gpu=int(rng.integers(16, 128)),
        most=int(rng.integers(64, 4096)),
        least_per_gpu=int(rng.integers(1, 9)),
        accumulates=bool(rng.integers(2)),
        tunes=bool(rng.integers(2)),
    )


@pytest.mark.parametrize("seed", range(60))
def test_several_jobs_are_tuned_as_each_by_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bounds = some_batches(rng)
    jobs, outlooks = some_jobs(rng, bounds)
    nodes, gpus = np.array([1, 1, 1, 2, 4, 8]), np.array([1, 2, 8, 16, 32, 64])
    found = tuned_alike(jobs, outlooks, bounds, "v100", nodes=nodes, gpus=gpus)
    for row, (job, outlook) in enumerate(zip(jobs, outlooks, strict=True)):
        plain = plainly_tuned(job, outlook, bounds, nodes=nodes, gpus=gpus)
        assert np.array_equal(found.batch[row], plain.batch, equal_nan=True)
        assert np.array_equal(found.seconds[row], plain.seconds)


@pytest.mark.parametrize("seed", range(20))
def test_several_jobs_take_as_long_as_each_by_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, outlooks = some_jobs(rng, some_batches(rng))
    nodes, gpus = np.array([1, 1, 2, 4]), np.array([1, 8, 16, 32])
    batch = rng.integers(1, 2048, (len(jobs), len(gpus))).astype(float)
    found = seconds_left_alike(jobs, outlooks, "v100", nodes=nodes, gpus=gpus, batch=batch)
    for row, (job, outlook) in enumerate(zip(jobs, outlooks, strict=True)):
        plain = seconds_left(job, outlook, "v100", nodes=nodes, gpus=gpus, batch=batch[row])
        assert np.array_equal(found[row], plain)
