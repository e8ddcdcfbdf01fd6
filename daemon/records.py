"""The life of every elastic job in the database: first submission, runs, moves, end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ones.daemon.learning import Learning
from ones.daemon.published import Round
from ones.daemon.store import Store
from ones.estimator.assess import family_of
from ones.policies.guard import History
from ones.policies.model import JobId
from ones.slurm_ext.accounting import runs_of
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.elastic import ALIVE, Hold, Holds
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.satellites import Tie
from ones.slurm_ext.snapshot import JobRecord, Snapshot

if TYPE_CHECKING:
    from ones.daemon.config import Config

log = logging.getLogger(__name__)
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Past:
    """What a job has been through."""

    submitted: float
    executed: float  # seconds with GPUs, all runs
    waited: float  # seconds without


class Records:
    """Keeps the tables jobs, runs, rounds and decisions."""

    def __init__(self, store: Store, commands: Commands, learning: Learning) -> None:
        self._store = store
        self._commands = commands
        self._learning = learning
        self._forgot = 0.0

    def take(self, snapshot: Snapshot, *, now: float) -> None:
        """Bring the tables up to what Slurm says now."""
        known = {
            row["job"]: row
            for row in self._store.rows("SELECT job, state, restarts FROM jobs WHERE ended IS NULL")
        }
        stale = []
        for record in snapshot.jobs.values():
            if not record.marked:
                continue
            before = known.pop(record.id, None)
            if before is None and record.state not in ALIVE:
                continue  # ended before we first saw it, or its end is already written
            if before is None:
                self._meet(record)
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
                self._end(record, record.ended or now)
                stale.append(record.id)
        # Slurm has forgotten these (MinJobAge) while we were away: accounting knows their end.
        for job in known:
            stale.append(job)
            self._store.write(
                "UPDATE jobs SET state = 'UNKNOWN', ended = ? WHERE job = ?", now, job
            )
        self._take_satellites(snapshot, stale)
        self.refresh_runs(stale)

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
            self._store.put("leases", [{"job": record.id, "sizes": first["sizes"]}])

    def _end(self, record: JobRecord, at: float) -> None:
        with self._store.transaction():
            self._store.write("UPDATE jobs SET ended = ? WHERE job = ?", at, record.id)
            self._learning.end(record, at)

    def refresh_runs(self, jobs: Sequence[int]) -> None:
        """Read these jobs' runs from Slurm's accounting. Late accounting only delays history."""
        if not jobs:
            return
        wanted = ",".join(str(job) for job in jobs)
        rows = self._store.rows(
            f"SELECT job FROM satellites WHERE job IN ({wanted}) OR base IN ({wanted})"
        )
        satellites = {row["job"] for row in rows}
        try:
            runs = runs_of(self._commands, {*jobs, *satellites})
        except SlurmError:
            return
        with self._store.transaction():
            for run in runs:
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

    def past(self, record: JobRecord, *, now: float) -> Past:
        """When a job was first submitted, and how its time since then went."""
        row = self._store.row("SELECT submitted FROM jobs WHERE job = ?", record.id)
        submitted = row["submitted"] if row else record.submitted
        ran = self._store.row(
            "SELECT total(ended - started) AS seconds FROM runs"
            " WHERE job = ? AND ended IS NOT NULL AND started < ?",
            record.id,
            record.started if record.state == "RUNNING" else now,
        )
        executed = ran["seconds"] if ran else 0.0
        if record.state == "RUNNING":
            executed += max(0.0, now - record.started)
        return Past(submitted, executed, max(0.0, now - submitted - executed))

    def not_resizable(self, record: JobRecord) -> str:
        """Why this run of a job is left alone: it was asked for a checkpoint and gave none."""
        row = self._store.row(
            "SELECT json_extract(record, '$.outcome') AS outcome FROM moves WHERE job = ?"
            " AND json_extract(record, '$.restarts') = ?"
            " AND json_extract(record, '$.outcome') LIKE 'refused:%' LIMIT 1",
            record.id,
            record.restarts,
        )
        return "" if row is None else f"not resizable in this run; {row['outcome']}"

    def holds(self) -> Holds:
        """What we wrote down about holding jobs."""
        return {
            row["job"]: Hold(restarts=row["restarts"], released=row["released"] is not None)
            for row in self._store.rows("SELECT job, restarts, released FROM holds")
        }

    def arrivals(self, *, since: float) -> list[float]:
        rows = self._store.rows("SELECT submitted FROM jobs WHERE submitted > ?", since)
        return [row["submitted"] for row in rows]

    def history(self, now: float) -> History:
        """The resizes and preemptions of the last hour, for the guard."""
        moved: dict[JobId, list[float]] = {}
        live: dict[JobId, list[float]] = {}
        for row in self._store.rows(
            "SELECT job, at, json_extract(record, '$.kind') AS kind FROM moves WHERE at > ?"
            " AND kind IN ('resize', 'preempt', 'live')",
            now - HOUR,
        ):
            kind = live if row["kind"] == "live" else moved
            kind.setdefault(JobId(row["job"]), []).append(row["at"])
        return History(moved, live)

    def round(self, done: Round, config: Config, *, keep: float) -> None:
        """Write a round with its decisions; once an hour, forget what is too old."""
        with self._store.transaction():
            number = self._store.write(
                "INSERT INTO rounds(at, seconds, policy, mode, outcome) VALUES(?, ?, ?, ?, ?)",
                done.at,
                done.seconds,
                config.policy,
                config.mode,
                done.outcome,
            )
            for one in done.decisions:
                self._store.write(
                    "INSERT INTO decisions VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
                    number,
                    int(one.job),
                    one.kind,
                    ",".join(f"{node}:{gpus}" for node, gpus in one.target.gpus_on)
                    if one.target
                    else None,
                    one.batch,
                    one.gpus,
                    one.reason,
                    one.verdict,
                )
        if done.at - self._forgot > HOUR:
            self._forgot = done.at
            self._store.forget(done.at - keep)
