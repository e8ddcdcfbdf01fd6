"""How noisy a job's gradients are, at the scale of the batch B0 that its script was written for.

k gradients g_i of b_i samples each, B = sum b_i together, have the mean g = sum (b_i / B) g_i. With
G the true gradient and S the covariance of one sample's,

    E sum (b_i / B) |g_i|^2 = |G|^2 + k tr(S) / B        E |g|^2 = |G|^2 + tr(S) / B

so that the two sums give |G|^2 and tr(S) without bias (McCandlish et al. 2018, appendix A.1, here
for shares of unequal size). The k gradients are the workers' of one step; a worker that is alone
takes those of two steps that follow each other, as AdaptDL does. The noise scale is
phi = B0 * var / sqr with var = tr(S) / B0 and sqr = |G|^2 (Pollux §3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

WINDOW = 100  # measurements over which the means are taken
ENOUGH = 10  # measurements before they are told
LARGEST = 1e30  # beyond which nobody believes them
SELDOM = 10  # one step of so many is measured ...
AN_EPOCH = 2  # ... unless an epoch had fewer measurements then
MOST_PENDING = 64  # measurements that nobody has looked at yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Squared norms of k gradients and of their mean, all weighted by samples."""

    parts: int  # k; of workers without a sample nothing is counted
    batch: int  # samples of all parts together
    own: float  # sum (b_i / B) |g_i|^2
    mean: float  # |g|^2
    sync_seconds: float | None = None  # that the step waited for gradients to be averaged

    def at(self, reference: int) -> tuple[float, float] | None:
        """Estimates of |G|^2 and of the gradient's variance at batch B0; None: nothing is told.

        Each may be negative by chance: only means over many steps are to be read.
        """
        if self.parts < 2 or not isfinite(self.own) or not isfinite(self.mean):
            return None
        excess = (self.own - self.mean) / (self.parts - 1)  # of mean is tr(S) / B
        return self.mean - excess, excess * self.batch / reference


Pending = Callable[[], Gradients | None]
"""Gradients that may still be on their way from a GPU: calling it waits for them."""


class Measures(Protocol):
    """What measures gradients where they are: the training framework."""

    def watch(self, samples: int) -> None:
        """Measure the gradients of the step to come, of so many samples; 0: don't. Collective."""
        ...

    def seen(self) -> Pending | None:
        """The gradients of the step just done, where that completes a measurement."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """Means of what was measured, the latest counting most; the first ones are not drawn to 0."""

    count: int = 0
    sqr: float = 0.0
    var: float = 0.0

    def after(self, sqr: float, var: float) -> Smoothed:
        """The means with one measurement more."""
        if not (abs(sqr) <= LARGEST and abs(var) <= LARGEST):
            return self
        # An exponential mean divided by the sum of its weights (Adam §3), in one step.
        keep = 1.0 - 1.0 / WINDOW
        share = (1.0 - keep) / (1.0 - keep ** (self.count + 1))
        return Smoothed(
            count=self.count + 1,
            sqr=self.sqr + share * (sqr - self.sqr),
            var=self.var + share * (var - self.var),
        )

    @property
    def told(self) -> tuple[float, float] | None:
        """sqr and var once they mean something. Where all is noise, sqr is 0."""
        if self.count < ENOUGH or self.var <= 0:
            return None
        return max(0.0, self.sqr), self.var


def interval(steps_per_epoch: int, *, workers: int) -> int:
    """Steps from one measurement to the next: seldom enough to cost nothing to speak of.

    A worker that is alone takes two steps for what several do in one.
    """
    return max(2, min(SELDOM if workers > 1 else 2 * SELDOM, steps_per_epoch // AN_EPOCH))


class NoiseMeter:
    """Has the gradients of every so many steps measured, and keeps what comes of it.

    All workers measure the same steps; the first of them keeps the means.
    """

    def __init__(
        self,
        framework: Measures,
        *,
        rank: int,
        workers: int,
        smoothed: Smoothed,
        waited: Callable[[float], None],
    ) -> None:
        self._framework = framework
        self._rank = rank
        self._workers = workers
        self._waited = waited  # takes the seconds that a step has waited for other workers
        self._smoothed = smoothed
        self._steps = 0
        self._pending: list[tuple[int, Pending]] = []

    def before_step(self, samples: int, *, steps_per_epoch: int) -> None:
        """A step of so many samples comes; 0: none does."""
        phase = self._steps % interval(steps_per_epoch, workers=self._workers)
        wanted = phase == 0 or (phase == 1 and self._workers == 1)
        self._framework.watch(samples if wanted else 0)

    def after_step(self, *, reference: int) -> None:
        """The step is done, in a training whose B0 is `reference`. Doesn't wait for a GPU."""
        self._steps += 1
        seen = self._framework.seen()
        if seen is not None and self._rank == 0:
            self._pending.append((reference, seen))
            if len(self._pending) >= MOST_PENDING:
                self.read()

    def read(self) -> Smoothed:
        """The means by now."""
        pending, self._pending = self._pending, []
        for reference, read in pending:
            gradients = read()
            if gradients is None:
                continue
            if gradients.sync_seconds is not None:
                self._waited(gradients.sync_seconds)
            if (estimated := gradients.at(reference)) is not None:
                self._smoothed = self._smoothed.after(*estimated)
        return self._smoothed
