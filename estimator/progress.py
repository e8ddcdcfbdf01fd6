"""How far a job is: rho ~ Beta(alpha, beta) (ONES §4.1), and what is still to go.

A declared length is believed; else the family's last finished job tells it; else what finished jobs
of all kinds have taught (ones.estimator.regression); else a job is taken to be half way through.
How sure each source is, is learnt from how well it foretold the jobs that finished.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import exp, isfinite, log, sqrt
from statistics import NormalDist

from ones.policies.model import JobId

LEAST_EPOCHS = 3.0  # of a job that says nothing of its length
LARGEST = 1e18  # samples beyond which a report is not believed
RECENT = 100  # misses that count
PRIOR_MISSES = 2.0  # weight of the prior spread, in misses
LEAST_SPREAD = 0.1
FAR = 3.0  # ln of a ratio: a prediction that missed by more counts as so much
NEVER_NOTHING = 1e-3  # of the total: a job that is still there has that much left to do
OUTLASTED = 0.1  # of the spread that a job far beyond its expected length still has to do
LEAST_SHARE = 1e-4
NORMAL = NormalDist()
STRONGEST = 1e5  # alpha + beta


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A job's last word on its progress; None where it does not say."""

    job: JobId
    samples: float = 0.0
    total_samples: float | None = None
    epoch_samples: float | None = None
    loss: float | None = None
    initial_loss: float | None = None
    accuracy: float | None = None  # on held-out data, 0 to 1

    @property
    def epochs(self) -> float | None:
        """Epochs done."""
        return self.samples / self.epoch_samples if self.epoch_samples else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job of the family that ran to its end, and the samples it took."""

    family: str
    total_samples: float
    job: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Expected length with the Beta parameters of the progress made; samples throughout."""

    processed: float
    total: float
    alpha: float
    beta: float
    epochs: float
    guessed: bool = False  # the length is neither declared nor its family's

    @property
    def remaining(self) -> float:
        """Never quite nothing: a job that is still there has something left to do."""
        return max(self.total - self.processed, NEVER_NOTHING * self.total)


class Misses:
    """How far predictions of one kind were off, as the spread of ln(real / foretold)."""

    def __init__(self, spread: float) -> None:
        self._prior = spread
        self._squares: deque[float] = deque(maxlen=RECENT)

    def __len__(self) -> int:
        return len(self._squares)

    def add(self, real: float, foretold: float) -> None:
        if real > 0 and foretold > 0:
            self._squares.append(min(abs(log(real / foretold)), FAR) ** 2)

    @property
    def spread(self) -> float:
        """What is to be expected of the next one, in all honesty."""
        return self._mixed(self._prior, PRIOR_MISSES)

    @property
    def shown(self) -> float:
        """What the misses themselves show: little as long as there is none."""
        return self._mixed(LEAST_SPREAD, 1.0)

    def _mixed(self, prior: float, weight: float) -> float:
        total = weight * prior**2 + sum(self._squares)
        return sqrt(total / (weight + len(self._squares)))


def believable(told: Progress) -> Progress:
    """The report without what can't be."""
    return replace(
        told,
        samples=_positive(told.samples) or 0.0,
        total_samples=_positive(told.total_samples),
        epoch_samples=_positive(told.epoch_samples),
        loss=_finite(told.loss),
        initial_loss=_positive(told.initial_loss),
        accuracy=None if (share := _finite(told.accuracy)) is None else min(max(share, 0.0), 1.0),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) and abs(value) <= LARGEST else None


def _positive(value: float | None) -> float | None:
    found = _finite(value)
    return found if found is not None and found > 0 else None


def foretold(told: Progress, total: float, misses: Misses) -> Prediction:
    """A job that was expected to take `total` samples when it began.

    The length is log-normal and known to be more than what is done, so the expectation (the median)
    grows with a job that outlasts it. It moves by the spread that misses have shown; alpha and beta
    are as wide as is honest.
    """
    done, spread = told.samples, misses.shown
    if done > 0:
        passed = NORMAL.cdf(log(done / total) / spread)
        if passed > 1.0 - 1e-9:
            total = done * exp(spread * OUTLASTED)
        elif passed > 1e-9:
            total = max(total * exp(spread * NORMAL.inv_cdf((1.0 + passed) / 2.0)), done)
    alpha, beta = _beta(done, total, misses.spread)
    return Prediction(
        processed=done, total=total, alpha=alpha, beta=beta, epochs=told.epochs or 0.0
    )


def _beta(done: float, total: float, spread: float) -> tuple[float, float]:
    mean = min(max(done / total, LEAST_SHARE), 1.0 - NEVER_NOTHING)
    # Near the end the length can only be longer, by no more than is still thought to be left.
    deviation = min(mean * spread, 1.0 - mean)
    return single_peaked(mean, mean * (1.0 - mean) / max(deviation, 1e-9) ** 2 - 1.0)


def single_peaked(mean: float, strength: float) -> tuple[float, float]:
    """alpha and beta of that mean and sum, the sum raised until both are 1 at least (ONES §4.1).

    Below 1 the density has a horn at an end, and what is drawn from it has no bounds.
    """
    mean = min(max(mean, LEAST_SHARE), 1.0 - LEAST_SHARE)
    strength = min(max(strength, 1.0 / min(mean, 1.0 - mean)), STRONGEST)
    return mean * strength, (1.0 - mean) * strength


def unknown(told: Progress, furthest: float = 0.0) -> Prediction | None:
    """Half way through, and so anywhere: the cold start. None where nothing is done either.

    `furthest` is what another job like it has done so far.
    """
    done, epoch = told.samples, told.epoch_samples
    total = max(2.0 * max(done, furthest), LEAST_EPOCHS * epoch if epoch else 0.0)
    if total <= 0:
        return None
    alpha, beta = single_peaked(done / total, 0.0)
    return Prediction(
        processed=done,
        total=total,
        alpha=alpha,
        beta=beta,
        epochs=told.epochs or 0.0,
        guessed=True,
    )
