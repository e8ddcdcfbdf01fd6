"""The life of every elastic job in the database: first submission, runs, moves, end."""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import fsum

from ones.daemon.onesd.books.leases import Leases
from ones.daemon.onesd.books.reports import Learning
from ones.daemon.onesd.books.rest import Rest
from ones.daemon.onesd.books.store import Store
from ones.estimator.assess import family_of
from ones.policies.renewal import limit_share
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.satellites import Tie
from ones.slurm_ext.snapshot import ALIVE, JobRecord, Snapshot

log = logging.getLogger(__name__)
MOST_UNTOLD = 20_000
SECOND = 1.0  # Slurm's times are of whole seconds


@dataclass(frozen=True, slots=True)
class Past:
    """What a job has been through."""

    submitted: float
    executed: float  # seconds with GPUs, all runs
    waited: float  # seconds without
    limit_used: float  # of its time limit, all runs; see policies.renewal.limit_share


def is_another(record: JobRecord, row: sqlite3.Row, *, lapsed: bool = False) -> bool:
    """Whether a job that is alive is another one than that of which the table `jobs` tells.

    Slurm gives numbers away again. Restarts never become fewer, unless Slurm has `lapsed` into what
    was before; only a requeue sets the time of submission anew. A job that had ended comes back by
    a requeue, or was never away.
    """
    if record.user != row["user"]:
        return True
    if record.restarts < row["restarts"]:
        resubmitted = record.restarts == 0 and record.submitted > row["submitted"] + SECOND
        return bool(resubmitted or not lapsed)
    if record.restarts > row["restarts"]:
        return False
    if row["ended"] is not None:
        return bool(record.submitted >= row["ended"])
    return record.restarts == 0 and bool(record.submitted > row["submitted"] + SECOND)


Piece = tuple[float, float, int]  # (start, end, GPUs) of what a job holds


def pieces_of(
    started: float, ended: float, gpus: int, earlier: Iterable[tuple[float, int]] = ()
) -> Iterator[Piece]:
    """What a run held one after the other: before `gpus` so many until then, oldest first."""
    for until, held in earlier:
        yield started, until, held
        started = until
    yield started, ended, gpus


@dataclass(slots=True)
class _Parts:
    """What is written of one job's life."""

    runs: list[sqlite3.Row] = field(default_factory=list)  # that have ended
    shrinks: dict[int, list[tuple[float, int]]] = field(default_factory=dict)  # by run
    satellites: list[sqlite3.Row] = field(default_factory=list)

    def past(self, record: JobRecord, submitted: float, requested: int, now: float) -> Past:
        running = record.state == "RUNNING"
        until = record.started if running else now
        ended = [run for run in self.runs if run["started"] < until]
        executed = fsum(run["ended"] - run["started"] for run in ended)
        pieces = [(one["started"], one["ended"] or now, one["gpus"]) for one in self.satellites]
        for run in ended:
            pieces += self._run(run["ordinal"], run["started"], run["ended"], run["gpus"])
        if running:
            executed += max(0.0, now - record.started)
            own = sum(record.gpus_on.values())
            pieces += self._run(record.restarts, record.started, now, own)
        used = limit_used(pieces, requested)
        return Past(submitted, executed, max(0.0, now - submitted - executed), used)

    def _run(self, ordinal: int, started: float, ended: float, gpus: int) -> Iterator[Piece]:
        return pieces_of(started, ended, gpus, self.shrinks.get(ordinal, ()))


def limit_used(pieces: Iterable[Piece], requested: int) -> float:
    """What a job has used up of its time limit; what it holds at one time counts together."""
    changes = [
        (at, gpus) for start, end, gpus in pieces for at, gpus in ((start, gpus), (end, -gpus))
    ]
    changes.sort()
    total, held, since = 0.0, 0, 0.0
    for at, gpus in changes:
        total += (at - since) * limit_share(max(0, held), requested)
        held, since = held + gpus, at
    return total


class Records:
    """Keeps the tables `jobs`, `runs`, `shrinks` and `satellites`."""

    def __init__(
        self, store: Store, cluster: Cluster, learning: Learning, leases: Leases, *, rest: Rest
    ) -> None:
        """`rest`: between questions to the accounting, whoever puts them."""
        self._store = store
        self._leases = leases
        self._cluster = cluster
        self._learning = learning
        self._rest = rest
        self._untold: dict[int, None] = {}  # jobs of which the accounting has still to be asked

    def take(self, snapshot: Snapshot, *, now: float, lapsed: bool = False) -> list[int]:
        """Bring the tables up to what Slurm says now; the jobs seen for the first time.

        `lapsed`: of jobs that were known that may be what was so before.
        """
        known = {
            row["job"]: row
            for row in self._store.rows(
                "SELECT job, user, state, restarts, submitted, ended FROM jobs WHERE ended IS NULL"
            )
        }
        taught: list[Callable[[], None]] = []
        with self._store.transaction():
            met, stale = self._take_jobs(snapshot, known, now, taught, lapsed=lapsed)
            self._take_satellites(snapshot, stale)
        for learn in taught:
            learn()
        self._catch_up(stale, now)
        return met

    def _catch_up(self, stale: Iterable[int], now: float) -> None:
        """Have the accounting tell of these jobs, and of those of which it could not before."""
        self._untold.update(dict.fromkeys(stale))
        while len(self._untold) > MOST_UNTOLD:
            del self._untold[next(iter(self._untold))]
        if not self._untold or not self._rest.over(now):
            return
        answered = self.refresh_runs(list(self._untold))
        self._rest.told(now, answered=answered)
        if answered:
            self._untold.clear()

    def _take_jobs(
        self,
        snapshot: Snapshot,
        known: dict[int, sqlite3.Row],
        now: float,
        taught: list[Callable[[], None]],
        *,
        lapsed: bool,
    ) -> tuple[list[int], list[int]]:
        """The jobs seen for the first time, and those of which the accounting may know more.

        `taught` gets what is to be learnt from those that have ended, once that is on disk.
        """
        met, stale = list[int](), list[int]()
        for record in snapshot.jobs.values():
            before = known.pop(record.id, None)
            if not record.marked and (before is None or record.state in ALIVE):
                continue  # it may have opted in, until somebody took its mark away
            if before is None and record.state not in ALIVE:
                continue  # ended before we first saw it, or its end is already written
            before = self._same(before or self._over(record.id), record, lapsed=lapsed)
            if before is None:
                self._meet(record)
                met.append(record.id)
            elif (before["state"], before["restarts"]) != (record.state, record.restarts):
                self._store.write(
                    "UPDATE jobs SET state = ?, restarts = ? WHERE job = ?",
                    record.state,
                    record.restarts,
                    record.id,
                )
            if before is None or before["restarts"] != record.restarts:
                stale.append(record.id)
            if record.state not in ALIVE:
                taught.append(self._end(record, record.ended or now))
                stale.append(record.id)
        # Slurm has forgotten these (MinJobAge) while we were away: accounting knows their end.
        for job in known:
            if snapshot.makes_no_sense(job):
                continue
            stale.append(job)
            self._store.write(
                "UPDATE jobs SET state = 'UNKNOWN', ended = ? WHERE job = ?", now, job
            )
        return met, stale

    def met(self) -> frozenset[int]:
        """The jobs that have opted in and have not ended."""
        rows = self._store.rows("SELECT job FROM jobs WHERE ended IS NULL")
        return frozenset(row["job"] for row in rows)

    def _over(self, job: int) -> sqlite3.Row | None:
        """What is written of a job of this number that has ended."""
        return self._store.row(
            "SELECT job, user, state, restarts, submitted, ended FROM jobs WHERE job = ?", job
        )

    def _same(
        self, before: sqlite3.Row | None, record: JobRecord, *, lapsed: bool
    ) -> sqlite3.Row | None:
        """What is written of this very job: what is of another of its number is forgotten."""
        if before is None:
            return None
        if is_another(record, before, lapsed=lapsed):
            log.info("job %d: a new job has this number; the old one is forgotten", record.id)
            self._store.forget_job(record.id)
            return None
        if before["ended"] is not None:
            log.info("job %d: it had ended, and is back", record.id)
            self._store.write("UPDATE jobs SET ended = NULL WHERE job = ?", record.id)
        return before

    def _take_satellites(self, snapshot: Snapshot, stale: list[int]) -> None:
        """The same of the jobs that hold GPUs for others: they are parts, and no jobs here."""
        known = {
            row["job"]: row
            for row in self._store.rows(
                "SELECT job, base, state FROM satellites WHERE ended IS NULL"
            )
        }
        for record in snapshot.jobs.values():
            tie = Tie.of(record)
            if tie is None:
                continue
            before = known.pop(record.id, None)
            if before is None and record.state not in ALIVE:
                continue  # its end is written already
            if before is None or before["state"] != record.state:
                row: dict[str, object] = {
                    "job": record.id,
                    "base": tie.base,
                    "restarts": tie.restarts,
                    "ordered": tie.order,
                    "state": record.state,
                }
                if record.started:
                    row |= {"started": record.started, "nodes": record.nodes}
                if record.gpus_on:
                    row["gpus"] = sum(record.gpus_on.values())
                if record.state not in ALIVE:
                    row["ended"] = record.ended
                    stale.append(record.id)
                self._store.put("satellites", [row])
            ended = before is not None and record.state not in ALIVE
            if ended and record.state != "COMPLETED":
                base = snapshot.jobs.get(tie.base)
                left = sum(base.held_on.values()) if base and base.state == "RUNNING" else 0
                log.warning(
                    "job %d: its satellite %d on %s ended (%s); it holds %d GPUs now",
                    tie.base,
                    record.id,
                    record.nodes,
                    record.state,
                    left,
                )
        for job in known:
            stale.append(job)
            self._store.write(
                "UPDATE satellites SET state = 'UNKNOWN', ended = coalesce(started, 0)"
                " WHERE job = ?",
                job,
            )

    def _meet(self, record: JobRecord) -> None:
        mark = Mark.parse(record.admin_comment)
        with self._store.transaction():
            first = {
                "job": record.id,
                "name": record.name,
                "user": record.user,
                "account": record.account,
                "sizes": str(mark.sizes) if mark else "",
                "requested": mark.request if mark else 0,
                "submitted": record.submitted,
                "state": record.state,
                "family": family_of(record.user, record.name),
                "restarts": record.restarts,
            }
            self._store.put("jobs", [first])
            self._leases.meet(record.id, str(first["sizes"]))

    def _end(self, record: JobRecord, at: float) -> Callable[[], None]:
        with self._store.transaction():
            self._store.write("UPDATE jobs SET ended = ? WHERE job = ?", at, record.id)
            return self._learning.end(record, at)

    def refresh_runs(self, jobs: Sequence[int]) -> bool:
        """Read these jobs' runs from Slurm's accounting; whether it answered.

        Late accounting only delays history.
        """
        if not jobs:
            return True
        wanted = ",".join(str(job) for job in jobs)
        rows = self._store.rows(
            f"SELECT job FROM satellites WHERE job IN ({wanted}) OR base IN ({wanted})"
        )
        satellites = {row["job"] for row in rows}
        first = self._store.rows(f"SELECT job, submitted FROM jobs WHERE job IN ({wanted})")
        submitted = {row["job"]: row["submitted"] for row in first}
        try:
            runs = self._cluster.runs({*jobs, *satellites})
        except SlurmError:
            return False
        with self._store.transaction():
            for run in runs:
                if run.started < submitted.get(run.job, run.started) - SECOND:
                    continue  # of a job that had this number before; slurmdbd keeps them all
                if run.job in satellites:
                    self._store.write(
                        "UPDATE satellites SET started = ?, ended = ?, nodes = ?, gpus = ?,"
                        " state = ? WHERE job = ?",
                        run.started,
                        run.ended,
                        run.nodes,
                        run.gpus,
                        run.state,
                        run.job,
                    )
                    continue
                row = {
                    "job": run.job,
                    "ordinal": run.ordinal,
                    "started": run.started,
                    "ended": run.ended,
                    "nodes": run.nodes,
                    "gpus": run.gpus,
                    "state": run.state,
                }
                self._store.put("runs", [row])
                earlier = [
                    {
                        "job": run.job,
                        "ordinal": run.ordinal,
                        "until": held.until,
                        "nodes": held.nodes,
                        "gpus": held.gpus,
                    }
                    for held in run.before
                ]
                self._store.put("shrinks", earlier)
        return True

    def pasts(self, records: Iterable[JobRecord], *, now: float) -> dict[int, Past]:
        """When each of these jobs was first submitted, and how its time since then went."""
        among = "IN (SELECT job FROM jobs WHERE ended IS NULL)"
        rows = self._store.rows("SELECT job, submitted, requested FROM jobs WHERE ended IS NULL")
        known = {row["job"]: (row["submitted"], row["requested"]) for row in rows}
        parts = defaultdict[int, _Parts](_Parts)
        for row in self._store.rows(
            "SELECT job, ordinal, started, ended, gpus FROM runs"
            f" WHERE job {among} AND ended IS NOT NULL"
        ):
            parts[row["job"]].runs.append(row)
        for row in self._store.rows(
            f"SELECT job, ordinal, until, gpus FROM shrinks WHERE job {among} ORDER BY until"
        ):
            run = parts[row["job"]].shrinks.setdefault(row["ordinal"], [])
            run.append((row["until"], row["gpus"]))
        for row in self._store.rows(
            "SELECT base, started, ended, gpus FROM satellites"
            f" WHERE base {among} AND started IS NOT NULL"
        ):
            parts[row["base"]].satellites.append(row)
        none = _Parts()
        return {
            record.id: parts.get(record.id, none).past(
                record, *known.get(record.id, (record.submitted, 0)), now
            )
            for record in records
        }

    def arrivals(self, *, since: float) -> list[float]:
        rows = self._store.rows("SELECT submitted FROM jobs WHERE submitted > ?", since)
        return [row["submitted"] for row in rows]
