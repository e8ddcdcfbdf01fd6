"""Step times as a formula: Pollux's seven parameters, one set for every GPU type (OSDI21 §3.2).

    t_grad = alpha_c + beta_c * l                   gradient of l samples per GPU and pass
    t_sync = 0                                      on one GPU
             alpha_r + beta_r * (gpus - 2)          inside a node
             alpha_n + beta_n * (gpus - 2)          over several nodes
    t_iter = (t_grad^gamma + t_sync^gamma)^(1/gamma)    1 <= gamma <= 10: how far they overlap
    step   = (passes - 1) * t_grad + t_iter         only the last pass synchronises

A type that has run on several GPUs has network terms of its own: types sit in nodes of different
make. What it hasn't seen it takes from the type of which most is known; what none has seen costs
nothing, except that the network between nodes is never better than the one inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from scipy.optimize import minimize, nnls  # type: ignore[import-untyped]

from ones.policies.model import Floats, Seconds

FIXED_SHARE = 0.15  # of a gradient's time that no smaller batch saves, until seen otherwise
LEAST = 1e-9  # of the typical step: what is never less, so that logarithms exist
OVERLAP_PENALTY = 1e-3  # on (gamma - 1)^2
GROWTH_PENALTY = 1e-2  # on (beta / alpha)^2 of the network terms
SHARE_PENALTY = 1e-2  # on the distance from the expected fixed share
SMOOTHING = 1e-3  # errors below this hardly count: the root mean square has no kink at zero
OVERLAP = 6  # index of gamma


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """What one configuration took. `gradient_seconds` is None where it wasn't told apart."""

    gpu_type: str
    nodes: int
    gpus: int
    local: float  # samples per GPU and pass
    passes: int
    step_seconds: Seconds
    gradient_seconds: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """The parameters of one GPU type."""

    alpha_c: float
    beta_c: float
    alpha_r: float = 0.0
    beta_r: float = 0.0
    alpha_n: float = 0.0
    beta_n: float = 0.0
    gamma: float = 1.0

    def sync(self, nodes: Floats, gpus: Floats) -> Floats:
        more = np.maximum(gpus - 2.0, 0.0)
        inside = self.alpha_r + self.beta_r * more
        between = self.alpha_n + self.beta_n * more
        return np.where(gpus > 1, np.where(nodes > 1, between, inside), 0.0)

    def seconds(self, nodes: Floats, gpus: Floats, local: Floats, passes: Floats) -> Floats:
        """Of an optimiser step. Arrays broadcast."""
        gradient = self.alpha_c + self.beta_c * local
        sync = self.sync(nodes, gpus)
        if self.gamma == 1.0 or not np.any(sync):
            return np.asarray(passes * gradient + sync, dtype=np.float64)
        # exp and log are several times faster than powers, and the ratio can't overflow.
        larger = np.maximum(gradient, sync)
        ratio = np.minimum(gradient, sync) / larger
        with np.errstate(divide="ignore"):
            overlapped = np.exp(np.log1p(np.exp(self.gamma * np.log(ratio))) / self.gamma)
        return np.asarray((passes - 1.0) * gradient + larger * overlapped, dtype=np.float64)


def fit(points: Sequence[Point], *, before: Mapping[str, Terms] | None = None) -> dict[str, Terms]:
    """Terms of every type seen, the best known type first. `before` is where the search starts."""
    by_type: dict[str, list[Point]] = {}
    for point in points:
        by_type.setdefault(point.gpu_type, []).append(point)
    found: dict[str, Terms] = {}
    for kind in sorted(by_type, key=lambda kind: (-len(by_type[kind]), kind)):
        like = next(iter(found.values()), None)
        found[kind] = _Fit(by_type[kind], like).search((before or {}).get(kind))
    return found


class _Fit:
    """The points of one type as arrays, and the distance of a parameter vector from them.

    The vector holds the logarithms of alpha_c ... beta_n in units of the typical step, then gamma.
    """

    def __init__(self, points: Sequence[Point], like: Terms | None) -> None:
        self.nodes = np.array([float(one.nodes) for one in points])
        self.gpus = np.array([float(one.gpus) for one in points])
        self.local = np.array([one.local for one in points])
        self.passes = np.array([float(one.passes) for one in points])
        step = np.array([one.step_seconds for one in points])
        self.unit = float(np.median(step))
        self.typical_local = float(np.exp(np.mean(np.log(self.local))))
        self.log_step = np.log(step / self.unit)
        apart = [one.gradient_seconds is not None for one in points]
        self.apart = np.flatnonzero(apart)
        gradients = [one.gradient_seconds for one in points if one.gradient_seconds is not None]
        self.log_gradient = np.log(np.array(gradients) / self.unit)
        several = self.gpus > 1
        self.between = self.nodes > 1
        self.inside = several & ~self.between
        self.more = np.maximum(self.gpus - 2.0, 0.0)
        more = self.more * self.inside, self.more * self.between
        self.network = np.stack([self.inside, more[0], self.between, more[1]]).astype(np.float64)
        self.several = several.astype(np.float64)
        self.alone = np.stack([np.zeros(len(step)), 1.0 - self.several])
        self.again = self.passes - 1.0
        self.local_apart = self.local[self.apart]
        # Written over at each call: to stack rows anew takes longer.
        self.slopes, self.both = np.empty((7, len(step))), np.empty((2, len(step)))
        self.like = like
        self.share = FIXED_SHARE
        if like is not None:
            self.share = like.alpha_c / (like.alpha_c + like.beta_c * self.typical_local)
        wide = self.gpus > 2
        seen = [self.inside, self.inside & wide, self.between, self.between & wide]
        network = [bool(np.any(rows)) for rows in seen]
        self.free = np.array([True, True, *network, any(network)])

    def search(self, before: Terms | None) -> Terms:
        start = self._vector(self._linear())
        if before is not None:
            again = self._vector(before)
            start = min((start, again), key=lambda vector: self.loss(vector)[0])
        free = np.flatnonzero(self.free)
        whole = start.copy()

        def loss(part: Floats) -> tuple[float, Floats]:
            whole[free] = part
            value, slope = self.loss(whole)
            return value, slope[free]

        low, high = np.full(7, np.log(LEAST)), np.full(7, np.log(1e9))
        low[OVERLAP], high[OVERLAP] = 1.0, 10.0
        bounds = np.stack([low[free], high[free]], axis=1)
        done = minimize(
            loss,
            np.clip(start[free], low[free], high[free]),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 100, "ftol": 1e-7},
        )
        whole[free] = done.x
        return self._terms(whole)

    def loss(self, vector: Floats) -> tuple[float, Floats]:
        """Root mean square of the log errors plus penalties, and its slope."""
        terms, gamma = np.exp(vector[:OVERLAP]), float(vector[OVERLAP])
        a_c, b_c = float(terms[0]), float(terms[1])
        both, slopes = self.both, self.slopes
        each = b_c * self.local
        network = self.network * terms[2:, None]
        gradient = np.add(a_c, each, out=both[0])
        np.add.reduce(network, axis=0, out=both[1])  # the time to synchronise
        larger = np.maximum(gradient, both[1])
        pass_seconds = larger * np.add.reduce((both / larger) ** gamma) ** (1.0 / gamma)
        shares = both / pass_seconds
        step = self.again * gradient + pass_seconds
        by_gradient, by_sync = shares ** (gamma - 1.0)
        by_gradient = self.again + by_gradient
        # On one GPU there is nothing to overlap: 0 log 0 is 0, and so is 1 log 1.
        entropy = np.add.reduce(shares**gamma * np.log(shares + self.alone))
        value, slope = 0.0, np.zeros(7)
        np.multiply(by_gradient, a_c, out=slopes[0])
        np.multiply(by_gradient, each, out=slopes[1])
        np.multiply(by_sync * self.several, network, out=slopes[2:OVERLAP])
        np.multiply(pass_seconds / gamma, entropy, out=slopes[OVERLAP])
        error = np.log(step) - self.log_step
        size = sqrt(_mean_square(error) + SMOOTHING**2)
        value += size
        slope += slopes @ (error / step) / (len(error) * size)
        if len(self.apart):
            own = a_c + b_c * self.local_apart
            error = np.log(own) - self.log_gradient
            size = sqrt(_mean_square(error) + SMOOTHING**2)
            value += size
            weight = error / own / (len(error) * size)
            slope[0] += a_c * np.add.reduce(weight)
            slope[1] += np.add.reduce(b_c * self.local_apart * weight)
        value += OVERLAP_PENALTY * (gamma - 1.0) ** 2
        slope[OVERLAP] += 2.0 * OVERLAP_PENALTY * (gamma - 1.0)
        for alpha, beta in ((2, 3), (4, 5)):
            if self.free[beta]:
                growth = np.exp(2.0 * (vector[beta] - vector[alpha]))
                value += GROWTH_PENALTY * growth
                slope[beta] += 2.0 * GROWTH_PENALTY * growth
                slope[alpha] -= 2.0 * GROWTH_PENALTY * growth
        share = a_c / (a_c + b_c * self.typical_local)
        away = share - self.share
        value += SHARE_PENALTY * away**2
        slope[0] += 2.0 * SHARE_PENALTY * away * share * (1.0 - share)
        slope[1] -= 2.0 * SHARE_PENALTY * away * share * (1.0 - share)
        return value, slope

    def _linear(self) -> Terms:
        """The start: without overlap the form is linear, and its best fit needs no search."""
        seconds = np.exp(self.log_step)
        columns = [
            self.passes,
            self.passes * self.local,
            self.inside,
            self.inside * self.more,
            self.between,
            self.between * self.more,
        ]
        rows = np.stack([column / seconds for column in columns], axis=1)
        goals = np.ones(len(seconds))
        share = [0.1 * (1.0 - self.share), -0.1 * self.share * self.typical_local, 0, 0, 0, 0]
        small = 0.01 * np.diag([0, 0, 1.0, 2.0, 1.0, 2.0])
        matrix = np.concatenate([rows, [share], small])
        found, _ = nnls(matrix, np.concatenate([goals, np.zeros(7)]))
        a_c, b_c, a_r, b_r, a_n, b_n = (float(value) * self.unit for value in found)
        return Terms(a_c, b_c, a_r, b_r, a_n, b_n, 1.2)

    def _vector(self, terms: Terms) -> Floats:
        network = [terms.alpha_r, terms.beta_r, terms.alpha_n, terms.beta_n]
        values = [terms.alpha_c, terms.beta_c, *network]
        # Where the search may move a parameter it must not start where the slope has vanished.
        least = np.array([1e-3, 1e-3 / self.typical_local, 1e-3, 1e-4, 1e-3, 1e-4])
        scaled = np.array(values) / self.unit
        scaled = np.maximum(scaled, np.where(self.free[:OVERLAP], least, LEAST))
        return np.append(np.log(scaled), min(max(terms.gamma, 1.0), 10.0))

    def _terms(self, vector: Floats) -> Terms:
        values = (float(value) for value in np.exp(vector[:OVERLAP]) * self.unit)
        a_c, b_c, a_r, b_r, a_n, b_n = values
        found = Terms(a_c, b_c, a_r, b_r, a_n, b_n, float(vector[OVERLAP]))
        seen, like = self.free, self.like
        if not seen[2] and not seen[4]:
            network = like or Terms(0.0, 0.0)
            found = replace(
                found,
                alpha_r=network.alpha_r,
                beta_r=network.beta_r,
                alpha_n=network.alpha_n,
                beta_n=network.beta_n,
                gamma=network.gamma,
            )
        elif not seen[2]:
            alpha, beta = (like.alpha_r, like.beta_r) if like else (0.0, 0.0)
            found = replace(
                found, alpha_r=min(alpha, found.alpha_n), beta_r=min(beta, found.beta_n)
            )
        elif not seen[4]:
            alpha, beta = (like.alpha_n, like.beta_n) if like else (0.0, 0.0)
            found = replace(
                found, alpha_n=max(alpha, found.alpha_r), beta_n=max(beta, found.beta_r)
            )
        return found


def _mean_square(errors: Floats) -> float:
    """As numpy's mean, which takes longer to be called than to add up a dozen numbers."""
    return float(np.add.reduce(errors * errors)) / len(errors)
