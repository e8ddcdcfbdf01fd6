"""How far above an estimate to ask, told by runs that were left out while it was fitted.

Each known run is foretold from the others in the ways in which a new one may be new, its footing,
and the errors are kept apart by it: a family at a batch size it had is not foretold as badly as one
that nobody has seen. A batch size is the further off the more doublings lie between it and those
seen. The bound is the upper quantile of a Student-t distribution, after a prior that a few runs
outweigh, and never below the worst error that was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import exp, log, log2, sqrt
from statistics import fmean

from scipy.stats import t as student  # type: ignore[import-untyped]

from ones.estimator.needs.features import Traits
from ones.estimator.needs.structural import LARGEST_EXPONENT, Fit, Known

PRIOR_WEIGHT = 4.0  # families that the prior counts as
FOLDS = 40  # of each footing; with more, every so-manieth
NOTHING = 1e-9


class Footing(IntEnum):
    """What an estimate stands on, best first."""

    SAME = 0  # the family has run so
    OTHER_BATCH = 1  # it has run, at other batch sizes
    PARTLY = 2  # it has run, in another precision, on other data, GPUs or with another optimizer
    UNSEEN = 3  # it was never seen

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Footing.SAME: "the family has run so",
    Footing.OTHER_BATCH: "the family has run at other batch sizes",
    Footing.PARTLY: "the family has run, but not in this setting",
    Footing.UNSEEN: "a model never seen",
}
PRIOR = {  # spread of ln(used / expected) before anything was seen
    Footing.SAME: 0.05,
    Footing.OTHER_BATCH: 0.08,
    Footing.PARTLY: 0.2,
    Footing.UNSEEN: 0.8,
}


def standing(traits: Traits, known: Sequence[Known]) -> tuple[Footing, float]:
    """What an estimate of such a job stands on, and how many doublings its batch is away."""
    family = [one for one, _ in known if one.family == traits.family]
    if not family:
        return Footing.UNSEEN, 0.0
    alike = [one for one in family if _setting(one) == _setting(traits)]
    away = min(_doublings(one, traits) for one in alike or family)
    if not alike:
        return Footing.PARTLY, away
    return (Footing.OTHER_BATCH if away > 0 else Footing.SAME), away


def _setting(traits: Traits) -> tuple[object, ...]:
    return traits.precision, traits.dataset, traits.optimizer, traits.gpu_type


def _doublings(one: Traits, other: Traits) -> float:
    if one.batch_per_gpu is None or other.batch_per_gpu is None:
        return 0.0
    return abs(log2(one.batch_per_gpu / other.batch_per_gpu))


@dataclass(frozen=True, slots=True)
class Spread:
    """The errors of one footing: ln(used / expected) of a batch one doubling nearer than seen."""

    middle: float
    scale: float
    weight: float  # degrees of freedom
    worst: float
    families: int

    def factor(self, share: float, away: float) -> float:
        """What to multiply an estimate with so that this share of runs needs no more."""
        bound = self.middle + float(student.ppf(share, self.weight)) * self.scale
        if share > 0.5:
            bound = max(bound, self.worst)
        return exp(min((1.0 + away) * bound, LARGEST_EXPONENT))


HeadRoom = Mapping[Footing, Spread]


RELATIVES = (Footing.SAME, Footing.OTHER_BATCH, Footing.PARTLY)  # the family has run


def head_room(fit: Fit, known: Sequence[Known], footings: Sequence[Footing]) -> HeadRoom:
    """The errors of each footing, from runs left out. Worse footings never look better."""
    found: dict[Footing, Spread] = {}
    least = 0.0
    for footing in footings:
        errors: dict[str, list[float]] = {}
        for family, error in _errors(fit, known, footing):
            errors.setdefault(family, []).append(error)
        spread = _spread(errors, PRIOR[footing])
        if spread.scale < least:
            spread = replace(spread, scale=least)
        least = spread.scale
        found[footing] = spread
    return found


def _errors(fit: Fit, known: Sequence[Known], footing: Footing) -> Iterator[tuple[str, float]]:
    for fold in _folds(known, footing):
        rest = [one for number, one in enumerate(known) if number not in fold]
        if not rest:
            continue
        fitted = fit(rest)
        family = known[min(fold)][0].family
        kin = [one for one in rest if one[0].family == family]
        for traits, value in (known[number] for number in sorted(fold)):
            stands, away = standing(traits, kin)
            if stands is footing and value > 0:
                error = log(max(value, NOTHING)) - log(max(fitted(traits), NOTHING))
                yield traits.family, error / (1.0 + away)


def _folds(known: Sequence[Known], footing: Footing) -> Sequence[frozenset[int]]:
    """The runs of a family to leave out together: the others stand to them as the footing says."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, (one, _) in enumerate(known):
        groups.setdefault(_group(one, footing, number), []).append(number)
    folds = [frozenset(group) for group in groups.values()]
    return folds[:: max(1, -(-len(folds) // FOLDS))]


def _group(traits: Traits, footing: Footing, number: int) -> tuple[object, ...]:
    match footing:
        case Footing.SAME:
            return (number,)
        case Footing.OTHER_BATCH:
            return traits.family, traits.batch_per_gpu
        case Footing.PARTLY:
            return traits.family, *_setting(traits)
        case Footing.UNSEEN:
            return (traits.family,)


def _spread(errors: Mapping[str, Sequence[float]], prior: float) -> Spread:
    """Families weigh alike, however often each has run."""
    count = len(errors)
    weight = PRIOR_WEIGHT + count
    middle = sum(fmean(ones) for ones in errors.values()) / weight
    squares = sum(fmean((one - middle) ** 2 for one in ones) for ones in errors.values())
    scale = sqrt((PRIOR_WEIGHT * prior**2 + squares) / weight * (1.0 + 1.0 / weight))
    worst = max((one for ones in errors.values() for one in ones), default=0.0)
    return Spread(middle=middle, scale=scale, weight=weight, worst=worst, families=count)
