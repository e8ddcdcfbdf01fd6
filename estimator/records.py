"""What reports have taught of one family, or of one job; grows step by step, bounded."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import takewhile
from math import exp, isnan, log, nan, sqrt
from statistics import median
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from ones.estimator.completion import Completed, Completion
from ones.estimator.curve import Point, Terms, fit
from ones.estimator.noise import Noise
from ones.estimator.restart import RECENT
from ones.estimator.speed import DOUBT, DOUBT_WEIGHT, LearntSpeed, Observation
from ones.policies.model import Batch, Floats, Seconds

POINTS = 256  # configurations that are kept; the one longest unseen goes first
REPEATS = 9  # reports of one configuration that its median is taken of
LENGTHS = 5  # finished jobs, the last ones
JITTER = 0.02  # ln of a ratio: medians that move less than this are the same
ENOUGH_ERROR = 0.04  # ln of a ratio: beyond this the curve is fitted again
ENOUGH_MORE = 1.5  # as many points: likewise
SURPRISES = 32  # predictions held against what came
WORST = 2.0  # ln of a ratio: a surprise beyond this counts as so much

Configuration = tuple[str, int, int, float, int]


class _Seen:
    """The last reports of one configuration, and the point that stands for them.

    There are thousands of them: as tuples in a list the seconds would take four times as much.
    """

    __slots__ = ("at", "point", "times")

    def __init__(self) -> None:
        self.times = array("d")  # of a step, of a gradient (NaN where it wasn't told apart), ...
        self.point: Point | None = None
        self.at = 0.0  # when it was reported last

    def add(self, step: Seconds, gradient: Seconds | None) -> None:
        self.times.extend((step, nan if gradient is None else gradient))
        if len(self.times) > 2 * REPEATS:
            del self.times[:2]


class Records:
    """What reports have taught of one family, or of one job.

    Of most of thousands little is known, and no job is there: what is worked out belongs to whoever
    has asked for it, and goes with him.
    """

    __slots__ = (
        "_fits",
        "_fitted",
        "_seen",
        "_shapes",
        "_speeds",
        "_stale",
        "_terms",
        "batch",
        "declared",
        "epoch",
        "furthest",
        "heard",
        "largest",
        "lengths",
        "live",
        "noise",
        "restarts",
        "surprises",
        "version",
    )

    def __init__(self) -> None:
        self.noise = Noise()
        self.lengths: tuple[float, ...] = ()  # samples of the last finished jobs
        self.furthest = 0.0  # samples that any job has done, finished or not
        self.declared: float | None = None  # samples, by the last job that declared its length
        self.epoch: float | None = None  # samples of an epoch, by the last job that said so
        self.restarts: tuple[Seconds, ...] = ()  # the last ones
        self.live: tuple[Seconds, ...] = ()  # the same of resizes without a restart
        self.batch: float | None = None  # global, of the last observation
        self.heard: Seconds = 0.0  # when anything was told of it last
        self.version = 0  # of the points
        self.surprises: tuple[float, ...] = ()  # the last ones
        self.largest = 0  # size it has run on
        self._seen: dict[Configuration, _Seen] = {}
        self._terms: dict[str, Terms] = {}
        self._shapes: tuple[tuple[str, int, int], ...] = ()  # that the fit knows
        self._fitted = 0  # points that the fit knows
        self._fits = 0
        self._stale = True
        self._speeds: tuple[ReferenceType[LearntSpeed], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "_speeds"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy; what was worked out for others is not copied."""
        for name, value in state.items():
            setattr(self, name, value)
        self._speeds = ()

    def ended(self, samples: float) -> None:
        """A job has ended after so many."""
        self.lengths = (*self.lengths, samples)[-LENGTHS:]

    def paused(self, seconds: Seconds, *, live: bool) -> None:
        """A restart has taken so long, or a resize without one."""
        if live:
            self.live = (*self.live, seconds)[-RECENT:]
        else:
            self.restarts = (*self.restarts, seconds)[-RECENT:]

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(seen.point for seen in self._seen.values() if seen.point is not None)

    def knows(self, gpu_type: str) -> bool:
        """Whether it has run on this type."""
        return any(kind == gpu_type for kind, *_ in self._seen)

    def observe(self, one: Observation, at: Seconds = 0.0) -> None:
        """Take a sound observation of this time in."""
        self.batch = one.batch
        self.largest = max(self.largest, one.gpus)
        key = (one.gpu_type, one.nodes, one.gpus, one.batch, one.passes)
        seen = self._seen.pop(key, None) or _Seen()
        self._seen[key] = seen  # last in the order: seen latest
        if len(self._seen) > POINTS:
            del self._seen[next(iter(self._seen))]
        seen.at = at
        seen.add(one.step_seconds, one.gradient_seconds)
        step = exp(median(log(seconds) for seconds in seen.times[::2]))
        before = seen.point
        if before is not None and abs(log(step / before.step_seconds)) < JITTER:
            return
        apart = [gradient for gradient in seen.times[1::2] if not isnan(gradient)]
        gradient = min(median(apart), step / one.passes) if apart else None
        point = Point(one.gpu_type, one.nodes, one.gpus, one.local, one.passes, step, gradient)
        seen.point = point
        self.version += 1
        if not self._stale:
            self._compare(point, new=before is None)

    def forget(self, before: Seconds) -> None:
        """Configurations that nobody has reported since then."""
        old = list(takewhile(lambda key: self._seen[key].at < before, self._seen))
        for key in old:
            del self._seen[key]
        if old:
            self.version += 1
            self._stale = True
            if not self._seen:
                self._terms, self._shapes, self._fitted = {}, (), 0

    def _compare(self, point: Point, *, new: bool) -> None:
        """Hold the fit against a point it hasn't seen."""
        terms = self._terms.get(point.gpu_type)
        shape = (point.gpu_type, point.nodes, point.gpus)
        grown = len(self._seen) >= ENOUGH_MORE * self._fitted
        if terms is None or shape not in self._shapes or grown:
            self._stale = True
        if terms is None:
            return
        foretold = terms.seconds(*_configuration(point))
        error = log(point.step_seconds / float(foretold))
        if new:
            surprise = max(-WORST, min(WORST, error))
            self.surprises = (*self.surprises, surprise)[-SURPRISES:]
        if abs(error) > ENOUGH_ERROR:
            self._stale = True

    def terms(self) -> Mapping[str, Terms]:
        """The fitted curves; fitted again only where that promises something new."""
        if self._stale and self._seen:
            points = self.points
            self._terms = fit(points, before=self._terms)
            self._shapes = tuple({(one.gpu_type, one.nodes, one.gpus) for one in points})
            self._fitted = len(points)
            self._fits += 1
            self._stale = False
        return self._terms

    def speed(
        self,
        *,
        requested: int,
        batches: Batch | None,
        factors: Mapping[str, float],
        completion: Completion[str] | None = None,
        doubt: float = DOUBT,
    ) -> LearntSpeed | None:
        """What is expected of a job at any size; None where nothing was seen.

        What other families have shown of the GPU types, `factors` and `completion`, tells of the
        types that this one never ran on.
        """
        if not self._seen:
            return None
        terms = self.terms()
        of = self.version, self._fits, factors, completion
        there = [one for known in self._speeds if (one := known()) is not None and one.of == of]
        most = max(2 * self.largest, requested)
        for one in there:
            if one.most == most and one.batches == batches:
                return one
        like = there[0] if there else None
        found = LearntSpeed(
            terms,
            self.points,
            factors,
            most,
            batches,
            self.doubt(doubt),
            self._completed(completion) if like is None else like.unseen,
            {} if like is None else like.near,
            of,
        )
        self._speeds = (*map(ref, there), ref(found))
        return found

    def _completed(self, completion: Completion[str] | None) -> Mapping[str, Completed]:
        """What the completion says of the types never run on, relative to the best known type.

        The types it has run on are compared at the best known type's latest configuration: as
        measured there, else by their curves.
        """
        if completion is None or not completion.columns.keys() - self._terms.keys():
            return {}
        best = next(iter(self._terms))
        base = [point for point in self.points if point.gpu_type == best][-1]
        row = {
            kind: log(float(terms.seconds(*_configuration(base))))
            for kind, terms in self._terms.items()
        }
        for point in self.points:
            if (point.gpus, point.local, point.passes) == (base.gpus, base.local, base.passes):
                row[point.gpu_type] = log(point.step_seconds)
        return {
            kind: Completed(found.value - row[best], found.error)
            for kind, found in completion.complete(row).items()
            if kind not in self._terms
        }

    def doubt(self, prior: float) -> float:
        """Standard error of ln(step seconds) where nothing near was measured."""
        squares = sum(error * error for error in self.surprises)
        return sqrt((DOUBT_WEIGHT * prior**2 + squares) / (DOUBT_WEIGHT + len(self.surprises)))


def _configuration(point: Point) -> tuple[Floats, Floats, Floats, Floats]:
    """Nodes, GPUs, local batch and passes, as curves take them."""
    return (
        np.array(float(point.nodes)),
        np.array(float(point.gpus)),
        np.array(point.local),
        np.array(float(point.passes)),
    )
