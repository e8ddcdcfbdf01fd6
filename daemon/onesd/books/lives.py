"""Readings of the tables `jobs`, `runs`, `shrinks` and `satellites`: one job's life."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ones.daemon.onesd.books.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """An elastic job that Slurm has, or had."""

    job: int
    name: str
    user: str
    account: str
    sizes: str
    requested: int
    submitted: float
    state: str
    ended: float | None
    family: str
    restarts: int
    fixed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """One run of a job, as the accounting has it."""

    ordinal: int
    started: float
    ended: float | None
    nodes: str
    gpus: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """What a run held until a time, when it gave back nodes or lost them."""

    ordinal: int
    until: float
    nodes: str
    gpus: int
    last: str  # the nodes that the run held in the end


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSatellite:
    """A job that a live job grew by."""

    job: int
    restarts: int  # of its base
    ordered: int
    started: float | None
    ended: float | None
    nodes: str
    gpus: int
    state: str


class Lives:
    """What the tables tell about jobs; `Records` writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def job(self, number: int) -> KnownJob | None:
        """None for one that was never seen, or is forgotten."""
        row = self._store.row(
            "SELECT job, name, user, account, sizes, requested, submitted, state, ended, family,"
            " restarts, fixed FROM jobs WHERE job = ?",
            number,
        )
        return None if row is None else KnownJob(**dict(row))

    def of_user(self, user: str) -> frozenset[int]:
        """All jobs of theirs."""
        rows = self._store.rows("SELECT job FROM jobs WHERE user = ?", user)
        return frozenset(row["job"] for row in rows)

    def users(self, jobs: Iterable[int]) -> dict[int, str]:
        """Whose these jobs are."""
        rows = self._store.of_jobs("jobs", jobs, "job, user")
        return {row["job"]: row["user"] for row in rows}

    def shares(self, since: float) -> list[dict[str, Any]]:
        """What the runs that have ended since then had of that time, by user and account: GPU
        seconds, jobs, and the mean seconds from a job's submission to its first start."""
        held = "(ended - max(started, ?1)) * gpus"
        ended = "(SELECT job FROM jobs WHERE ended IS NULL OR ended > ?1)"
        rows = self._store.rows(
            "SELECT j.user, j.account, count(*) AS jobs, sum(h.held) AS gpu_seconds,"
            " avg(h.first - j.submitted) AS waited"
            " FROM jobs j JOIN (SELECT job, sum(held) AS held, min(first) AS first FROM ("
            f"SELECT job, {held} AS held, started AS first FROM runs"
            f" WHERE ended > ?1 AND job IN {ended}"
            f" UNION ALL SELECT base, {held}, NULL FROM satellites"
            f" WHERE ended > ?1 AND started IS NOT NULL AND base IN {ended}"
            ") GROUP BY job) h ON h.job = j.job GROUP BY j.user, j.account",
            since,
        )
        return [dict(row) for row in rows]

    def runs(self, number: int) -> list[KnownRun]:
        """In order."""
        rows = self._store.rows(
            "SELECT ordinal, started, ended, nodes, gpus, state FROM runs"
            " WHERE job = ? ORDER BY ordinal",
            number,
        )
        return [KnownRun(**dict(row)) for row in rows]

    def shrinks(self, number: int) -> list[Shrink]:
        """By run and time."""
        rows = self._store.rows(
            "SELECT s.ordinal, s.until, s.nodes, s.gpus, r.nodes AS last"
            " FROM shrinks s JOIN runs r USING(job, ordinal) WHERE job = ? ORDER BY ordinal, until",
            number,
        )
        return [Shrink(**dict(row)) for row in rows]

    def satellites(self, base: int) -> list[KnownSatellite]:
        """Of a job, by their numbers."""
        rows = self._store.rows(
            "SELECT job, restarts, ordered, started, ended, nodes, gpus, state FROM satellites"
            " WHERE base = ? ORDER BY job",
            base,
        )
        return [KnownSatellite(**dict(row)) for row in rows]
