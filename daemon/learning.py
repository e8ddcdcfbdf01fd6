"""From what jobs told to what the estimator needs: reports are held against Slurm, then kept."""

from __future__ import annotations

import sqlite3

import msgspec

from ones.daemon.inbox import Inbox, Told
from ones.daemon.metrics import Metrics
from ones.daemon.store import Store
from ones.daemon.wire import Report
from ones.estimator.assess import family_of
from ones.estimator.progress import Finished, Progress
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.model import Batch, JobId
from ones.slurm_ext.snapshot import JobRecord, Snapshot

MEMORY = 5000  # observations, finished jobs and restart costs that one round looks back on


def fits(told: Told, record: JobRecord | None) -> bool:
    """Whether Slurm agrees that this job runs on the node whose agent speaks, in this very run.

    A report that lies about its job id, or that outlived its run, does not fit and is not used.
    """
    return (
        record is not None
        and record.marked
        and record.state == "RUNNING"
        and told.node in record.gpus_on
        and told.received.message.restarts == record.restarts
    )


class Learning:
    """What is known of jobs beyond what Slurm knows."""

    def __init__(self, store: Store, inbox: Inbox, metrics: Metrics) -> None:
        self._store = store
        self._inbox = inbox
        self._metrics = metrics
        self._seen: dict[int, float] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Keep the new reports that fit what Slurm says."""
        for job, told in self._inbox.reports().items():
            at = told.received.at
            if self._seen.get(job) == at:
                continue
            self._seen[job] = at
            record = snapshot.jobs.get(job)
            report = told.received.message
            if not isinstance(report, Report):
                continue
            if record is None or not fits(told, record):
                self._metrics.reports_refused.inc()
                # Slurm may list the run a moment later than its first report: look again then.
                del self._seen[job]
                continue
            self._keep(record, report, at, snapshot)

    def _keep(self, record: JobRecord, report: Report, at: float, snapshot: Snapshot) -> None:
        before = self.report(record)
        row = {
            "job": record.id,
            "restarts": report.restarts,
            "at": at,
            "report": msgspec.json.encode(report).decode(),
        }
        with self._store.transaction():
            self._store.put("reports", [row])
            # A run's first report comes before its first step: the cost comes in a later one.
            told = before is not None and before.resumed_seconds is not None
            if report.resumed_seconds is not None and not told:
                self._cost(record, report.resumed_seconds, at)
            held = sum(record.gpus_on.values())
            types = {snapshot.nodes[node].gpu_type for node in record.gpus_on}
            # A size that Slurm did not give is not believed; mixed types teach nothing of either.
            if report.step_seconds and report.batch and report.gpus == held and len(types) == 1:
                observed = {
                    "at": at,
                    "job": record.id,
                    "family": family_of(record.user, record.name),
                    "gpu_type": types.pop(),
                    "nodes": len(record.gpus_on),
                    "gpus": held,
                    "batch": report.batch,
                    "step_seconds": report.step_seconds,
                }
                self._store.put("observations", [observed])

    def _cost(self, record: JobRecord, resumed_seconds: float, at: float) -> None:
        """A restart costs the gap between two runs and the start of the program."""
        gap = self._store.row(
            "SELECT b.started - a.ended AS gap FROM runs a JOIN runs b"
            " ON a.job = b.job AND b.ordinal = a.ordinal + 1 WHERE a.job = ? AND b.ordinal = ?",
            record.id,
            record.restarts,
        )
        resized = self._store.row(
            "SELECT 1 FROM moves WHERE job = ? AND json_extract(record, '$.kind') = 'resize'"
            " AND json_extract(record, '$.restarts') = ?",
            record.id,
            record.restarts - 1,
        )
        if resized is None:
            return  # a preempted job's wait is the plan's doing, not the price of a restart
        between = gap["gap"] if gap is not None and gap["gap"] is not None else 0.0
        self._store.write(
            "INSERT INTO restart_costs VALUES(?, ?, ?, ?)",
            at,
            record.id,
            family_of(record.user, record.name),
            max(0.0, between) + resumed_seconds,
        )

    def ready(self, record: JobRecord) -> bool:
        """Whether the job has said in this run that it is there and saves when asked."""
        report = self.report(record)
        return report is not None and report.checkpoints

    def report(self, record: JobRecord) -> Report | None:
        """The last report of the job's present run."""
        row = self._store.row(
            "SELECT report FROM reports WHERE job = ? AND restarts = ?", record.id, record.restarts
        )
        return None if row is None else msgspec.json.decode(row["report"], type=Report)

    def progress(self) -> dict[JobId, Progress]:
        """The last word of each job that has not ended, from whichever run."""
        return {
            JobId(row["job"]): Progress(
                job=JobId(row["job"]),
                samples=float(report.samples),
                total_samples=_number(report.total_samples),
                epoch_samples=_number(report.epoch_samples),
            )
            for row in self._store.rows(
                "SELECT job, report FROM reports"
                " WHERE job IN (SELECT job FROM jobs WHERE ended IS NULL)"
            )
            for report in [msgspec.json.decode(row["report"], type=Report)]
        }

    def batches(self, record: JobRecord) -> tuple[int | None, Batch | None]:
        """The batch a job runs with, and those it accepts where it says so."""
        row = self._store.row("SELECT report FROM reports WHERE job = ?", record.id)
        if row is None:
            return None, None
        report = msgspec.json.decode(row["report"], type=Report)
        if not (report.batch_submitted and report.batch_most and report.batch_most_per_gpu):
            return report.batch, None
        return report.batch, Batch(
            submitted=report.batch_submitted,
            most=report.batch_most,
            most_per_gpu=report.batch_most_per_gpu,
        )

    def observations(self) -> list[Observation]:
        return [
            Observation(
                job=JobId(row["job"]),
                family=row["family"],
                gpu_type=row["gpu_type"],
                nodes=row["nodes"],
                gpus=row["gpus"],
                batch=row["batch"],
                step_seconds=row["step_seconds"],
            )
            for row in self._latest("observations")
        ]

    def finished(self) -> list[Finished]:
        return [
            Finished(family=row["family"], total_samples=row["samples"])
            for row in self._latest("finished")
        ]

    def restart_costs(self) -> list[RestartCost]:
        return [
            RestartCost(job=JobId(row["job"]), family=row["family"], seconds=row["seconds"])
            for row in self._latest("restart_costs")
        ]

    def _latest(self, table: str) -> list[sqlite3.Row]:
        """The newest rows of a table, oldest first."""
        rows = self._store.rows(f"SELECT * FROM {table} ORDER BY at DESC LIMIT ?", MEMORY)
        return rows[::-1]

    def end(self, record: JobRecord, at: float) -> None:
        """A job has ended; a completed one teaches how long its family's jobs are."""
        row = self._store.row("SELECT report FROM reports WHERE job = ?", record.id)
        if row is None or record.state != "COMPLETED":
            return
        samples = float(msgspec.json.decode(row["report"], type=Report).samples)
        finished = {
            "job": record.id,
            "at": at,
            "family": family_of(record.user, record.name),
            "samples": samples,
        }
        self._store.put("finished", [finished])


def _number(count: int | None) -> float | None:
    return float(count) if count else None
