"""The table `courses`: how each job's batch, loss, speed and GPU utilisation went over its life.

A course has at most so many points, whether its job runs for a minute or a month: the time since
its first one is cut into equal spans, of which each keeps its first point, and the latest point is
kept, too. Where the spans become too many they are made twice as long, which thins old and new
alike. What is kept follows from the points alone, so that a restart of onesd changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import Report

MOST = 200  # points of one job
SHORTEST = 1.0  # second of a span
LARGEST = 1e12  # of a batch, a loss or a speed; beyond it, none is believed
MEASURES = ("batch", "loss", "samples_per_second", "utilization")


class Courses:
    """Adds to them report by report, and tells them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, job: int, report: Report, *, utilization: float | None, at: float) -> None:
        """What a job reported, and how busy its GPUs are; not what can't be so."""
        measured = {
            "batch": _believed(report.batch or None),
            "loss": _believed(report.loss),
            "samples_per_second": _believed(report.samples_per_second),
            "utilization": _believed(utilization, most=1.0),
        }
        if all(value is None for value in measured.values()):
            return
        rows = self._store.rows("SELECT at FROM courses WHERE job = ? ORDER BY at", job)
        for gone in superfluous([row["at"] for row in rows], at):
            self._store.write("DELETE FROM courses WHERE job = ? AND at = ?", job, gone)
        self._store.put("courses", [{"job": job, "at": at, **measured}])

    def of_job(self, job: int) -> dict[str, list[Any]]:
        """The times of its points, and each measure at these times."""
        rows = self._store.rows("SELECT * FROM courses WHERE job = ? ORDER BY at", job)
        return {name: [row[name] for row in rows] for name in ("at", *MEASURES)}


def superfluous(times: Sequence[float], now: float) -> list[float]:
    """Those of a course's points, in order, that make room for one at `now`."""
    before = [at for at in times if at < now]  # later ones: the clock was set back
    kept: dict[int, float] = {}
    span = _span(now - before[0]) if before else SHORTEST
    for at in before:
        kept.setdefault(int((at - before[0]) / span), at)
    stay = set(kept.values())
    return [at for at in times if at not in stay]


def _span(seconds: float) -> float:
    """The shortest span of which a course of so many seconds has few enough."""
    span = SHORTEST
    while seconds >= span * (MOST - 1):
        span *= 2
    return span


def _believed(value: float | None, *, most: float = LARGEST) -> float | None:
    """None for what is no number, below 0, or too much."""
    if value is None or not isfinite(value) or not 0 <= value <= most:
        return None
    return float(value)
