"""How much is still to do, from how training goes: a regression fitted by likelihood (ONES §4.1).

A job's progress is rho ~ Beta(alpha, beta) with alpha = s * e / (e + r) and beta = s * r / (e + r):
e epochs are done, r are expected still to come, s says how sure that is (the paper's own is s =
e + r). ln r and ln s are linear in features of the job, so both links are positive. The weights
maximise the likelihood of the points logged of finished jobs, where rho is known, with a prior that
they leave only as far as there are jobs to say so: r = e + 1, and rho anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from scipy.optimize import minimize  # type: ignore[import-untyped]
from scipy.special import betaln, digamma  # type: ignore[import-untyped]

from ones.estimator.progress import LEAST_SHARE, Prediction, Progress, single_peaked, unknown
from ones.policies.model import Floats, JobId

POINTS = 24  # logged of one job
STEP = 1.25  # times as many samples, before the next point is logged
JOBS = 200  # finished ones that are learnt from
MOST_POINTS = 12  # of a finished job
ENOUGH_JOBS = 5  # before anything is fitted
ENOUGH_MORE = 1.2  # times as many finished jobs, before it is fitted again
LEAST_EPOCHS = 0.05
UNLIKELY = 9.0  # ln of odds beyond which a mean is kept from 0 and 1
NEARLY = 1e-3  # rho is kept this far from 0 and 1
FARTHEST = 4.0  # standard deviations beyond which a feature counts as so far
RIDGE = 0.5  # how many jobs it takes to leave the prior
# Shares of s that are tried on jobs not learnt from.
CERTAINTIES = (2.0, 1.4, 1.0, 0.7, 0.5, 0.25, 0.12, 0.06)
NEWCOMERS = 40  # jobs without a family that predictions are held against
ENOUGH_NEWCOMERS = 3
FEATURES = 6
NOBODY = JobId(0)


@dataclass(frozen=True, slots=True)
class Track:
    """What was logged of a job on its way: [N, FEATURES] and its samples at each."""

    features: Floats
    samples: Floats
    epochs: Floats


def features(told: Progress) -> Floats:
    """[FEATURES] of a believable report; nan where the job doesn't say.

    Samples processed are told by the epochs done and the data set's size.
    """
    first, now = told.initial_loss, told.loss
    improved = None if first is None or now is None else (first - now) / first
    found = (
        1.0,
        log(1.0 + (told.epochs or 0.0)),
        log(told.epoch_samples) if told.epoch_samples else None,
        log(first) if first else None,
        None if improved is None else min(max(improved, -1.0), 1.0),
        told.accuracy,
    )
    return np.array([np.nan if value is None else value for value in found])


class Logged:
    """Points of a job that is still there, ever farther apart, so that they stay few."""

    def __init__(self) -> None:
        self._told: list[Progress] = []
        self.last: Progress | None = None

    def add(self, told: Progress) -> None:
        self.last = told
        if not told.epoch_samples or told.samples <= LEAST_EPOCHS * told.epoch_samples:
            return
        if self._told and told.samples < STEP * self._told[-1].samples:
            return
        self._told.append(told)
        if len(self._told) > POINTS:
            del self._told[::2]

    def track(self) -> Track | None:
        told = self._told
        if not told:
            return None
        if len(told) > MOST_POINTS:
            told = [told[k] for k in np.linspace(0, len(told) - 1, MOST_POINTS).astype(int)]
        return Track(
            np.array([features(one) for one in told]),
            np.array([one.samples for one in told]),
            np.array([one.epochs or 0.0 for one in told]),
        )


class Regression:
    """Learns from finished jobs; speaks only where it has foretold jobs it hadn't seen."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Track, float]] = deque(maxlen=JOBS)
        self._learnt = 0  # jobs, ever
        self._fitted = 0
        self._model: _Model | None = None
        self._scores: deque[Floats] = deque(maxlen=NEWCOMERS)

    def finish(self, track: Track, length: float, *, newcomer: bool) -> None:
        """A job that took `length` samples; `newcomer`: the first that ended of its family."""
        rho = track.samples / length
        if not np.all(np.isfinite(rho)) or np.any(rho > 1.0 + 1e-6):
            return
        if newcomer and self._model is not None:
            self._scores.append(_scores(self._model, track, rho))
        self._jobs.append((track, length))
        self._learnt += 1
        if self._learnt >= max(ENOUGH_JOBS, ENOUGH_MORE * self._fitted):
            self._model = _fit(self._jobs)
            self._fitted = self._learnt

    def certainty(self) -> float | None:
        """The share of s that did best on newcomers; None where the cold start does better."""
        if len(self._scores) < ENOUGH_NEWCOMERS:
            return None
        total = np.sum(self._scores, axis=0)
        best = int(np.argmax(total))
        return CERTAINTIES[best] if total[best] > 0 else None

    def predict(self, told: Progress) -> Prediction | None:
        """None where nothing was learnt that is better than the cold start."""
        share = self.certainty()
        if self._model is None or share is None or not told.epoch_samples:
            return None
        epochs = max(told.epochs or 0.0, LEAST_EPOCHS)
        left, strength = self._model.of(features(told)[None, :])
        r, s = float(left[0]), share * float(strength[0])
        alpha, beta = single_peaked(epochs / (epochs + r), s)
        return Prediction(
            processed=told.samples,
            total=told.samples + r * told.epoch_samples,
            alpha=alpha,
            beta=beta,
            epochs=told.epochs or 0.0,
            guessed=True,
        )


@dataclass(frozen=True, slots=True)
class _Model:
    """Weights of ln r and of ln s over standardised features."""

    centre: Floats
    scale: Floats
    left: Floats
    strength: Floats

    def standard(self, found: Floats) -> Floats:
        return _standard(found, self.centre, self.scale)

    def of(self, found: Floats) -> tuple[Floats, Floats]:
        """Epochs still to come, and s."""
        x = self.standard(found)
        left = np.exp(np.clip(x @ self.left, -7.0, 14.0))
        strength = np.exp(np.clip(x @ self.strength, -2.0, 9.0))
        return np.asarray(left), np.asarray(strength)


def _standard(found: Floats, centre: Floats, scale: Floats) -> Floats:
    """Features in standard deviations; what isn't said is as it mostly is. The epochs done stay as
    they are, so that the prior can be stated in them."""
    x = np.clip((found - centre) / scale, -FARTHEST, FARTHEST)
    x[:, :2] = found[:, :2]
    return np.asarray(np.where(np.isfinite(x), x, 0.0))


def _fit(jobs: Sequence[tuple[Track, float]]) -> _Model:
    found = np.concatenate([track.features for track, _ in jobs])
    rho = np.concatenate([track.samples / length for track, length in jobs])
    epochs = np.concatenate([track.epochs for track, _ in jobs])
    counts = np.array([len(track.samples) for track, _ in jobs])
    weight = np.repeat(1.0 / counts, counts)  # every job counts as much, however long
    said = np.isfinite(found)
    filled = np.where(said, found, 0.0)
    number = np.maximum(said.sum(axis=0), 1)
    centre = filled.sum(axis=0) / number
    spread = np.sqrt(np.sum(np.where(said, found - centre, 0.0) ** 2, axis=0) / number)
    scale = np.where(spread > 1e-9, spread, 1.0)
    x = _standard(found, centre, scale)
    rho = np.clip(rho, NEARLY, 1.0 - NEARLY)
    epochs = np.maximum(epochs, LEAST_EPOCHS)
    prior = np.zeros(2 * FEATURES)
    prior[1], prior[FEATURES] = 1.0, log(2.0)

    def loss(weights: Floats) -> tuple[float, Floats]:
        value, slope = likelihood(weights, x, epochs, rho, weight)
        away = weights - prior
        return RIDGE * float(away @ away) - value, 2.0 * RIDGE * away - slope

    done = minimize(loss, prior, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    weights = done.x if np.all(np.isfinite(done.x)) else prior
    return _Model(centre, scale, weights[:FEATURES], weights[FEATURES:])


def likelihood(
    weights: Floats, x: Floats, epochs: Floats, rho: Floats, weight: Floats
) -> tuple[float, Floats]:
    """Weighted sum of ln Beta(rho; alpha, beta) and its slope in the weights."""
    left = np.clip(x @ weights[:FEATURES], -7.0, 14.0)
    sure = np.clip(x @ weights[FEATURES:], -2.0, 9.0)
    strength = np.exp(sure)
    odds = left - np.log(epochs)  # against being done
    mean = 1.0 / (1.0 + np.exp(np.clip(odds, -UNLIKELY, UNLIKELY)))
    alpha, beta = mean * strength, (1.0 - mean) * strength
    rest = np.log1p(-rho)
    each = (alpha - 1.0) * np.log(rho) + (beta - 1.0) * rest - betaln(alpha, beta)
    both = digamma(strength)
    by_alpha = np.log(rho) - digamma(alpha) + both
    by_beta = rest - digamma(beta) + both
    by_left = -strength * mean * (1.0 - mean) * (by_alpha - by_beta)
    by_sure = alpha * by_alpha + beta * by_beta
    free = (np.abs(left - 3.5) < 10.5) & (np.abs(odds) < UNLIKELY)
    by_left = np.where(free, by_left, 0.0)
    by_sure = np.where(np.abs(sure - 3.5) < 5.5, by_sure, 0.0)
    slope = np.concatenate([x.T @ (weight * by_left), x.T @ (weight * by_sure)])
    return float(weight @ each), slope


def _scores(model: _Model, track: Track, rho: Floats) -> Floats:
    """[CERTAINTIES] mean ln density of what came, less the cold start's."""
    rho = np.clip(rho, NEARLY, 1.0 - NEARLY)
    epochs = np.maximum(track.epochs, LEAST_EPOCHS)
    left, strength = model.of(track.features)
    mean = np.clip(epochs / (epochs + left), LEAST_SHARE, 1.0 - LEAST_SHARE)
    cold = []
    for samples, done in zip(track.samples, track.epochs, strict=True):
        size = float(samples) / max(float(done), LEAST_EPOCHS)
        found = unknown(Progress(job=NOBODY, samples=float(samples), epoch_samples=size))
        cold.append((found.alpha, found.beta) if found else (1.0, 1.0))
    alpha, beta = np.array(cold).T
    base = _density(rho, alpha, beta)
    horned = 1.0 / np.minimum(mean, 1.0 - mean)
    sure = np.maximum(np.array(CERTAINTIES)[:, None] * strength, horned)
    return np.asarray(np.mean(_density(rho, sure * mean, sure * (1.0 - mean)) - base, axis=1))


def _density(rho: Floats, alpha: Floats, beta: Floats) -> Floats:
    alpha, beta = np.maximum(alpha, NEARLY), np.maximum(beta, NEARLY)
    found = (alpha - 1.0) * np.log(rho) + (beta - 1.0) * np.log1p(-rho) - betaln(alpha, beta)
    return np.asarray(np.maximum(found, -30.0))
