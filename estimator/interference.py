"""How much two jobs slow each other down on one GPU (Liquid §3.2), learnt from measured pairs.

The speed of a job beside another, relative to its speed alone, is a Gaussian process:

    speed(a, b) = mean + push(a, b) + response(a, b) + effect(a, b) + pair(a, b) + noise

    push       alike where both jobs load the GPU alike, whatever they run
    response   of the model of a to the load of b
    effect     of the model of b on jobs that load the GPU as a does
    pair       of just these two models

each with its own variance, and the last three alike where the batch size and precision are. The
load of a job is what it does alone: how long the GPU is busy, and how long its memory. A pair of
models never measured together is thus foretold by what each did beside others, a model never
measured by its load, and every answer has its error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite, log2, sqrt

import numpy as np
from scipy.linalg import cho_factor, cho_solve  # type: ignore[import-untyped]
from scipy.optimize import nnls  # type: ignore[import-untyped]
from scipy.special import ndtr  # type: ignore[import-untyped]

from ones.policies.model import Floats, Ints

# The most probable ones on published measurements; guesses within a factor of two did as well.
VARIANCE = {"mean": 0.003, "push": 0.025, "response": 0.005, "effect": 0.003, "pair": 0.003}
NOISE = 0.001  # variance of a measured relative speed
OWN_WIDTH, OTHER_WIDTH = 0.7, 1.1  # of load, from 0 to 1: how far it counts as alike
BATCH_WIDTH = 1.5  # in doublings
PRECISION_WIDTH = 2.0  # half and full precision are one apart
PAIRS = 1500  # measured, the latest
FASTEST = 10.0  # relative speed beyond which a report is no measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A job by itself on a GPU. Loads are from 0 to 1; None where nobody measured it."""

    model: str
    batch: float = 1.0
    half: bool = False  # whether it computes in half precision
    busy: float | None = None  # share of time in which the GPU works
    memory_busy: float | None = None  # share of time in which its memory is read or written

    def __post_init__(self) -> None:
        if not 0 < self.batch < float("inf"):
            raise ValueError(f"batch {self.batch:g} is not above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A pair that shared a GPU: each one's speed relative to its speed alone."""

    first: Alone
    second: Alone
    speeds: tuple[float, float]
    busy: float | None = None  # of the GPU that they shared
    memory_busy: float | None = None

    @property
    def sound(self) -> bool:
        """Whether it can be a measurement at all."""
        return all(isfinite(speed) and 0 <= speed <= FASTEST for speed in self.speeds)


@dataclass(frozen=True, slots=True)
class Together:
    """What is expected of a pair: relative speeds, and their standard errors."""

    speeds: tuple[float, float]
    errors: tuple[float, float]

    def chance(self, share: float) -> float:
        """That the job of which it is less likely keeps this share of its speed."""
        return min(
            float(ndtr((speed - share) / error))
            for speed, error in zip(self.speeds, self.errors, strict=True)
        )


class Interference:
    """All that measured pairs have taught."""

    def __init__(self, pairs: Iterable[Measured] = ()) -> None:
        self._pairs = deque((one for one in pairs if one.sound), PAIRS)
        self._fitted: _Fitted | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def learn(self, pair: Measured) -> None:
        """Take a measured pair in; one that can't be true is left out."""
        if pair.sound:
            self._pairs.append(pair)
            self._fitted = None

    def predict(self, pairs: Sequence[tuple[Alone, Alone]]) -> list[Together]:
        """What each pair would do on one GPU. Without any measurement: full speed, and no idea."""
        if not self._pairs:
            error = sqrt(sum(VARIANCE.values()) + NOISE)
            return [Together((1.0, 1.0), (error, error)) for _ in pairs]
        if self._fitted is None:
            self._fitted = _Fitted(list(self._pairs))
        ways = list(chain.from_iterable((pair, pair[::-1]) for pair in pairs))
        speeds, errors = self._fitted.predict(ways)
        return [
            Together((float(a), float(b)), (float(c), float(d)))
            for (a, b), (c, d) in zip(speeds.reshape(-1, 2), errors.reshape(-1, 2), strict=True)
        ]


Way = tuple[Alone, Alone]  # a job whose speed it is, and the one beside it


class _Fitted:
    """The process, given its measurements."""

    def __init__(self, pairs: Sequence[Measured]) -> None:
        self._loads = Loads(pairs)
        ways = list(
            chain.from_iterable(((one.first, one.second), (one.second, one.first)) for one in pairs)
        )
        self._models = {name: at for at, name in enumerate({job.model for job, _ in ways})}
        speeds = np.array([speed for one in pairs for speed in one.speeds])
        self._points = self._table(ways)
        own = _covariance(self._points, self._points) + NOISE * np.eye(len(ways))
        self._factor = cho_factor(own, lower=True)
        self._mean = float(speeds.mean())
        self._weights = cho_solve(self._factor, speeds - self._mean)

    def predict(self, ways: Sequence[Way]) -> tuple[Floats, Floats]:
        asked = self._table(ways)
        between = _covariance(asked, self._points)
        speeds = np.maximum(self._mean + between @ self._weights, 0.0)
        told = np.einsum("ij,ji->i", between, cho_solve(self._factor, between.T))
        variance = sum(VARIANCE.values()) + NOISE - told
        return speeds, np.sqrt(np.maximum(variance, NOISE))

    def _table(self, ways: Sequence[Way]) -> tuple[_Side, _Side]:
        own, other = zip(*ways, strict=True)
        return self._side(own), self._side(other)

    def _side(self, jobs: Sequence[Alone]) -> _Side:
        return _Side(
            load=np.array([self._loads.of(job) for job in jobs]),
            setting=np.array(
                [(log2(job.batch) / BATCH_WIDTH, job.half / PRECISION_WIDTH) for job in jobs]
            ),
            model=np.array([self._models.get(job.model, -1) for job in jobs]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One job of each of several pairs."""

    load: Floats  # [N, 2]
    setting: Floats  # [N, 2] batch and precision, in widths
    model: Ints


def _covariance(rows: tuple[_Side, _Side], columns: tuple[_Side, _Side]) -> Floats:
    own_load, other_load = (
        _alike(row.load / width, column.load / width)
        for row, column, width in zip(rows, columns, (OWN_WIDTH, OTHER_WIDTH), strict=True)
    )
    own_model, other_model = (
        (row.model[:, None] == column.model) * _alike(row.setting, column.setting)
        for row, column in zip(rows, columns, strict=True)
    )
    return np.asarray(
        VARIANCE["mean"]
        + VARIANCE["push"] * own_load * other_load
        + VARIANCE["response"] * own_model * other_load
        + VARIANCE["effect"] * own_load * other_model
        + VARIANCE["pair"] * own_model * other_model
    )


def _alike(rows: Floats, columns: Floats) -> Floats:
    """exp(-distance^2 / 2) of each row to each column, in widths."""
    apart = np.sum(rows**2, axis=1)[:, None] + np.sum(columns**2, axis=1) - 2.0 * rows @ columns.T
    return np.asarray(np.exp(-0.5 * np.maximum(apart, 0.0)))


class Loads:
    """What each job does to a GPU alone: as measured, else as pairs with it tell.

    Two jobs load a GPU about as much as the sum of both, so the least squares over the pairs give
    each one's share. A job of which nothing tells is taken for the middle one.
    """

    def __init__(self, pairs: Sequence[Measured]) -> None:
        jobs = {_key(job): job for pair in pairs for job in (pair.first, pair.second)}
        self._known = {key: load for key, job in jobs.items() if (load := _load(job)) is not None}
        self._known |= self._from_pairs(pairs, [key for key in jobs if key not in self._known])
        loads = list(self._known.values())
        self._middle = np.median(loads, axis=0) if loads else np.zeros(2)

    def of(self, job: Alone) -> Floats:
        """Busy, memory busy."""
        load = _load(job)
        return load if load is not None else self._known.get(_key(job), self._middle)

    def _from_pairs(self, pairs: Sequence[Measured], unknown: Sequence[Key]) -> dict[Key, Floats]:
        column = {key: number for number, key in enumerate(unknown)}
        rows, goals = [], []
        for pair in pairs:
            keys = [_key(pair.first), _key(pair.second)]
            if pair.busy is None or pair.memory_busy is None or not column.keys() & set(keys):
                continue
            row, rest = np.zeros(len(unknown)), np.array([pair.busy, pair.memory_busy])
            for key in keys:
                if key in column:
                    row[column[key]] += 1.0
                else:
                    rest = rest - self._known[key]
            rows.append(row)
            goals.append(rest)
        if not rows:
            return {}
        matrix, goal = np.array(rows), np.array(goals)
        seen = np.flatnonzero(matrix.any(axis=0))
        found = np.stack([nnls(matrix[:, seen], goal[:, i])[0] for i in range(2)], axis=1)
        loads = np.minimum(found, 1.0)
        return {unknown[int(number)]: load for number, load in zip(seen, loads, strict=True)}


Key = tuple[str, float, bool]


def _key(job: Alone) -> Key:
    return job.model, job.batch, job.half


def _load(job: Alone) -> Floats | None:
    if job.busy is None or job.memory_busy is None:
        return None
    return np.array([job.busy, job.memory_busy])
