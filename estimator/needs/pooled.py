"""One regression over all families: what a need has to do with what is known before a job runs.

It knows families by their numbers alone, so that it can tell of one that was never seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log, log2, sqrt

import numpy as np

from ones.estimator.needs.features import Precision, Traits
from ones.estimator.needs.structural import (
    EXPONENT_SPREAD,
    HALF_EFFECT_SPREAD,
    LARGEST_EXPONENT,
    LEVEL_SPREAD,
    POOLED_DOUBT,
    Fitted,
    Known,
    most_probable,
    told_or,
    usual_of,
)

NUMBERS = ("batch_per_gpu", "gpus_per_node", "nodes", "parameters", "layers")


def pooled(known: Sequence[Known], least: float) -> Fitted:
    """ln of a need as a line in half precision and the doublings of each number.

    Families weigh alike, however often each has run. A number that isn't told is the usual one.
    """
    usual = {name: usual_of(known, name) for name in NUMBERS}

    def row(traits: Traits) -> list[float]:
        numbers = [
            log2(told_or(getattr(traits, name), usual[name]) / told_or(usual[name], 1.0))
            for name in NUMBERS
        ]
        return [1.0, float(traits.precision is Precision.HALF), *numbers]

    runs = Counter(traits.family for traits, _ in known)
    goals = np.array([log(max(value, least)) for _, value in known])
    found = most_probable(
        np.array([row(traits) for traits, _ in known]),
        goals,
        doubt=np.array([POOLED_DOUBT * sqrt(runs[traits.family]) for traits, _ in known]),
        prior=np.array([float(goals.mean()), *[0.0] * (1 + len(NUMBERS))]),
        spread=np.array([LEVEL_SPREAD, HALF_EFFECT_SPREAD, *[EXPONENT_SPREAD] * len(NUMBERS)]),
    )
    return lambda traits: exp(min(float(np.dot(row(traits), found)), LARGEST_EXPONENT))
