"""Gradient noise along a training run, and what it makes of the work still to do (OSDI21 §3.1).

A job reports the squared norm and the variance of its gradient at the scale of the batch B0; the
noise scale is phi = B0 * var / sqr. It grows as training goes on and depends on the batch it was
measured with, so reports are kept by epoch and batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log

import numpy as np

from ones.policies.model import Floats, JobId, Segment

EPOCHS = 4096  # of a run that are told apart
BATCHES = 16  # of an epoch that are kept
SEGMENTS = 6
SAME = 0.02  # ln of a ratio: a report this close to the last one changes nothing
LARGEST = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReport:
    """Gradient statistics that a job measured with a global batch, after so many epochs."""

    job: JobId
    family: str
    epochs: float
    batch: float
    sqr: float
    var: float

    @property
    def sound(self) -> bool:
        values = (self.epochs, self.batch, self.sqr, self.var)
        if not all(isfinite(value) and 0.0 <= value <= LARGEST for value in values):
            return False
        return self.batch > 0 and self.sqr + self.var > 0

    @property
    def ratio(self) -> float:
        """var / sqr; infinite where the gradient is all noise."""
        return self.var / self.sqr if self.sqr > 0 else np.inf


class Noise:
    """What is known of var / sqr by epoch and batch: of a family, or of one job."""

    def __init__(self) -> None:
        self.version = 0
        self.last: GradientReport | None = None
        self._batches = np.full((0, BATCHES), np.inf)  # logarithms; inf: nothing there
        self._ratios = np.full((0, BATCHES), np.inf)
        self._next: list[int] = []
        self._paths: dict[tuple[float, float], tuple[int, Floats]] = {}

    def add(self, report: GradientReport) -> None:
        """Take a sound report in."""
        self.last = report
        epoch = int(report.epochs)
        if epoch >= EPOCHS:
            return
        if epoch >= len(self._batches):
            more = max(epoch + 1, 2 * len(self._batches)) - len(self._batches)
            empty = np.full((more, BATCHES), np.inf)
            self._batches = np.concatenate([self._batches, empty])
            self._ratios = np.concatenate([self._ratios, empty])
            self._next += [0] * more
        batch, ratio = log(report.batch), report.ratio
        same = np.flatnonzero(np.abs(self._batches[epoch] - batch) < SAME)
        if len(same):
            slot = int(same[0])
            known = float(self._ratios[epoch, slot])
            if known == ratio or (known > 0 and ratio > 0 and abs(log(ratio / known)) < SAME):
                return
        else:
            slot = self._next[epoch]
            self._next[epoch] = (slot + 1) % BATCHES
            self._batches[epoch, slot] = batch
        self._ratios[epoch, slot] = ratio
        self.version += 1

    def path(self, batch: float, reference: float) -> Floats | None:
        """[E + 1] sum of 1 / (phi + B0) up to each epoch, as measured with batches like this one.

        An epoch that nobody reported is as the one before it. None where nothing is known.
        """
        key = (batch, reference)
        kept = self._paths.get(key)
        if kept is not None and kept[0] == self.version:
            return kept[1]
        known = np.flatnonzero(np.isfinite(self._batches[:, 0]))
        if not len(known):
            return None
        rows = np.arange(known[-1] + 1)
        before = np.zeros(len(rows), dtype=np.int64)
        before[known] = known
        before = np.maximum.accumulate(before)
        before[: known[0]] = known[0]
        apart = np.abs(self._batches[before] - log(batch))
        ratios = self._ratios[before, apart.argmin(axis=1)]
        path = np.concatenate([[0.0], np.cumsum(1.0 / (reference * ratios + reference))])
        if len(self._paths) >= 256:
            self._paths.clear()
        self._paths[key] = (self.version, path)
        return path


def segments(
    *,
    remaining: float,
    epochs: float,
    epoch_samples: float | None,
    own: Noise,
    family: Noise,
    batch: float,
    reference: float,
) -> tuple[Segment, ...]:
    """The work still to do, cut where the noise changes; empty where no noise is known.

    The first segment is the rest of the present epoch, under the job's own last word; the others
    part the epochs after it evenly, under what the family has told of them. Within a segment the
    noise is the one under which a batch costs what it costs over all its epochs: the cost of a
    sample is 1 + (B - B0) / (phi + B0), so 1 / (phi + B0) is averaged.
    """
    last = own.last
    path = family.path(batch, reference)
    if path is None and last is None:
        return ()
    mine = None if last is None else _noise(1.0 / (reference * last.ratio + reference), reference)
    if epoch_samples is None or path is None:
        return (Segment(remaining, mine),)
    to_go = remaining / epoch_samples
    first = min(max(1.0 - epochs % 1.0, 0.5), to_go)
    cuts = [0.0, first]
    if to_go > first:
        parts = min(SEGMENTS - 1, max(1, round(to_go - first)))
        cuts += [first + (to_go - first) * (k + 1) / parts for k in range(parts)]
    ends = np.array(cuts)
    at = np.minimum(epochs + ends, 1e9)
    reached = len(path) - 1
    total = np.interp(at, np.arange(len(path)), path)
    beyond = np.maximum(at - reached, 0.0)
    total = total + beyond * (path[-1] - path[-2])
    lengths = np.maximum(np.diff(ends), 1e-12)
    means = np.diff(total) / lengths
    found = []
    for k, (length, mean) in enumerate(zip(lengths, means, strict=True)):
        noise = mine if k == 0 and last is not None else _noise(float(mean), reference)
        found.append(Segment(float(length) * epoch_samples, noise))
    return tuple(found)


def _noise(mean: float, reference: float) -> float | None:
    """phi of a mean of 1 / (phi + B0); None where every sample counts fully."""
    return max(1.0 / mean - reference, 0.0) if mean > 1e-30 else None
