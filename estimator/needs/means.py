"""What any regression must beat: the mean of the known runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ones.estimator.needs.structural import Fitted, Known


def mean(known: Sequence[Known]) -> Fitted:
    """The mean over all runs, whatever they ran."""
    everywhere = fmean(value for _, value in known)
    return lambda _: everywhere


def family_mean(known: Sequence[Known]) -> Fitted:
    """The mean over the runs of the family, and over all runs where it was never seen."""
    families: dict[str, list[float]] = {}
    for traits, value in known:
        families.setdefault(traits.family, []).append(value)
    means = {family: fmean(values) for family, values in families.items()}
    everywhere = fmean(value for _, value in known)
    return lambda traits: means.get(traits.family, everywhere)
