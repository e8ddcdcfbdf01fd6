"""The speed of a job at sizes it has and hasn't had, learnt from reported step times only.

A fitted curve (ones.estimator.curve) is drawn towards what was measured near the asked
configuration. The curve is optimistic about what was never seen, so a job is tried at larger sizes,
but nothing is promised beyond twice what its family has run on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, floor, isfinite, log, sqrt

import numpy as np

from ones.estimator.completion import Completed
from ones.estimator.curve import Point, Terms
from ones.policies.model import Batch, Floats, Ints, JobId, Seconds

SCALING = 0.8  # without any measurement, time falls as size^-SCALING up to the requested size ...
BEYOND = 0.1  # ... and within a node up to twice that: enough for GPUs that nobody else can use
NEARNESS = 10.0  # weight of a measurement at its own configuration ...
CURVE = 0.3  # ... against that of the curve
WIDTHS = (0.3, 0.2, 0.4)  # in ln nodes, ln GPUs, ln local batch: how far a measurement is heard
FAR = 1e-3  # weights below this are none
GRID = 0.08  # in ln local batch, between which corrections are interpolated
ANSWERS = 64  # asked again with the same arrays, the answer is kept
DOUBT = 0.3  # standard error of ln(step seconds) of a curve of which nothing is known yet
DOUBT_WEIGHT = 3.0  # in predictions that came true or not
LEAST_DOUBT = 0.01
LARGEST = 1e9  # seconds or samples beyond which a report is no measurement


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
    step_seconds: Seconds  # of an optimiser step, all its passes
    passes: int = 1
    sync_seconds: Seconds | None = None  # what synchronising adds to the last pass

    @property
    def sound(self) -> bool:
        """Whether it can be a measurement at all."""
        return (
            isfinite(self.step_seconds)
            and 1 / LARGEST <= self.step_seconds <= LARGEST
            and isfinite(self.batch)
            and 1 / LARGEST <= self.batch <= LARGEST
            and 1 <= self.nodes <= self.gpus <= LARGEST
            and 1 <= self.passes <= LARGEST
        )

    @property
    def local(self) -> float:
        """Samples per GPU and pass."""
        return self.batch / (self.gpus * self.passes)

    @property
    def gradient_seconds(self) -> Seconds | None:
        """Of a pass without synchronisation, where that was told apart."""
        sync = self.sync_seconds
        if sync is None or not isfinite(sync) or not 0.0 <= sync < self.step_seconds:
            return None
        return (self.step_seconds - sync) / self.passes


@dataclass(frozen=True, eq=False)
class LearntSpeed:
    """A fitted curve, drawn towards what was measured near the asked configuration."""

    terms: Mapping[str, Terms]  # the best known type first
    points: Sequence[Point]
    factors: Mapping[str, float]  # seconds of a type relative to those of the others
    most: int  # GPUs beyond which nothing is promised
    batches: Batch | None = None  # how a global batch is split; None: evenly, in one pass
    doubt: float = DOUBT  # of the curve where nothing was measured
    unseen: Mapping[str, Completed] = field(default_factory=dict)
    """ln of the seconds of types never run on, relative to the best known type, where other
    families have shown enough to tell; `factors` stand in for the others."""
    near: dict[str, Near] = field(default_factory=dict, repr=False)  # may be shared; fills itself
    of: object = field(default=None, repr=False)  # by which who has made it knows what it is of
    _errors: dict[tuple[str, int, int, float], float] = field(default_factory=dict, repr=False)
    _answers: dict[tuple[object, ...], Floats] = field(default_factory=dict, repr=False)

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        spread = np.asarray(nodes, dtype=np.float64)
        size = np.asarray(gpus, dtype=np.float64)
        batch = np.asarray(global_batch, dtype=np.float64)
        shapes = spread.shape, size.shape, batch.shape
        key = (gpu_type, *shapes, spread.tobytes(), size.tobytes(), batch.tobytes())
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= ANSWERS:
                self._answers.clear()
            found = self._seconds(gpu_type, spread, size, batch)
            found.flags.writeable = False
            self._answers[key] = found
        return found

    def _seconds(self, gpu_type: str, nodes: Floats, gpus: Floats, batch: Floats) -> Floats:
        kind, scale = self._known(gpu_type)
        size = np.minimum(gpus, self.most)
        spread = np.minimum(nodes, size)
        if self.batches is None:
            local, passes = batch / size, np.ones(())
        else:
            local, passes = self.batches.split(batch, size)
        seconds = self.terms[kind].seconds(spread, size, local, passes)
        return np.asarray(scale * seconds * self._nearby(kind).correction(spread, size, local))

    def _known(self, gpu_type: str) -> tuple[str, float]:
        """The type whose curve tells of this one, and how much longer this one takes."""
        if gpu_type in self.terms:
            return gpu_type, 1.0
        best = next(iter(self.terms))
        if gpu_type in self.unseen:
            return best, exp(self.unseen[gpu_type].value)
        return best, self.factors.get(gpu_type, 1.0) / self.factors.get(best, 1.0)

    def _nearby(self, kind: str) -> Near:
        near = self.near.get(kind)
        if near is None:
            mine = [point for point in self.points if point.gpu_type == kind]
            near = self.near[kind] = Near(mine, self.terms[kind])
        return near

    def error(self, gpu_type: str, nodes: int, gpus: int, batch: float) -> float:
        """Standard error of ln(step seconds) there: less the nearer it was measured."""
        key = (gpu_type, nodes, gpus, batch)
        found = self._errors.get(key)
        if found is None:
            if len(self._errors) >= ANSWERS:
                self._errors.clear()
            found = self._errors[key] = self._error(gpu_type, nodes, gpus, batch)
        return found

    def _error(self, gpu_type: str, nodes: int, gpus: int, batch: float) -> float:
        kind, _ = self._known(gpu_type)
        size = float(min(gpus, self.most))
        local = batch / size
        if self.batches is not None:
            local = float(self.batches.split(np.array([batch]), np.array([size]))[0][0])
        unheard = CURVE / (CURVE + self._nearby(kind).weight(float(nodes), size, local))
        strange = 0.0
        if kind != gpu_type:
            strange = self.unseen[gpu_type].error if gpu_type in self.unseen else DOUBT
        return sqrt((self.doubt * unheard) ** 2 + LEAST_DOUBT**2 + strange**2)


class Near:
    """Residuals of the curve at the measured configurations of one type."""

    def __init__(self, points: Sequence[Point], terms: Terms) -> None:
        self.nodes = np.log(np.array([float(point.nodes) for point in points]))
        self.gpus = np.log(np.array([float(point.gpus) for point in points]))
        self.local = np.log(np.array([point.local for point in points]))
        fitted = terms.seconds(
            np.array([float(point.nodes) for point in points]),
            np.array([float(point.gpus) for point in points]),
            np.array([point.local for point in points]),
            np.array([float(point.passes) for point in points]),
        )
        self.residuals = np.log(np.array([point.step_seconds for point in points]) / fitted)
        reach = WIDTHS[2] * 3.5
        self.low = GRID * floor((self.local.min() - reach) / GRID)
        cells = ceil((self.local.max() + reach - self.low) / GRID) + 1
        self.grid = self.low + GRID * np.arange(cells)
        self.rows: dict[tuple[float, float], Floats | None] = {}

    def _heard(self, nodes: float, gpus: float) -> Floats:
        """Weight of each measurement on this many nodes and GPUs, at its own local batch."""
        apart = ((log(nodes) - self.nodes) / WIDTHS[0]) ** 2
        return np.asarray(NEARNESS * np.exp(-apart - ((log(gpus) - self.gpus) / WIDTHS[1]) ** 2))

    def weight(self, nodes: float, gpus: float, local: float) -> float:
        close = np.exp(-(((log(local) - self.local) / WIDTHS[2]) ** 2))
        return float(np.sum(self._heard(nodes, gpus) * close))

    def row(self, nodes: float, gpus: float) -> Floats | None:
        """ln correction over the grid of local batches; None where nothing was measured near."""
        key = (nodes, gpus)
        if key not in self.rows:
            heard = self._heard(nodes, gpus)
            kept = np.flatnonzero(heard > FAR)
            row = None
            if len(kept):
                apart = (self.grid[:, None] - self.local[kept]) / WIDTHS[2]
                weights = heard[kept] * np.exp(-(apart**2))
                row = weights @ self.residuals[kept] / (CURVE + weights.sum(axis=1))
            self.rows[key] = row
        return self.rows[key]

    def correction(self, nodes: Floats, gpus: Floats, local: Floats) -> Floats:
        """exp of the kernel-weighted mean residual; near a measurement it reproduces it."""
        where = np.broadcast(nodes, gpus)
        rows = [self.row(float(n), float(g)) for n, g in where]
        heard = [row for row in rows if row is not None]
        if not heard:
            return np.ones(())
        none = np.zeros(len(self.grid))
        table = np.stack([none if row is None else row for row in rows])
        number = np.arange(len(rows)).reshape(where.shape)
        at = np.clip((np.log(local) - self.low) * (1.0 / GRID), 0.0, len(self.grid) - 1.001)
        cell = at.astype(np.int64)
        share = at - cell
        start = number * len(self.grid) + cell
        flat = table.ravel()
        left = flat[start]
        return np.asarray(np.exp(left + share * (flat[start + 1] - left)))


@dataclass(frozen=True, slots=True)
class AssumedSpeed:
    """What is assumed of a job that has reported no step yet.

    It may take twice the GPUs it asked for where they would be idle, as one that was measured may
    take twice what it has run on; no job that makes more of them than a guess has to make way.
    Within a node: what a network does to it is another matter.
    """

    sample_seconds: Seconds  # of one sample at the requested size
    requested: int
    factors: Mapping[str, float] = field(default_factory=dict)

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        given = np.asarray(gpus, dtype=np.float64) / self.requested
        alone = np.asarray(nodes) == 1
        beyond = np.where(alone, np.clip(given, 1.0, 2.0), 1.0)
        faster = np.minimum(given, 1.0) ** SCALING * beyond**BEYOND
        scale = self.sample_seconds * self.factors.get(gpu_type, 1.0)
        batch = np.asarray(global_batch, dtype=np.float64)
        # Batches are all as fast; the hair that larger ones lose makes the smallest the choice.
        batch = batch * (1.0 + 1e-6 * np.log(np.maximum(batch, 1.0)))
        seconds = scale * batch / faster
        return np.asarray(seconds + 0.0 * np.asarray(nodes), dtype=np.float64)
