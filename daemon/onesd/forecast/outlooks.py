"""Outlooks of jobs as time passes in a forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ones.estimator.speed import SCALING, AssumedSpeed, LearntSpeed
from ones.policies.model import Floats, Ints, Outlook, Seconds, Segment

GUESSED = 0.7  # standard deviation of ln(length) where nothing tells it
LEAST = 1e-4  # of a job's progress, at either end


def spread_of(outlook: Outlook) -> float:
    """Standard deviation of ln(seconds to go), as far as the outlook tells it."""
    total = outlook.alpha + outlook.beta
    mean = outlook.alpha / total
    length = GUESSED
    if not outlook.guessed and outlook.processed > 0:
        # What is left is (1 - p) / p of what is done.
        deviation = (mean * (1.0 - mean) / (total + 1.0)) ** 0.5
        length = min(GUESSED, deviation / max(mean * (1.0 - mean), LEAST))
    elif not outlook.guessed:
        length = min(GUESSED, 1.0 / max(outlook.alpha, 1.0) ** 0.5 * 0.3)
    return float(min((length**2 + outlook.speed_error**2) ** 0.5, 1.0))


def scaled(outlook: Outlook, times: float) -> Outlook:
    """So many times as much still to do."""
    return replace(
        outlook,
        remaining=outlook.remaining * times,
        segments=tuple(replace(one, samples=one.samples * times) for one in outlook.segments),
    )


def advanced(outlook: Outlook, share: float) -> Outlook:
    """That share of what is left has been done."""
    done = outlook.remaining * share
    processed, remaining = outlook.processed + done, max(outlook.remaining - done, 1e-9)
    mean = min(max(processed / (processed + remaining), LEAST), 1.0 - LEAST)
    strength = max(outlook.alpha + outlook.beta, 1.0 / min(mean, 1.0 - mean))
    return replace(
        outlook,
        processed=processed,
        remaining=remaining,
        alpha=mean * strength,
        beta=(1.0 - mean) * strength,
        segments=_from(outlook.segments, share),
    )


def _from(segments: Sequence[Segment], share: float) -> tuple[Segment, ...]:
    """What is left of them once that share of all their samples is done, from the front."""
    gone = share * sum(one.samples for one in segments)
    left = []
    for one in segments:
        done = min(gone, one.samples)
        gone -= done
        if one.samples > done:
            left.append(replace(one, samples=one.samples - done))
    return tuple(left) or tuple(segments[-1:])


def from_its_beginning(outlook: Outlook) -> Outlook:
    whole = outlook.processed + outlook.remaining
    begun = scaled(outlook, whole / outlook.remaining)
    strength = 1.0 / LEAST
    return replace(begun, processed=0.0, alpha=LEAST * strength, beta=(1.0 - LEAST) * strength)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is expected of a job of unknown speed once it has run: it scales as jobs do."""

    sample_seconds: Seconds  # at the size that it asks for
    requested: int
    most: int  # GPUs beyond which nothing is promised, until it has run on more
    factors: Mapping[str, float]

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        size = np.minimum(np.asarray(gpus, dtype=np.float64), self.most) / self.requested
        scale = self.sample_seconds * self.factors.get(gpu_type, 1.0)
        seconds = scale * np.asarray(global_batch, dtype=np.float64) / size**SCALING
        return np.asarray(seconds + 0.0 * np.asarray(nodes), dtype=np.float64)


def worked_on(outlook: Outlook, gpus: int) -> Outlook:
    """After some work on so many GPUs: as the estimator does, twice as many are thought of next."""
    speed = outlook.speed
    if isinstance(speed, AssumedSpeed):
        most = max(2 * gpus, speed.requested)
        shown = _Shown(speed.sample_seconds, speed.requested, most, speed.factors)
        return replace(outlook, speed=shown, points=1)
    if isinstance(speed, _Shown) and speed.most < 2 * gpus:
        return replace(outlook, speed=replace(speed, most=2 * gpus))
    if isinstance(speed, LearntSpeed) and speed.most < 2 * gpus:
        return replace(outlook, speed=replace(speed, most=2 * gpus, _errors={}, _answers={}))
    return outlook
