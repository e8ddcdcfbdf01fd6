"""Liquid's random forest (§1.2), to compare with. It needs scikit-learn, an extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ones.estimator.needs.features import CATEGORIES, NUMBERS, Traits
from ones.estimator.needs.structural import Fitted, Known
from ones.policies.model import Floats

TREES, DEPTH, LEAST_SPLIT, LEAST_LEAF = 70, 13, 10, 5  # as in Liquid


class ForestMissing(Exception):
    """scikit-learn is not installed."""


def forest(known: Sequence[Known]) -> Fitted:
    """Fit a forest on one-hot categories and numbers; it sees all features but one at a split."""
    columns = [
        (name, value)
        for name in CATEGORIES
        for value in sorted({str(getattr(traits, name)) for traits, _ in known})
    ]
    rows = np.array([_row(traits, columns) for traits, _ in known])
    found = _regressor(most_features=max(rows.shape[1] - 1, 1))
    found.fit(rows, np.array([value for _, value in known]))
    return lambda traits: float(found.predict(_row(traits, columns)[None, :])[0])


def _row(traits: Traits, columns: Sequence[tuple[str, str]]) -> Floats:
    categories = [float(str(getattr(traits, name)) == value) for name, value in columns]
    numbers = [getattr(traits, name) for name in NUMBERS]
    # Below every number: a tree can set the unknown apart.
    return np.array([*categories, *[-1.0 if one is None else float(one) for one in numbers]])


def _regressor(*, most_features: int) -> Any:
    try:
        from sklearn.ensemble import (  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415
            RandomForestRegressor,
        )
    except ImportError:
        raise ForestMissing(
            "the forest needs scikit-learn: pip install 'scikit-learn>=1.4'"
        ) from None
    return RandomForestRegressor(
        n_estimators=TREES,
        max_depth=DEPTH,
        min_samples_split=LEAST_SPLIT,
        min_samples_leaf=LEAST_LEAF,
        max_features=most_features,
        random_state=0,
    )
