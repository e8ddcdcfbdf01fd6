"""Speeds not measured yet, from those that others like it have shown: a matrix completed.

Rows are jobs (or families), columns what a speed was measured on: a GPU type, or a type and a
partner on the same GPUs. An entry is the logarithm of a speed, or of the seconds of a step:

    y[r, c] = offset_r + mean_c + weight_c . trait_r + noise        trait_r ~ N(0, 1)

The offset is how fast the job is as such; the traits are what makes some jobs gain more from a type
than others do. Gavel (OSDI20 §6) completes such a matrix to a point and takes the nearest reference
job. Here all factors are normal distributions with priors learnt from the matrix itself
(variational principal components: Bishop 1999; Ilin and Raiko 2010), so every completed entry has a
standard error, traits that explain nothing vanish, and one known entry is enough for a row.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ones.policies.model import Floats

Column = TypeVar("Column", bound=Hashable)
TRAITS = 4  # at most
ENTRIES = 1.5  # for each row and column, before there is another trait
STEPS = 100
SETTLED = 1e-3  # relative change of the noise's variance at which the iteration ends
BROAD = 100.0  # variance of offsets and means, before they tell
PRIOR_VARIANCE = 0.1  # of a trait's weights, before they tell ...
PRIOR_COLUMNS = 1.0  # ... and in how many columns' place it stands
LEAST_NOISE = 0.02  # standard deviation of ln(speed): measurements are no better


@dataclass(frozen=True, slots=True)
class Completed:
    """What an entry is expected to be, and the standard error of that."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, eq=False)
class _Factors:
    """A constant and traits (or weights) of each row (or column), normally distributed."""

    mean: Floats  # [rows, 1 + traits]
    spread: Floats  # [rows, 1 + traits, 1 + traits]

    def given_with_one(self) -> Floats:
        """The means as what the other side's factors are multiplied by: its constant by 1."""
        design = self.mean.copy()
        design[:, 0] = 1.0
        return design


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Completion(Generic[Column]):
    """What the reference rows have taught of the columns."""

    columns: Mapping[Column, int]
    factors: _Factors
    noise: float  # variance
    offsets: float  # variance
    rows: int
    scale: float = 1.0  # of the errors, as its misses have shown since

    def complete(self, row: Mapping[Column, float]) -> dict[Column, Completed]:
        """All columns of a row of which these entries are known; entries of others are ignored."""
        seen, there = _matrix([row], self.columns)
        found = _rows(seen, there, self.factors, noise=self.noise, offsets=self.offsets)
        value, variance = _entries(found, self.factors)
        error = self.scale * np.sqrt(variance[0] + self.noise)
        return {
            column: Completed(float(value[0, c]), float(error[c]))
            for column, c in self.columns.items()
        }


def learn(
    rows: Sequence[Mapping[Column, float]], *, traits: int | None = None
) -> Completion[Column]:
    """Learn the columns from reference rows; `traits` is chosen by the number of entries."""
    names = sorted({column for row in rows for column in row}, key=repr)
    if not names:
        raise ValueError("a matrix without entries teaches nothing")
    columns = {column: c for c, column in enumerate(names)}
    seen, there = _matrix(rows, columns)
    if traits is None:
        enough = int(there.sum() / (ENTRIES * (len(rows) + len(names))))
        traits = min(max(enough, 1), TRAITS)
    traits = min(traits, len(names) - 1, len(rows) - 1)
    factors = _begin(seen, there, traits)
    weights = np.full(traits, PRIOR_VARIANCE)
    usual, means, offsets = float(factors.mean[:, 0].mean()), BROAD, BROAD
    noise = max(float(np.var(seen[there > 0])) * 0.01, LEAST_NOISE**2)
    for _ in range(STEPS):
        known = _rows(seen, there, factors, noise=noise, offsets=offsets)
        offsets = _second_moment(known, 0.0)[0] / len(rows)
        variances = np.concatenate([[means], weights])
        factors = _columns(seen, there, known, noise=noise, usual=usual, variances=variances)
        usual = float(factors.mean[:, 0].mean())
        moment = _second_moment(factors, usual)
        means = max(moment[0] / len(names), LEAST_NOISE**2)
        weights = (PRIOR_COLUMNS * PRIOR_VARIANCE + moment[1:]) / (PRIOR_COLUMNS + len(names))
        value, variance = _entries(known, factors)
        missed = float((there * ((seen - value) ** 2 + variance)).sum() / there.sum())
        before, noise = noise, max(missed, LEAST_NOISE**2)
        if abs(noise - before) < SETTLED * before:
            break
    return Completion(
        columns=columns, factors=factors, noise=noise, offsets=float(offsets), rows=len(rows)
    )


def _matrix(
    rows: Sequence[Mapping[Column, float]], columns: Mapping[Column, int]
) -> tuple[Floats, Floats]:
    """The entries, 0 where there is none; and 1 where there is one."""
    seen = np.zeros((len(rows), len(columns)))
    there = np.zeros_like(seen)
    for r, row in enumerate(rows):
        for column, entry in row.items():
            if column in columns:
                seen[r, columns[column]] = entry
                there[r, columns[column]] = 1.0
    return seen, there


def _begin(seen: Floats, there: Floats, traits: int) -> _Factors:
    """Means, and as weights the principal components of the entries known."""
    mean, offset = np.zeros(seen.shape[1]), np.zeros(len(seen))
    for _ in range(20):
        offset = (there * (seen - mean)).sum(axis=1) / np.maximum(there.sum(axis=1), 1.0)
        mean = (there * (seen - offset[:, None])).sum(axis=0) / there.sum(axis=0)
    rest = there * (seen - offset[:, None] - mean)
    _, strength, axes = np.linalg.svd(rest, full_matrices=False)
    weights = (strength[:traits, None] * axes[:traits]).T / np.sqrt(len(seen))
    spread = np.zeros((len(mean), 1 + traits, 1 + traits))
    return _Factors(np.column_stack([mean, weights]), spread)


def _rows(
    seen: Floats, there: Floats, columns: _Factors, *, noise: float, offsets: float
) -> _Factors:
    """Offset and traits of each row given the columns."""
    variances = np.ones(columns.mean.shape[1])
    variances[0] = offsets
    return _regress(seen, there, columns, noise=noise, usual=0.0, variances=variances)


def _columns(
    seen: Floats, there: Floats, rows: _Factors, *, noise: float, usual: float, variances: Floats
) -> _Factors:
    """Mean and weights of each column given the rows."""
    return _regress(seen.T, there.T, rows, noise=noise, usual=usual, variances=variances)


def _regress(
    seen: Floats, there: Floats, others: _Factors, *, noise: float, usual: float, variances: Floats
) -> _Factors:
    """Bayesian linear regression of each row on the others' factors, which are uncertain as well.

    `usual` is the prior mean of the constant, `variances` the prior variances.
    """
    design = others.given_with_one()
    square = design[:, :, None] * design[:, None, :]
    square[:, 1:, 1:] += others.spread[:, 1:, 1:]
    precision = np.diag(1.0 / variances) + np.einsum("rc,ckl->rkl", there, square) / noise
    spread = np.linalg.inv(precision)
    # What the others' constant and traits have in common is not to be explained twice.
    common = np.zeros_like(design)
    common[:, 1:] = others.spread[:, 1:, 0]
    target = ((there * (seen - others.mean[:, 0])) @ design - there @ common) / noise
    target[:, 0] += usual / variances[0]
    return _Factors(np.einsum("rkl,rl->rk", spread, target), spread)


def _entries(rows: _Factors, columns: _Factors) -> tuple[Floats, Floats]:
    """Every entry, and its variance without the noise."""
    row, column = rows.given_with_one(), columns.given_with_one()
    value = rows.mean[:, :1] + columns.mean[:, 0] + row[:, 1:] @ column[:, 1:].T
    variance = np.einsum("ck,rkl,cl->rc", column, rows.spread, column)
    variance += np.einsum("rk,ckl,rl->rc", row, columns.spread, row)
    variance += np.einsum("rkl,ckl->rc", rows.spread[:, 1:, 1:], columns.spread[:, 1:, 1:])
    return value, variance


def _second_moment(factors: _Factors, usual: float) -> Floats:
    """Summed expected squares of the factors, of the constant about `usual`."""
    centre = np.zeros(factors.mean.shape[1])
    centre[0] = usual
    squares = (factors.mean - centre) ** 2 + np.einsum("rkk->rk", factors.spread)
    return np.asarray(squares.sum(axis=0))
