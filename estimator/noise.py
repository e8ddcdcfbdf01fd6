"""Gradient noise along a training run, and what it makes of the work still to do (OSDI21 §3.1).

A job reports the squared norm and the variance of its gradient at the scale of the batch B0; the
noise scale is phi = B0 * var / sqr. It grows as training goes on, by ten times and more (McCandlish
et al., An Empirical Model of Large-Batch Training, 2018), and depends on the batch it was measured
with, so reports are kept by epoch and batch. In epochs that nobody has reached it is taken to grow
in proportion to the epochs trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, log

import numpy as np

from ones.policies.model import Floats, JobId, Segment

EPOCHS = 4096  # of a run that are told apart
BATCHES = 16  # of an epoch that are kept
SEGMENTS = 6
BATCH_POINTS = 6  # at which the noise of a segment is told
SAME = 0.02  # ln of a ratio: a report this close to the last one changes nothing
LARGEST = 1e30
FARTHEST = 1e9  # epochs
NO_MEAN = 1e-30
REFERENCES = 64  # batches B0 for which sums are kept
LEAST = 1e-9  # of B0: phi is told in logarithms, so it isn't nothing
NO_EPOCH = np.full((0, BATCHES), np.inf)


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

    __slots__ = ("_batches", "_next", "_paths", "_ratios", "last", "version")

    def __init__(self) -> None:
        self.version = 0
        self.last: GradientReport | None = None
        self._batches = NO_EPOCH  # logarithms; inf: nothing there
        self._ratios = NO_EPOCH
        self._next: list[int] = []
        self._paths: dict[float, tuple[int, Paths]] = {}

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
            if _same(known, ratio):
                return
        else:
            slot = self._next[epoch]
            self._next[epoch] = (slot + 1) % BATCHES
            self._batches[epoch, slot] = batch
        self._ratios[epoch, slot] = ratio
        self.version += 1

    def paths(self, reference: float) -> Paths | None:
        """What every epoch adds, at some batch sizes over the range in which it was measured.

        An epoch that nobody reported is as the one before it. None where nothing is known.
        """
        kept = self._paths.get(reference)
        if kept is not None and kept[0] == self.version:
            return kept[1]
        known = np.flatnonzero(np.isfinite(self._batches[:, 0]))
        if not len(known):
            return None
        measured = self._batches[np.isfinite(self._batches)]
        low, high = float(measured.min()), float(measured.max())
        count = min(BATCH_POINTS, 1 + int((high - low) / log(2.0)))
        batches = np.linspace(low, high, count)
        before = np.zeros(known[-1] + 1, dtype=np.int64)
        before[known] = known
        before = np.maximum.accumulate(before)
        before[: known[0]] = known[0]
        nearest = np.abs(self._batches[before] - batches[:, None, None]).argmin(axis=2)
        ratios = self._ratios[before, nearest]
        each = 1.0 / (reference * ratios + reference)
        sums = np.concatenate([np.zeros((count, 1)), np.cumsum(each, axis=1)], axis=1)
        found = Paths(tuple(np.exp(batches).tolist()), sums, reference)
        if len(self._paths) >= REFERENCES:
            self._paths.clear()
        self._paths[reference] = (self.version, found)
        return found


def _same(one: float, other: float) -> bool:
    """Whether two ratios, of which either may be 0 or infinite, are as good as one."""
    if one == other:
        return True
    return 0 < one < inf and 0 < other < inf and abs(log(one) - log(other)) < SAME


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """[M, E + 1] sums of 1 / (phi + B0) over the epochs, at each of M batch sizes, ascending."""

    batches: tuple[float, ...]
    sums: Floats
    reference: float  # B0

    @property
    def reached(self) -> int:
        """The last epoch of which anything is known."""
        return len(self.sums[0]) - 2

    def nearest(self, batch: float) -> int:
        """Which of the batch sizes is the closest to this one."""
        apart = [abs(log(size / batch)) for size in self.batches]
        return apart.index(min(apart))

    def means(self, at: Floats) -> Floats:
        """[M, K] between K + 1 points in epochs; beyond the last epoch phi grows from it."""
        end = self.sums.shape[1] - 1
        inside = np.minimum(at, end)
        epoch = np.minimum(inside.astype(np.int64), end - 1)
        left, right = self.sums[:, epoch], self.sums[:, epoch + 1]
        total = left + (inside - epoch) * (right - left) + self._beyond(at - inside)
        lengths = np.maximum(at[1:] - at[:-1], 1e-12)
        return np.asarray((total[:, 1:] - total[:, :-1]) / lengths)

    def _beyond(self, further: Floats) -> Floats:
        """[M, K] the sums over so many epochs after the last, phi in proportion to the epochs.

        The last epoch's stands for its middle: phi(t) = slope t after t epochs, from `end` on, and
        the integral of 1 / (slope t + B0) has a closed form.
        """
        end = self.sums.shape[1] - 1
        last = self.sums[:, -1:] - self.sums[:, -2:-1]
        slope = _noises(last, self.reference) / (end - 0.5)
        counts = np.isfinite(slope)  # otherwise every sample counts fully, and goes on to
        slope = np.where(counts, slope, 1.0)
        grown = np.log1p(slope * further / (slope * end + self.reference)) / slope
        return np.where(counts, grown, 0.0)


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
    paths = family.paths(reference)
    mine = None if last is None else _noise(1.0 / (reference * last.ratio + reference), reference)
    if epoch_samples is None or paths is None:
        return () if last is None else (Segment(remaining, mine),)
    to_go = remaining / epoch_samples
    first = min(max(1.0 - epochs % 1.0, 0.5), to_go)
    cuts = [0.0, first]
    if to_go > first:
        parts = min(SEGMENTS - 1, max(1, round(to_go - first)))
        cuts += [first + (to_go - first) * (k + 1) / parts for k in range(parts)]
    at = np.minimum(epochs + np.array(cuts), FARTHEST)
    noise = _noises(paths.means(at), reference).T.tolist()  # [K][M]
    nearest = paths.nearest(batch)
    found: list[Segment] = []
    for begin, end, row in zip(cuts, cuts[1:], noise, strict=False):
        samples = (end - begin) * epoch_samples
        if not found and last is not None and paths.reached <= int(epochs):
            found.append(Segment(samples, mine))
            continue
        noise_at = tuple(zip(paths.batches, row, strict=True))
        if inf in row:
            noise_at = tuple(pair for pair in noise_at if pair[1] < inf)
        found.append(Segment(samples, row[nearest] if row[nearest] < inf else None, noise_at))
    return tuple(found)


def _noises(means: Floats, reference: float) -> Floats:
    """phi of means of 1 / (phi + B0); infinite where every sample counts fully."""
    phi = 1.0 / np.maximum(means, NO_MEAN) - reference
    return np.where(means > NO_MEAN, np.maximum(phi, LEAST * reference), inf)


def _noise(mean: float, reference: float) -> float | None:
    """phi of a mean of 1 / (phi + B0); None where every sample counts fully."""
    return max(1.0 / mean - reference, LEAST * reference) if mean > NO_MEAN else None
