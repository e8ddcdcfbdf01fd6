"""A family never seen: which guess to make of its need, and how far above that to ask.

Each known family is left out in turn, and what it needed is guessed from the others in several
ways. The way with the least error is taken where it is markedly better than the mean of all runs;
else the mean is. The bound is a conformal one with families as groups: how many spreads of what the
other families would need in its place (Lei et al., JASA 2018, §5.2: locally weighted residuals) a
left-out one needed above their middle. Each family weighs alike and the new one as one that needs
more than any other, so that no more is promised than as many families can tell (Dunn, Wasserman and
Ramdas, JASA 2023: pooled distributions of groups).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import brentq  # type: ignore[import-untyped]

from ones.estimator.needs.features import Traits
from ones.estimator.needs.means import mean
from ones.estimator.needs.pooled import pooled
from ones.estimator.needs.structural import (
    LARGEST_EXPONENT,
    RUNS,
    Fitted,
    Known,
    Mixture,
    StructuralFit,
)
from ones.policies.model import Floats

MARKEDLY = 0.8  # of the mean's error, or less: by so few families smaller gains are mostly luck
LEAST_FAMILIES = 5  # before they choose; among fewer one odd one carries the mean away
TRIED = 30  # the latest families, each left out once
MOST_ERROR = 1.0  # relative: to guess far too much is no worse than to guess nothing at all
MOST_SPARE = 2.0  # times what left-out families needed, in the mean: more is not asked for
UNLIKE = 0.8  # spread of ln(need) between families, before there are several
USUAL_ERROR = 0.8  # of ln(need), before any family was left out


@dataclass(frozen=True, slots=True)
class Unseen:
    """How to guess what a family needs that was never seen, and how good that is."""

    way: str
    error: float  # standard deviation of ln(used / guess), of families left out
    stretch: float  # spreads above the middle of what the known ones would need
    share: float  # of the runs of a new family that get along with the bound

    def guess(self, fitted: Mixture[Any], least: float) -> Fitted:
        """What it is expected to need."""
        return WAYS[self.way](fitted, least)

    def bound(self, fitted: Mixture[Any], traits: Traits, least: float) -> float:
        """What `share` of the runs of such families get along with."""
        middle, spread = _among(fitted, traits, least)
        return exp(min(middle + self.stretch * spread, LARGEST_EXPONENT))


NOBODY_KNOWN = Unseen("middle", USUAL_ERROR, 0.0, 0.0)

Way = Callable[[Mixture[Any], float], Fitted]


def _middle(fitted: Mixture[Any], _: float) -> Fitted:
    return fitted


def _dense(fitted: Mixture[Any], least: float) -> Fitted:
    values = np.maximum([value for _, value in fitted.known], least)
    centre = densest_half(values, np.ones(len(values)))
    return lambda _: centre


def _dense_families(fitted: Mixture[Any], least: float) -> Fitted:
    def guess(traits: Traits) -> float:
        values, weights = fitted.in_its_place(traits)
        return densest_half(np.maximum(values, least), weights)

    return guess


WAYS: Mapping[str, Way] = {
    "mean": lambda fitted, _: mean(fitted.known),
    "middle": _middle,  # of what the known families would need in its place
    "densest runs": _dense,
    "densest families": _dense_families,  # the same of what they would need in its place
    "pooled": lambda fitted, least: pooled(fitted.known, least),
}
"""From what the known families need to a guess."""
MEAN, MIDDLE = 0, 1


def densest_half(values: Floats, weights: Floats) -> float:
    """The value from which half of the weight is the least far off, relative to itself.

    Half of the values lie in some interval [a, b] with the least b / a (the shorth; Rousseeuw's
    least median of squares). Relative to the value the guess 2ab / (a + b) is equally far from a as
    from b, which makes it the guess of the least median relative error.
    """
    order = np.argsort(values, kind="stable")
    value, weight = values[order], weights[order]
    below = np.concatenate([[0.0], np.cumsum(weight)])
    ends = np.searchsorted(below, below[:-1] + 0.5 * below[-1] * (1.0 - 1e-9))
    starts = np.flatnonzero(ends <= len(value))
    first, last = value[starts], value[ends[starts] - 1]
    best = int(np.argmin(last / first))
    return float(2.0 * first[best] * last[best] / (first[best] + last[best]))


@dataclass(frozen=True, slots=True)
class _Trial:
    """A family that was left out: its N runs, all in ln, and what the others said of them."""

    used: Floats  # [N]
    guessed: Floats  # [N, W] by way
    middle: Floats  # [N] of what the others would need
    spread: Floats  # [N]

    @property
    def losses(self) -> Floats:
        """[W] mean relative errors."""
        off = np.abs(np.expm1(np.minimum(self.guessed - self.used[:, None], LARGEST_EXPONENT)))
        return np.asarray(np.minimum(off, MOST_ERROR).mean(axis=0))

    @property
    def stretches(self) -> Floats:
        return (self.used - self.middle) / self.spread


def unseen(
    fit: StructuralFit,
    known: Sequence[Known],
    *,
    share: float,
    least: float,
) -> Unseen:
    """The way of guessing, and the bound that `share` of the runs get along with.

    Where so much can't be promised by so few families, or would take more than MOST_SPARE, less is
    promised. `least` is what is taken as nothing.
    """
    trials = list(_trials(fit, known, least))
    if not trials:
        return NOBODY_KNOWN
    losses = np.array([one.losses for one in trials])
    # What is chosen is judged by each family with a choice that it had no part in.
    squares = [
        fmean((one.used - one.guessed[:, _choice(np.delete(losses, number, axis=0))]) ** 2)
        for number, one in enumerate(trials)
    ]
    count = len(trials)
    stretch = _stretch(trials, share)
    return Unseen(
        way=list(WAYS)[_choice(losses)],
        error=sqrt((USUAL_ERROR**2 + sum(squares)) / (1 + count)),
        stretch=stretch,
        share=_promised(trials, stretch),
    )


def _trials(fit: StructuralFit, known: Sequence[Known], least: float) -> Iterator[_Trial]:
    families = list(dict.fromkeys(traits.family for traits, _ in known))
    if len(families) < 2:
        return
    for family in families[-TRIED:]:
        fitted = fit([one for one in known if one[0].family != family])
        guesses = [way(fitted, least) for way in WAYS.values()]
        runs = [one for one in known if one[0].family == family][-RUNS:]
        among = [_among(fitted, traits, least) for traits, _ in runs]
        yield _Trial(
            used=np.log(np.maximum([value for _, value in runs], least)),
            guessed=np.log(
                np.maximum([[guess(traits) for guess in guesses] for traits, _ in runs], least)
            ),
            middle=np.array([middle for middle, _ in among]),
            spread=np.array([spread for _, spread in among]),
        )


def _among(fitted: Mixture[Any], traits: Traits, least: float) -> tuple[float, float]:
    """Middle and spread of ln of what the known families would need in its place."""
    values, weights = fitted.in_its_place(traits)
    needs = np.log(np.maximum(values, least))
    weights = weights * len(weights) / weights.sum()
    middle = float(np.average(needs, weights=weights))
    squares = float(weights @ (needs - middle) ** 2)
    return middle, sqrt((UNLIKE**2 + squares) / (1.0 + len(needs)))


def _choice(losses: Floats) -> int:
    """Of [F, W] losses by family and way, the least; the mean's where that is hardly worse."""
    if len(losses) < LEAST_FAMILIES:
        return MIDDLE
    means = losses.mean(axis=0)
    best = int(np.argmin(means))
    return best if means[best] <= MARKEDLY * means[MEAN] else MEAN


def _promised(trials: Sequence[_Trial], stretch: float) -> float:
    held = sum(float(np.mean(one.stretches <= stretch)) for one in trials)
    return held / (len(trials) + 1)


def _spare(trials: Sequence[_Trial], stretch: float) -> float:
    """How much more would be asked for than needed, relative to that, in the mean of families."""
    asked = (one.middle + stretch * one.spread - one.used for one in trials)
    return fmean(float(np.expm1(np.minimum(one, LARGEST_EXPONENT)).mean()) for one in asked)


def _stretch(trials: Sequence[_Trial], share: float) -> float:
    found = np.sort(np.concatenate([one.stretches for one in trials]))
    enough = next((one for one in found if _promised(trials, one) >= share), found[-1])
    if _spare(trials, enough) <= MOST_SPARE:
        return float(enough)
    lowest = min(float(found[0]), 0.0) - 1.0 / UNLIKE
    if _spare(trials, lowest) >= MOST_SPARE:
        return float(found[0])
    return float(brentq(lambda one: _spare(trials, one) - MOST_SPARE, lowest, float(enough)))
