"""From what jobs told to what the estimator needs: reports are held against Slurm, then kept."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import msgspec

from ones.daemon.onesd.books.batch_terms import batch_terms
from ones.daemon.onesd.books.courses import Courses
from ones.daemon.onesd.books.heard import Inbox, Told
from ones.daemon.onesd.books.journal import Journal
from ones.daemon.onesd.books.leases import Leased, Leases
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.wire import REPORT, Report
from ones.estimator.assess import family_of
from ones.estimator.experience import Experience, GradientReport
from ones.estimator.progress import Finished, Progress
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.model import Batch, JobId
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.shards import beside
from ones.slurm_ext.snapshot import JobRecord, Snapshot

log = logging.getLogger(__name__)
MEMORY = 20_000  # rows of each kind that onesd looks back on when it starts
MOST_OBSERVATIONS = 2000  # rows that are kept of one job: one for each size and batch
MOST_GRADIENTS = 1000  # rows that are kept of one job: one for each epoch and batch
SAME_BATCH = 1.1  # times: what a job rounds to its workers is still the batch that it was given
UNTAKEN = 2  # reports with another one: the first may be of a moment before


@dataclass(frozen=True, slots=True)
class Kept:
    """A job's last report, of the run that had so many restarts before it."""

    restarts: int
    report: Report | None  # None: it can't be read


@dataclass(frozen=True, slots=True)
class _Untaken:
    """A batch that a job was given, and that which it has instead."""

    times: int  # it has said so, one after the other
    given: int
    has: int


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

    def __init__(
        self,
        store: Store,
        inbox: Inbox,
        metrics: Metrics,
        *,
        leases: Leases,
        journal: Journal,
        courses: Courses,
    ) -> None:
        self._store = store
        self._leases = leases
        self._journal = journal
        self._courses = courses
        self._inbox = inbox
        self._metrics = metrics
        self._seen: dict[int, float] = {}
        self._crowded: set[int] = set()  # jobs whose last report was of a shared GPU
        self._untaken: dict[int, _Untaken] = {}
        self._contradictions: dict[JobId, str] = {}
        self._experience = self._remembered()

    def experience(self) -> Experience:
        """All that reports have taught: read from the database once, and added to ever since."""
        return self._experience

    def take(self, snapshot: Snapshot) -> None:
        """Keep the new reports that fit what Slurm says."""
        taught: list[Callable[[], None]] = []
        kept: list[int] = []
        together = beside(snapshot.jobs)
        told_by = self._inbox.reports()
        self._seen = {job: at for job, at in self._seen.items() if job in told_by}
        self._crowded &= snapshot.jobs.keys()
        self._untaken = {job: one for job, one in self._untaken.items() if job in snapshot.jobs}
        new = [job for job, told in told_by.items() if self._seen.get(job) != told.received.at]
        before = self._rows_of(new)
        leased, moving = self._leases.of_jobs(new), self._journal.moving()
        try:
            # All at once: to wait for the disk after each would take longer than all the rest.
            with self._store.transaction():
                for job in new:
                    told = told_by[job]
                    at = self._seen[job] = told.received.at
                    record = snapshot.jobs.get(job)
                    report = told.received.message
                    if not isinstance(report, Report):
                        continue
                    if record is None or not fits(told, record):
                        self._metrics.reports_refused.inc()
                        # Slurm may list the run a moment later than its first report: look again
                        # then.
                        del self._seen[job]
                        continue
                    taught += self._keep(
                        record, report, at, snapshot, together=together, row=before.get(job)
                    )
                    if job not in moving:
                        self._compare(report, leased.get(job))
                    kept.append(job)
        except BaseException:
            for job in kept:  # none of it is on disk; only the one at fault is not tried again
                del self._seen[job]
            raise
        # Only what is on disk is in memory, too.
        for learn in taught:
            learn()
        self._experience.forget_jobs(
            but=lambda job: job in snapshot.jobs or snapshot.makes_no_sense(job)
        )

    def _keep(
        self,
        record: JobRecord,
        report: Report,
        at: float,
        snapshot: Snapshot,
        *,
        together: Collection[int],
        row: sqlite3.Row | None,
    ) -> list[Callable[[], None]]:
        """Write a report down, within a transaction; what there is to learn from it, afterwards.

        `together` are the jobs that share a GPU with another, `row` is that of the job's last one.
        """
        held = sum(record.held_on.values())
        nodes = [snapshot.nodes.get(node) for node in record.held_on]
        types = {node.gpu_type for node in nodes if node is not None}
        # A size that Slurm did not give is not believed; mixed types teach nothing of either, nor
        # does a node that Slurm has just forgotten.
        believed = report.gpus == held and len(types) == 1 and None not in nodes
        teaches = believed and not self._beside_others(record, together)
        observation = _observation(record, report, types.pop()) if teaches else None
        gradient = _gradient(record, report) if believed else None
        cost = None
        busy = self._inbox.utilization(record, now=snapshot.taken)
        self._store.put("reports", [self._row(record, report, at, row)])
        # By our own clock, like its runs: those of its nodes may differ.
        self._courses.add(record.id, report, utilization=busy, at=snapshot.taken)
        # A run's first report comes before its first step: the cost comes in a later one.
        if report.resumed_seconds is not None and not _told_resumed(row, record):
            cost = self._cost(record, report.resumed_seconds, at)
        if observation is not None:
            self._store.put("observations", [{"at": at, **_columns(observation)}])
            self._keep_latest("observations", record.id, MOST_OBSERVATIONS)
        if gradient is not None:
            self._store.put("gradients", [{"at": at, **_columns(gradient)}])
            self._keep_latest("gradients", record.id, MOST_GRADIENTS)
        taught: list[Callable[[], None]] = []
        if observation is not None:
            taught.append(partial(self._experience.observe, observation, at))
        if gradient is not None:
            taught.append(partial(self._experience.gradient, gradient))
        if cost is not None:
            taught.append(partial(self._experience.restart, cost))
        return taught

    def _compare(self, report: Report, leased: Leased | None) -> None:
        """Whether the job has the batch that it was given with the size that it has.

        A job that takes another one while it runs does so in its own time.
        """
        given = None if leased is None else leased.batch_on(report.gpus)
        if report.tunes or not given or not report.batch:
            return
        if given / SAME_BATCH <= report.batch <= given * SAME_BATCH:
            self._untaken.pop(report.job, None)
        else:
            before = self._untaken.get(report.job)
            times = 1 if before is None else before.times + 1
            self._untaken[report.job] = _Untaken(times, given, report.batch)

    def _keep_latest(self, table: str, job: int, most: int) -> None:
        """Drop what a job told before its latest rows: it may tell as much as it likes."""
        self._store.write(
            f"DELETE FROM {table} WHERE job = ?1 AND at <"
            f" (SELECT at FROM {table} WHERE job = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2)",
            job,
            most - 1,
        )

    def _beside_others(self, record: JobRecord, together: Collection[int]) -> bool:
        """Whether a report's speed is, or may be in part, that of a job beside another."""
        crowded = record.id in together
        before = record.id in self._crowded
        (self._crowded.add if crowded else self._crowded.discard)(record.id)
        return crowded or before

    def _rows_of(self, jobs: Iterable[int]) -> dict[int, sqlite3.Row]:
        """What is kept of the last reports of these jobs."""
        rows = self._store.of_jobs("reports", jobs, "job, restarts, report, initial_loss")
        return {row["job"]: row for row in rows}

    def _row(
        self, record: JobRecord, report: Report, at: float, kept: sqlite3.Row | None
    ) -> dict[str, object]:
        row: dict[str, object] = {
            "job": record.id,
            "restarts": report.restarts,
            "at": at,
            "report": msgspec.json.encode(report).decode(),
        }
        # These outlast the reports that don't say them, such as a run's first.
        if report.loss is not None:
            first = None if kept is None else kept["initial_loss"]
            row |= {"loss": report.loss, "initial_loss": report.loss if first is None else first}
        if report.accuracy is not None:
            row["accuracy"] = report.accuracy
        return row

    def _cost(self, record: JobRecord, resumed_seconds: float, at: float) -> RestartCost | None:
        """What a restart costs: the gap between two runs, and the start of the program.

        How long the job waited for others to leave is not part of it. The run before is known from
        the accounting; a gap that is not known teaches nothing.
        """
        stop = self._journal.stop_of(record.id, record.restarts - 1)
        before = self._store.row(
            "SELECT ended FROM runs WHERE job = ? AND ordinal = ?", record.id, record.restarts - 1
        )
        ended = None if before is None else before["ended"]
        if stop is None or not stop.resizes or ended is None:
            # A preempted job's wait is the plan's doing, not the price of a restart.
            if stop is not None:
                self._lost(record, stop.kind, resumed_seconds)
            return None
        gap = record.started - max(ended, stop.lacked_at or ended)
        cost = RestartCost(
            job=JobId(record.id),
            family=family_of(record.user, record.name),
            seconds=max(0.0, gap) + resumed_seconds,
        )
        self._lost(record, stop.kind, cost.seconds)
        self._store.write(
            "INSERT INTO restart_costs VALUES(?, ?, ?, ?, 0)",
            at,
            cost.job,
            cost.family,
            cost.seconds,
        )
        return cost

    def _lost(self, record: JobRecord, kind: str, seconds: float) -> None:
        """Its GPUs did no work for so long because of a move of this kind."""
        self._metrics.lost.labels(kind=kind).inc(seconds * sum(record.held_on.values()))

    def live_cost(self, record: JobRecord, seconds: float, *, at: float) -> None:
        """Training stood still for so long when the job was resized live."""
        self._lost(record, "live", seconds)
        family = family_of(record.user, record.name)
        cost = RestartCost(job=JobId(record.id), family=family, seconds=seconds, live=True)
        self._store.write(
            "INSERT INTO restart_costs VALUES(?, ?, ?, ?, 1)", at, cost.job, family, seconds
        )
        self._experience.restart(cost)

    def ready(self, record: JobRecord, kept: Mapping[int, Kept] | None = None) -> bool:
        """Whether the job has said in this run that it is there and saves when asked.

        `kept` are all jobs' last reports, where they were asked for already.
        """
        report = self.report(record, kept)
        return report is not None and report.checkpoints

    def report(self, record: JobRecord, kept: Mapping[int, Kept] | None = None) -> Report | None:
        """The last report of the job's present run."""
        last = self._last(record.id, kept)
        return last.report if last is not None and last.restarts == record.restarts else None

    def kept(self) -> dict[int, Kept]:
        """The last report of each job that has not ended."""
        rows = self._store.rows(
            "SELECT job, restarts, report FROM reports"
            " WHERE job IN (SELECT job FROM jobs WHERE ended IS NULL)"
        )
        return {row["job"]: Kept(row["restarts"], _decoded(row)) for row in rows}

    def _last(self, job: int, kept: Mapping[int, Kept] | None) -> Kept | None:
        if kept is not None:
            return kept.get(job)
        row = self._store.row("SELECT restarts, report FROM reports WHERE job = ?", job)
        return None if row is None else Kept(row["restarts"], _decoded(row))

    def progress(self) -> dict[JobId, Progress]:
        """The last word of each job that has not ended, from whichever run."""
        return {
            JobId(row["job"]): Progress(
                job=JobId(row["job"]),
                samples=float(report.samples),
                total_samples=_number(report.total_samples),
                epoch_samples=_number(report.epoch_samples),
                loss=row["loss"],
                initial_loss=row["initial_loss"],
                accuracy=row["accuracy"],
            )
            for row in self._store.rows(
                "SELECT job, report, loss, initial_loss, accuracy FROM reports"
                " WHERE job IN (SELECT job FROM jobs WHERE ended IS NULL)"
            )
            if (report := _decoded(row)) is not None
        }

    def batches(
        self,
        record: JobRecord,
        *,
        least: int | None = None,
        kept: Mapping[int, Kept] | None = None,
    ) -> tuple[int | None, Batch | None]:
        """The batch a job runs with, and those it accepts where it says so and that makes sense.

        `least` are the fewest GPUs that one allocation can give it; None: what its mark has. `kept`
        are all jobs' last reports, where they were asked for already.
        A job that takes another batch while it runs is taken to have it as soon as it is leased,
        though it may have to end its epoch first: it isn't to be told twice.
        """
        last = self._last(record.id, kept)
        report = None if last is None else last.report
        if report is None:
            return None, None
        if least is None:
            mark = Mark.parse(record.admin_comment)
            least = 1 if mark is None else mark.sizes.least
        batches, fault = batch_terms(report, least=least)
        untaken = self._untaken.get(record.id)
        if batches is not None and untaken is not None and untaken.times >= UNTAKEN:
            # To offer it once more would restart the job for nothing, round after round.
            batches = None
            fault = f"it was given a batch of {untaken.given} and still has {untaken.has}"
        self._note(record, fault)
        if batches is None:
            return report.batch or None, None
        return (self._leased(record) if report.tunes else None) or report.batch or None, batches

    @property
    def contradictions(self) -> Mapping[JobId, str]:
        """What isn't used of what jobs told of themselves, and why, as `batches` last found it."""
        return self._contradictions

    def _note(self, record: JobRecord, fault: str) -> None:
        job = JobId(record.id)
        if not fault:
            self._contradictions.pop(job, None)
            return
        said = f"keeps its own batch: {fault}; correct what it declares"
        if self._contradictions.get(job) != said:
            log.warning("job %d %s", job, said)
        self._contradictions[job] = said

    def _leased(self, record: JobRecord) -> int | None:
        """The batch that the plan has given to a running job, at the size that it has."""
        leased = self._leases.of(record.id)
        return None if leased is None else leased.batch_on(sum(record.held_on.values()))

    def _remembered(self) -> Experience:
        """What the database holds, oldest first."""
        experience = Experience()
        for row in self._latest("observations"):
            experience.observe(Observation(**_without_time(row)), row["at"])
        for row in self._latest("gradients"):
            experience.gradient(GradientReport(**_without_time(row)))
        for row in self._latest("restart_costs"):
            values = _without_time(row)
            experience.restart(RestartCost(**values | {"live": bool(values["live"])}))
        for row in self._latest("finished"):
            experience.finish(
                Finished(family=row["family"], total_samples=row["samples"], job=JobId(row["job"]))
            )
        return experience

    def forget(self, before: float) -> None:
        """What the database has forgotten, which would not be there after a restart."""
        self._experience.forget(before)

    def last(self, job: int) -> Any:
        """A job's last report as JSON has it, or None."""
        row = self._store.row("SELECT report FROM reports WHERE job = ?", job)
        return None if row is None else msgspec.json.decode(row["report"])

    def _latest(self, table: str) -> list[sqlite3.Row]:
        """The newest rows of a table, oldest first."""
        rows = self._store.rows(f"SELECT * FROM {table} ORDER BY at DESC LIMIT ?", MEMORY)
        return rows[::-1]

    def end(self, record: JobRecord, at: float) -> Callable[[], None]:
        """A job has ended; a completed one teaches how long its family's jobs are.

        Returns what there is to learn from it, once what is written here is on disk.
        """
        self._contradictions.pop(JobId(record.id), None)
        row = self._store.row("SELECT report FROM reports WHERE job = ?", record.id)
        report = None if row is None else _decoded(row)
        if report is None or record.state != "COMPLETED":
            return lambda: None
        done = Finished(
            family=family_of(record.user, record.name),
            total_samples=float(report.samples),
            job=JobId(record.id),
        )
        finished = {
            "job": record.id,
            "at": at,
            "family": done.family,
            "samples": done.total_samples,
        }
        self._store.put("finished", [finished])
        return partial(self._experience.finish, done)


def _told_resumed(row: sqlite3.Row | None, record: JobRecord) -> bool:
    """Whether a report of this very run has said what it took to resume."""
    if row is None or row["restarts"] != record.restarts:
        return False
    report = _decoded(row)
    return report is not None and report.resumed_seconds is not None


def _columns(one: Observation | GradientReport) -> dict[str, Any]:
    """Its fields by their names; all are plain values."""
    return {field.name: getattr(one, field.name) for field in fields(one)}


def _observation(record: JobRecord, report: Report, gpu_type: str) -> Observation | None:
    """The speed that a report tells of, on one type of GPUs."""
    if not (report.step_seconds and report.batch and report.gpus):
        return None
    return Observation(
        job=JobId(record.id),
        family=family_of(record.user, record.name),
        gpu_type=gpu_type,
        nodes=len(record.held_on),
        gpus=report.gpus,
        batch=report.batch,
        passes=report.passes or 1,
        step_seconds=report.step_seconds,
        sync_seconds=report.sync_seconds,
    )


def _gradient(record: JobRecord, report: Report) -> GradientReport | None:
    """The gradient noise that a report tells of."""
    if report.grad_sqr is None or report.grad_var is None:
        return None
    if report.epoch is None or not report.batch:
        return None
    return GradientReport(
        job=JobId(record.id),
        family=family_of(record.user, record.name),
        epochs=int(report.epoch),
        batch=report.batch,
        sqr=report.grad_sqr,
        var=report.grad_var,
    )


def _decoded(row: sqlite3.Row) -> Report | None:
    """A kept report; None where another version wrote it and it can't be read: a new one comes."""
    try:
        return REPORT.decode(row["report"])
    except msgspec.DecodeError as fault:
        log.warning("a kept report is passed over: %s", fault)
        return None


def _without_time(row: sqlite3.Row) -> dict[str, Any]:
    return {name: row[name] for name in row.keys() if name != "at"}  # noqa: SIM118 (its values)


def _number(count: int | None) -> float | None:
    return float(count) if count else None
