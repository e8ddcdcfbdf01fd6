"""The table `recoveries`: what live jobs that lost workers went on from, and did again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ones.daemon.onesd.books.heard import Told
from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import Live
from ones.slurm_ext.snapshot import Snapshot

MOST = 100  # of one job that are kept
FROM = {
    "memory": "replicas in the memory of those left",
    "neighbour": "slices that neighbours had kept",
    "checkpoint": "the last confirmed checkpoint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRecovery:
    """A job's own word of a time at which it lost workers, and went on."""

    run: int
    generation: int
    at: float
    lost: int  # workers
    source: str
    samples: int | None  # of committed steps that were done again; None: it can't say
    steps: int | None

    def words(self) -> str:
        """Such as: lost 1 worker; went on from replicas in the memory of those left, ..."""
        lost = "1 worker" if self.lost == 1 else f"{self.lost} workers"
        begun = f"lost {lost}" if self.lost else "lost the connection between its workers"
        return f"{begun}; went on from {FROM.get(self.source, self.source)}, {self._again()}"

    def _again(self) -> str:
        if self.steps is None:
            return "and all since then was done again"
        if not self.steps:
            return "and only the step under way was done again"
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        were = "was" if self.steps == 1 else "were"
        return f"and {steps} ({self.samples} samples) {were} done again"


class RecoveriesBook:
    """Keeps what launchers of live jobs say, which is the jobs' own word and no more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._taken: dict[int, Live] = {}  # by job, the word that is in the table already

    def take(self, snapshot: Snapshot, lives: Mapping[int, Told]) -> None:
        """Keep what is new in the last words of the jobs' present runs."""
        for job, told in lives.items():
            live, record = told.received.message, snapshot.jobs.get(job)
            if not isinstance(live, Live) or record is None or not record.marked:
                continue
            if live.restarts != record.restarts or self._knows(job, live):
                continue
            self._taken[job] = live
            with self._store.transaction():
                rows = [
                    {"job": job, "restarts": live.restarts, **msgspec.to_builtins(each)}
                    | {"at": min(each.at, told.at)}  # the job's clock may be wrong
                    for each in live.recoveries
                ]
                self._store.put("recoveries", rows)
                self._store.write(
                    "DELETE FROM recoveries WHERE job = ?1 AND (restarts, generation) NOT IN"
                    " (SELECT restarts, generation FROM recoveries WHERE job = ?1"
                    " ORDER BY restarts DESC, generation DESC LIMIT ?2)",
                    job,
                    MOST,
                )
        self._taken = {job: live for job, live in self._taken.items() if job in lives}

    def _knows(self, job: int, live: Live) -> bool:
        before = self._taken.get(job)
        if before is None:
            return not live.recoveries
        return (before.restarts, before.recoveries) == (live.restarts, live.recoveries)

    def of_job(self, job: int) -> list[KnownRecovery]:
        """In order."""
        rows = self._store.rows(
            "SELECT restarts AS run, generation, at, lost, source, samples, steps FROM recoveries"
            " WHERE job = ? ORDER BY restarts, generation",
            job,
        )
        return [KnownRecovery(**dict(row)) for row in rows]
