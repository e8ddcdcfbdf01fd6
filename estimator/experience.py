"""All that reports have taught so far: kept by family and by job, asked by `assess` every round."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import exp, isfinite, log
from statistics import median
from typing import TypeVar

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
from ones.estimator.restart import RECENT, RestartCost
from ones.estimator.speed import Observation
from ones.policies.model import JobId, Seconds

Key = TypeVar("Key", str, JobId)
__all__ = ["Experience", "GradientReport"]

JOBS = 10_000  # whose own records are kept; the one longest silent goes first
FAMILIES = 5_000
FOUND_AGAIN = 1.2  # type factors are taken anew once so many times as many points are known
ROUNDING = 0.02  # ln of a ratio
DECLARED_SPREAD = 0.05
FAMILY_SPREAD = 0.5


class Experience:
    """What was learnt, in memory. Reports that can't be true are left out."""

    def __init__(self) -> None:
        self._families: dict[str, Records] = {}
        self._jobs: dict[JobId, Records] = {}
        self._restarts: deque[Seconds] = deque(maxlen=RECENT)
        self._factors: dict[str, float] = {}
        self._factors_of: tuple[int, int] = (0, 0)
        self._types: set[str] = set()
        self._points = 0
        self._logged: dict[JobId, Logged] = {}
        self.regression = Regression()
        self.declared = Misses(DECLARED_SPREAD)
        self.by_family = Misses(FAMILY_SPREAD)

    def observe(self, one: Observation) -> None:
        if not one.sound:
            return
        self._types.add(one.gpu_type)
        self._points += 1
        self.of_family(one.family).observe(one)
        self.of_job(one.job).observe(one)

    def gradient(self, report: GradientReport) -> None:
        if not report.sound:
            return
        self.of_family(report.family).noise.add(report)
        self.of_job(report.job).noise.add(report)

    def progress(self, told: Progress) -> None:
        """A job's last word, already made believable."""
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
        lengths = self.of_family(done.family).lengths
        if logged is not None:
            if logged.last is not None and logged.last.total_samples:
                self.declared.add(length, logged.last.total_samples)
            if (track := logged.track()) is not None:
                self.regression.finish(track, length, newcomer=not lengths)
        if lengths:
            self.by_family.add(length, _usual(lengths))
        lengths.append(length)

    def forget_jobs(self) -> None:
        """Keep families only: the ids of jobs to come may be those of jobs that were."""
        self._jobs.clear()
        self._logged.clear()

    def restart(self, cost: RestartCost) -> None:
        if not isfinite(cost.seconds) or cost.seconds < 0:
            return
        self._restarts.append(cost.seconds)
        self.of_family(cost.family).restarts.append(cost.seconds)
        self.of_job(cost.job).restarts.append(cost.seconds)

    def of_family(self, family: str) -> Records:
        return _kept(self._families, family, FAMILIES)

    def of_job(self, job: JobId) -> Records:
        return _kept(self._jobs, job, JOBS)

    def restart_cost(self, job: JobId, family: str | None, *, prior: Seconds) -> Seconds:
        """The median of the job's own last restarts, else its family's, else all, else the prior.

        Without a family only the job's own count.
        """
        own = self.of_job(job).restarts
        if own:
            return median(own)
        if family is None:
            return prior
        others = self.of_family(family).restarts or self._restarts
        return median(others) if others else prior

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
        # Nobody of the family has ended: each is as long as the one that got furthest may be, so
        # that of several alike the one nearest its end stays ahead of the others.
        records = self.of_family(family)
        records.furthest = max(records.furthest, told.samples)
        return self.regression.predict(told) or unknown(told, records.furthest)

    def type_factors(self) -> dict[str, float]:
        """Seconds per step of each GPU type relative to the best known one, over all families.

        Compared within a family at equal GPUs and batch, on the median pair; types that share no
        configuration with the best known type are left out and count as equal to it.
        """
        points, types = self._factors_of
        if len(self._types) != types or self._points > FOUND_AGAIN * points:
            self._factors_of = self._points, len(self._types)
            found = self._compare_types() if len(self._types) > 1 else {}
            if found != self._factors:
                self._factors = found
        return self._factors

    def _compare_types(self) -> dict[str, float]:
        settings: dict[tuple[str, int, float, int], dict[str, list[Seconds]]] = {}
        counts: dict[str, int] = {}
        for family, records in self._families.items():
            for point in records.points:
                key = (family, point.gpus, point.local, point.passes)
                times = settings.setdefault(key, {}).setdefault(point.gpu_type, [])
                times.append(point.step_seconds)
                counts[point.gpu_type] = counts.get(point.gpu_type, 0) + 1
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


def _usual(lengths: Sequence[float]) -> float:
    """The length of the next job like these: few jobs back, since users change their minds."""
    return median(lengths)


def _kept(records: dict[Key, Records], key: Key, most: int) -> Records:
    """The records under a key, made where missing; the oldest go where there are too many."""
    found = records.get(key)
    if found is None:
        found = records[key] = Records()
        if len(records) > most:
            del records[next(iter(records))]
    return found
