"""All that reports have taught so far: kept by family and by job, asked by `assess` every round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, isfinite, log, sqrt
from statistics import median
from typing import TypeVar

import numpy as np

from ones.estimator.completion import Completion, learn
from ones.estimator.noise import GradientReport
from ones.estimator.progress import (
    LARGEST,
    Finished,
    Misses,
    Prediction,
    Progress,
    foretold,
    unknown,
)
from ones.estimator.records import Records
from ones.estimator.regression import Logged, Regression
from ones.estimator.restart import LEAST_LIVE, RECENT, RestartCost
from ones.estimator.speed import Observation
from ones.policies.model import JobId, Seconds

Key = TypeVar("Key", str, JobId)
_Setting = tuple[str, int, float, int]  # family, GPUs, local batch, passes
__all__ = ["Experience", "GradientReport"]

JOBS = 10_000  # whose own records are kept; the one longest silent goes first
FAMILIES = 5_000
FOUND_AGAIN = 1.2  # type factors are taken anew once so many times as many points are known
ROUNDING = 0.02  # ln of a ratio
REFERENCES = 5  # families that ran on several types, from which on types are told apart by family
REFERENCE_ROWS = 1000  # at most
ROWS_OF_FAMILY = 4  # configurations at most, so that no family speaks for all
MISSES = 50  # completed speeds held against what came
MISS_WEIGHT = 5.0  # of the completion's own word, in misses
WORST_MISS = 3.0  # standard errors: one beyond this counts as so much
TOLD_ANEW = 0.1  # relative change of the misses' scale that is passed on
DECLARED_SPREAD = 0.05
FAMILY_SPREAD = 0.5
NOTHING = Records()  # of whom nobody has told anything


class Experience:
    """What was learnt, in memory. Reports that can't be true are left out."""

    def __init__(self) -> None:
        self._families: dict[str, Records] = {}
        self._jobs: dict[JobId, Records] = {}
        self._restarts: deque[Seconds] = deque(maxlen=RECENT)
        self._live: deque[Seconds] = deque(maxlen=RECENT)
        self._factors: dict[str, float] = {}
        self._completion: Completion[str] | None = None
        self._factors_of: tuple[int, int] = (0, 0)
        self._now: Seconds = 0.0  # of the last observation
        self._misses: deque[float] = deque(maxlen=MISSES)  # in standard errors
        self._types: set[str] = set()
        self._points = 0
        self._logged: dict[JobId, Logged] = {}
        self.regression = Regression()
        self.declared = Misses(DECLARED_SPREAD)
        self.by_family = Misses(FAMILY_SPREAD)

    def observe(self, one: Observation, at: Seconds = 0.0) -> None:
        """An observation of this time, by any clock that doesn't go back."""
        if not one.sound:
            return
        self._now = max(self._now, at)
        self._types.add(one.gpu_type)
        self._points += 1
        self._compare(one)
        self._family(one.family).observe(one, self._now)
        self._job(one.job).observe(one, self._now)

    def gradient(self, report: GradientReport) -> None:
        if not report.sound:
            return
        self._family(report.family).noise.add(report)
        self._job(report.job).noise.add(report)

    def progress(self, told: Progress, family: str | None = None) -> None:
        """A job's last word, already made believable; it tells of the others of its family, too."""
        if family is not None:
            records = self._family(family)
            records.furthest = max(records.furthest, told.samples)
            records.declared = told.total_samples or records.declared
            records.epoch = told.epoch_samples or records.epoch
        logged = self._logged.get(told.job)
        if logged is None:
            logged = self._logged[told.job] = Logged()
            if len(self._logged) > JOBS:
                del self._logged[next(iter(self._logged))]
        logged.add(told)

    def finish(self, done: Finished) -> None:
        """A job has run to its end. What it alone has told ends with it, if it is named."""
        length = done.total_samples
        if done.job is not None:
            self._jobs.pop(done.job, None)
        logged = None if done.job is None else self._logged.pop(done.job, None)
        if not isfinite(length) or not 0 < length <= LARGEST:
            return
        records = self._family(done.family)
        if logged is not None:
            if logged.last is not None and logged.last.total_samples:
                self.declared.add(length, logged.last.total_samples)
            if (track := logged.track()) is not None:
                self.regression.finish(track, length, newcomer=not records.lengths)
        if records.lengths:
            self.by_family.add(length, _usual(records.lengths))
        records.ended(length)

    def forget_jobs(self, but: Callable[[JobId], bool] = lambda job: False) -> None:
        """Keep families, and of jobs those that are there still.

        The ids of jobs to come may be those of jobs that were.
        """
        self._jobs = {job: records for job, records in self._jobs.items() if but(job)}
        self._logged = {job: logged for job, logged in self._logged.items() if but(job)}

    def forget(self, before: Seconds) -> None:
        """What families have shown before that time, and never since."""
        self._families = {
            family: records for family, records in self._families.items() if records.heard >= before
        }
        for records in self._families.values():
            records.forget(before)

    def restart(self, cost: RestartCost) -> None:
        if not isfinite(cost.seconds) or cost.seconds < 0:
            return
        (self._live if cost.live else self._restarts).append(cost.seconds)
        for records in (self._family(cost.family), self._job(cost.job)):
            records.paused(cost.seconds, live=cost.live)

    def of_family(self, family: str) -> Records:
        """What is known of it, to be read."""
        there = family in self._families
        return _kept(self._families, family, FAMILIES) if there else NOTHING

    def of_job(self, job: JobId) -> Records:
        """The same."""
        return self._job(job) if job in self._jobs else NOTHING

    def _family(self, family: str) -> Records:
        """The records of one of which something is told."""
        records = _kept(self._families, family, FAMILIES)
        records.heard = self._now
        return records

    def _job(self, job: JobId) -> Records:
        return _kept(self._jobs, job, JOBS)

    def of_one(self, family: str) -> Experience:
        """What is known of one family and of all together; what it holds is this one's own."""
        found = Experience()
        if family in self._families:
            found._families[family] = self._families[family]
        found._restarts, found._live = self._restarts, self._live
        found._factors, found._completion = self._factors, self._completion
        found._factors_of, found._misses = self._factors_of, self._misses
        found._types, found._points = self._types, self._points
        found.regression = self.regression
        found.declared, found.by_family = self.declared, self.by_family
        return found

    def restart_cost(self, job: JobId, family: str | None, *, prior: Seconds) -> Seconds:
        """The median of the job's own last restarts, else its family's, else all, else the prior.

        Without a family only the job's own count.
        """
        own = self.of_job(job).restarts
        if own or family is None:
            return median(own) if own else prior
        others = self.of_family(family).restarts or self._restarts
        return median(others) if others else prior

    def live_cost(self, job: JobId, family: str | None, *, prior: Seconds) -> Seconds:
        """The same of resizes while the job ran; LEAST_LIVE at least."""
        own = self.of_job(job).live
        others = self.of_family(family).live or self._live if family is not None else ()
        known = own or others
        return max(LEAST_LIVE, median(known)) if known else prior

    def predict(
        self, told: Progress | None, family: str | None, *, declared: bool = True
    ) -> Prediction | None:
        """What is to be expected of a job's length, or None where nothing tells it."""
        told = told or Progress(job=JobId(0))
        if declared and told.total_samples:
            total = max(told.total_samples, told.samples)
            found = foretold(told, total, self.declared)
            return Prediction(
                processed=told.samples,
                total=total,
                alpha=found.alpha,
                beta=found.beta,
                epochs=found.epochs,
            )
        lengths = self.of_family(family).lengths if family is not None else ()
        if lengths:
            return foretold(told, _usual(lengths), self.by_family)
        if family is None:
            return unknown(told)
        # Nobody of the family has ended. What another one declares holds for this one, too; else
        # each is as long as the one that got furthest may be, so that of several alike the one
        # nearest its end stays ahead of the others. A job that has yet to run is told by those.
        records = self.of_family(family)
        if declared and records.declared:
            return foretold(told, records.declared, self.by_family)
        told = replace(told, epoch_samples=told.epoch_samples or records.epoch)
        return self.regression.predict(told) or unknown(told, records.furthest)

    def type_factors(self) -> dict[str, float]:
        """Seconds per step of each GPU type relative to the best known one, over all families.

        Compared within a family at equal GPUs and batch, on the median pair; types that share no
        configuration with the best known type are left out and count as equal to it.
        """
        points, types = self._factors_of
        if len(self._types) != types or self._points > FOUND_AGAIN * points:
            self._factors_of = self._points, len(self._types)
            if len(self._types) > 1:
                settings = self._settings()
                found = self._compare_types(settings)
                if found != self._factors:
                    self._factors = found
                self._completion = self._complete(settings)
        return self._factors

    def completion(self) -> Completion[str] | None:
        """What families that ran on several types tell of the others; None: too few have.

        Learnt anew when `type_factors` are.
        """
        self.type_factors()
        return self._completion

    def _settings(self) -> dict[_Setting, dict[str, list[Seconds]]]:
        """Measured step times by what is the same but for the GPU type."""
        settings: dict[_Setting, dict[str, list[Seconds]]] = {}
        for family, records in self._families.items():
            for point in records.points:
                key = (family, point.gpus, point.local, point.passes)
                times = settings.setdefault(key, {}).setdefault(point.gpu_type, [])
                times.append(point.step_seconds)
        return settings

    def _compare_types(
        self, settings: Mapping[_Setting, Mapping[str, Sequence[Seconds]]]
    ) -> dict[str, float]:
        counts: dict[str, int] = {}
        for by_type in settings.values():
            for kind, values in by_type.items():
                counts[kind] = counts.get(kind, 0) + len(values)
        reference = max(sorted(counts), key=counts.__getitem__)
        ratios: dict[str, list[float]] = {}
        for by_type in settings.values():
            if reference not in by_type:
                continue
            base = median(by_type[reference])
            for kind, values in by_type.items():
                ratios.setdefault(kind, []).append(median(values) / base)
        return {
            kind: exp(round(log(median(r)) / ROUNDING) * ROUNDING) for kind, r in ratios.items()
        }

    def _complete(
        self, settings: Mapping[_Setting, Mapping[str, Sequence[Seconds]]]
    ) -> Completion[str] | None:
        rows: dict[str, list[dict[str, float]]] = {}
        for (family, *_), by_type in settings.items():
            if len(by_type) > 1:
                row = {kind: log(median(values)) for kind, values in by_type.items()}
                rows.setdefault(family, []).append(row)
        if len(rows) < REFERENCES:
            return None
        chosen = [row for of_family in rows.values() for row in of_family[-ROWS_OF_FAMILY:]]
        return replace(learn(chosen[-REFERENCE_ROWS:]), scale=self._miss())

    def _compare(self, one: Observation) -> None:
        """Hold what was completed against the first that a family shows on another type."""
        records, completion = self.of_family(one.family), self._completion
        if completion is None or one.passes > 1 or records.knows(one.gpu_type):
            return
        speed = records.speed(
            requested=one.gpus, batches=None, factors=self._factors, completion=completion
        )
        if speed is None or one.gpu_type not in speed.unseen:
            return
        foretold = speed.step_seconds(
            one.gpu_type, np.array(one.nodes), np.array(one.gpus), np.array(one.batch)
        )
        error = speed.error(one.gpu_type, one.nodes, one.gpus, one.batch)
        miss = log(one.step_seconds / float(foretold)) / error * completion.scale
        self._misses.append(max(-WORST_MISS, min(WORST_MISS, miss)))
        scale = self._miss()
        if abs(log(scale / completion.scale)) > TOLD_ANEW:
            self._completion = replace(completion, scale=scale)

    def _miss(self) -> float:
        """How much larger than its standard errors the completion's misses are."""
        squares = sum(miss * miss for miss in self._misses)
        return sqrt((MISS_WEIGHT + squares) / (MISS_WEIGHT + len(self._misses)))


def _usual(lengths: Sequence[float]) -> float:
    """The length of the next job like these: few jobs back, since users change their minds."""
    return median(lengths)


def _kept(records: dict[Key, Records], key: Key, most: int) -> Records:
    """The records under a key, made where missing; the least used go where there are too many.

    So no number of new names makes those forgotten that jobs still report under.
    """
    found = records.get(key)
    if found is not None and len(records) < most:
        return found
    records.pop(key, None)
    records[key] = found = Records() if found is None else found
    if len(records) > most:
        del records[next(iter(records))]
    return found
