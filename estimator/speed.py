"""The speed of a job at sizes it has and hasn't had, learnt from reported step times only.

The form is Pollux's (OSDI21 §3.2) without overlap, so that it is linear in its parameters and the
fit is a small non-negative least-squares problem: no starting point, no local minimum.

    t = a_c + b_c * l                          gradient: l = samples per GPU and step
      + [gpus > 1]  (a_r + b_r * (gpus - 2))   synchronising inside a node
      + [nodes > 1] (a_n + b_n * (gpus - 2))   what more it costs between nodes

a_c and b_c are per GPU type. What was never seen is taken to cost nothing, so the model is
optimistic and a job is tried at larger sizes, but never beyond twice what its family has run on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from statistics import median

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]

from ones.policies.model import Floats, Ints, JobId, Seconds

FIXED_SHARE = 0.15  # of a step that more GPUs do not shorten, until seen otherwise
PRIOR = 0.05  # weight of what is assumed, against 1 for a measurement
COUPLING = 0.3  # weight of the assumption that types differ as they do for other jobs
SCALING = 0.8  # without any measurement, time falls as size^-SCALING up to the requested size
QUANTUM = 0.02  # step times closer than this are the same: a fit is reused while reports jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A reported mean step time. `batch` is global; a job that names none counts samples: batch 1
    and step_seconds = seconds per sample."""

    job: JobId
    family: str
    gpu_type: str
    nodes: int
    gpus: int
    batch: float
    step_seconds: Seconds


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The median step time of one configuration."""

    gpu_type: str
    nodes: int
    gpus: int
    batch: float
    step_seconds: Seconds


@dataclass(frozen=True, slots=True)
class Curve:
    """The fitted form; parameters a_r, b_r, a_n, b_n, then a_c and b_c of each type."""

    points: tuple[Point, ...]
    sync: tuple[float, float, float, float]
    gradient: tuple[tuple[str, float, float], ...]

    def raw(self, gpu_type: str, nodes: Floats, gpus: Floats, batch: Floats) -> Floats:
        fixed, each = {kind: (a, b) for kind, a, b in self.gradient}[gpu_type]
        a_r, b_r, a_n, b_n = self.sync
        more = np.maximum(gpus - 2.0, 0.0)
        inside = np.where(gpus > 1, a_r + b_r * more, 0.0)
        between = np.where(nodes > 1, a_n + b_n * more, 0.0)
        return np.asarray(fixed + each * batch / gpus + inside + between, dtype=np.float64)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(kind for kind, _, _ in self.gradient)


@dataclass(frozen=True, slots=True)
class LearntSpeed:
    """A fitted curve, drawn towards what was measured near the asked configuration."""

    curve: Curve
    factors: tuple[tuple[str, float], ...]  # seconds of a type relative to those of the first
    most: int  # GPUs beyond which nothing is promised

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        scale, known = 1.0, gpu_type
        factors = dict(self.factors)
        if gpu_type not in self.curve.types:
            known = self.curve.types[0]
            scale = factors.get(gpu_type, 1.0) / factors.get(known, 1.0)
        size = np.minimum(np.asarray(gpus, dtype=np.float64), self.most)
        spread = np.asarray(nodes, dtype=np.float64)
        batch = np.asarray(global_batch, dtype=np.float64)
        seconds = self.curve.raw(known, spread, size, batch)
        return scale * seconds * self._correction(known, spread, size, batch)

    def _correction(self, kind: str, nodes: Floats, gpus: Floats, batch: Floats) -> Floats:
        """exp of the kernel-weighted mean residual; near a measurement it reproduces it."""
        total, weight = np.zeros(np.broadcast(nodes, gpus, batch).shape), 0.3
        for point in self.curve.points:
            if point.gpu_type != kind:
                continue
            at = (np.array(float(point.nodes)), np.array(float(point.gpus)), np.array(point.batch))
            residual = log(point.step_seconds) - np.log(self.curve.raw(kind, *at))
            near = 10.0 * np.exp(
                -((np.log(nodes / at[0]) / 0.3) ** 2)
                - (np.log(gpus / at[1]) / 0.2) ** 2
                - (np.log(batch / gpus * at[1] / at[2]) / 0.4) ** 2
            )
            total = total + near * residual
            weight = weight + near
        return np.asarray(np.exp(total / weight), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class AssumedSpeed:
    """What is assumed of a job that has reported no step yet."""

    sample_seconds: Seconds  # of one sample at the requested size
    requested: int
    factors: tuple[tuple[str, float], ...] = ()

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        size = np.minimum(np.asarray(gpus, dtype=np.float64), self.requested)
        scale = self.sample_seconds * dict(self.factors).get(gpu_type, 1.0)
        seconds = scale * np.asarray(global_batch) * (self.requested / size) ** SCALING
        return np.asarray(seconds * np.ones_like(np.asarray(nodes, dtype=np.float64)))


def learn(
    observations: Sequence[Observation], *, requested: int, factors: Mapping[str, float]
) -> LearntSpeed | None:
    """The speed that the observations of one family tell of; None where there are none."""
    points = gather(observations)
    if not points:
        return None
    relative = tuple(sorted(factors.items()))
    most = max(2 * max(point.gpus for point in points), requested)
    return LearntSpeed(fit(points, relative), relative, most)


def gather(observations: Iterable[Observation]) -> tuple[Point, ...]:
    """One point a configuration: the median, which one slow step can't move."""
    seen: dict[tuple[str, int, int, float], list[float]] = {}
    for one in observations:
        seen.setdefault((one.gpu_type, one.nodes, one.gpus, one.batch), []).append(one.step_seconds)
    return tuple(
        sorted(
            Point(*configuration, exp(round(log(median(times)) / QUANTUM) * QUANTUM))
            for configuration, times in seen.items()
        )
    )


@lru_cache(maxsize=1024)
def fit(points: tuple[Point, ...], factors: tuple[tuple[str, float], ...]) -> Curve:
    """The curve with the least squared relative error on the points and on what is assumed."""
    counts: dict[str, int] = {}
    for point in points:
        counts[point.gpu_type] = counts.get(point.gpu_type, 0) + 1
    types = sorted(counts, key=lambda kind: (-counts[kind], kind))
    typical = median(point.step_seconds for point in points)
    local = median(point.batch / point.gpus for point in points)
    width = 4 + 2 * len(types)
    rows: list[Floats] = []
    goals: list[float] = []

    def row(goal: float, entries: Mapping[int, float]) -> None:
        rows.append(np.array([entries.get(column, 0.0) for column in range(width)]))
        goals.append(goal)

    for point in points:
        base = 4 + 2 * types.index(point.gpu_type)
        several, far = float(point.gpus > 1), float(point.nodes > 1)
        more = max(point.gpus - 2.0, 0.0)
        entries = {0: several, 1: several * more, 2: far, 3: far * more}
        entries |= {base: 1.0, base + 1: point.batch / point.gpus}
        row(1.0, {column: value / point.step_seconds for column, value in entries.items()})
    for column, size in ((0, 1.0), (1, 2.0), (2, 1.0), (3, 2.0)):
        row(0.0, {column: PRIOR * size / typical})
    first = dict(factors).get(types[0], 1.0)
    for index, kind in enumerate(types):
        base = 4 + 2 * index
        row(PRIOR * FIXED_SHARE, {base: PRIOR / typical})
        if index:
            ratio = dict(factors).get(kind, 1.0) / first
            row(0.0, {base: COUPLING / typical, 4: -COUPLING * ratio / typical})
            each = COUPLING * local / typical
            row(0.0, {base + 1: each, 5: -each * ratio})
    found, _ = nnls(np.array(rows), np.array(goals))
    floor = 1e-9 * typical  # a step is never free
    gradient = tuple(
        (kind, float(found[4 + 2 * k]) + floor, float(found[5 + 2 * k]))
        for k, kind in enumerate(types)
    )
    a_r, b_r, a_n, b_n = (float(value) for value in found[:4])
    return Curve(points, (a_r, b_r, a_n, b_n), gradient)


def type_factors(observations: Iterable[Observation]) -> dict[str, float]:
    """Seconds per step of each GPU type relative to the best known one, over all families.

    Compared within a family at equal GPUs and batch, on the median pair; types that share no
    configuration with the best known type are left out and count as equal to it.
    """
    by_setting: dict[tuple[str, int, float], dict[str, list[float]]] = {}
    spread: dict[str, int] = {}
    for one in observations:
        setting = by_setting.setdefault((one.family, one.gpus, one.batch), {})
        setting.setdefault(one.gpu_type, []).append(one.step_seconds)
        spread[one.gpu_type] = spread.get(one.gpu_type, 0) + 1
    if not spread:
        return {}
    reference = max(sorted(spread), key=spread.__getitem__)
    ratios: dict[str, list[float]] = {}
    for times in by_setting.values():
        for kind, values in times.items():
            if reference in times:
                ratios.setdefault(kind, []).append(median(values) / median(times[reference]))
    return {
        kind: exp(round(log(median(found)) / QUANTUM) * QUANTUM) for kind, found in ratios.items()
    }
