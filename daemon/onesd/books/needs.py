"""What runs were seen to need, kept in the database, and what the next like them is told.

The agents say what a run's GPUs do and whether other jobs are on them; Slurm's accounting says the
rest when the run has ended. A run that shared a GPU, or that changed its size, is written down but
teaches nothing.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from ones.daemon.onesd.books.rest import Rest
from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import REPORT, NodeReport
from ones.estimator.assess import family_of
from ones.estimator.needs.estimate import Estimate, Needs, Quality
from ones.estimator.needs.features import Resource, Run, Traits
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.errors import OnesError, SlurmError
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.snapshot import JobRecord, Snapshot
from ones.slurm_ext.usage import Usage

MEMORY = 2000  # runs that onesd looks back on when it starts
MIB = 2**20
BUSY = 0.15  # of a GPU's time: from here on a run is in its GPU phase (Liquid §1.1)
FULL = 0.97  # of the card: a run that failed with so much ran out of memory
LEAST_SAMPLES = 3  # of a run's GPU, before it tells what its job uses
PATIENCE = 3600.0  # seconds that late accounting is waited for
EARLIER = 3600.0  # seconds by which a run can't have ended before it was last seen
FAILED = ("FAILED", "OUT_OF_MEMORY")
Amount = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


class NothingKnown(OnesError):
    """Nothing can be estimated: the text says why, and what to do."""


@dataclass(slots=True)
class _Seen:
    """What the agents' last reports say of one job's GPUs."""

    memory: float = 0.0
    card: float = 0.0
    busy: list[float] = field(default_factory=list)
    shared: bool = False
    received: float = 0.0  # bytes over the network of nodes that it had to itself
    sent: float = 0.0
    listened: float = 0.0  # seconds in which these were counted, of all such nodes


class NeedsBook:
    """The table `needs`, a row for each run, and what it has taught."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        *,
        quality: Quality | None = None,
        rest: Rest | None = None,
    ) -> None:
        """`rest`: between questions to the accounting, whoever puts them."""
        self._store = store
        self._cluster = cluster
        self._rest = rest or Rest()
        self._heard: dict[str, float] = {}
        self._traffic: dict[str, NodeReport] = {}  # of each node, the report before
        self._met: set[tuple[int, int]] = set()  # runs that have a row
        self._lock = threading.Lock()  # of _needs: only those who ask wait for a fit
        # Runs the round has closed, not yet learnt: nobody may ask for months.
        self._closed: deque[Run] = deque(maxlen=MEMORY)
        self._needs = Needs(quality=quality)
        rows = store.rows(
            "SELECT * FROM needs WHERE state IS NOT NULL ORDER BY at DESC LIMIT ?", MEMORY
        )
        for row in rows[::-1]:
            self._needs.learn(_run(row))

    def take(
        self,
        snapshot: Snapshot,
        heard: Mapping[str, tuple[float, NodeReport]],
        *,
        now: float,
    ) -> None:
        """Write down what the agents have said since, and close the runs that have ended."""
        seen = self._new(snapshot, heard)
        # Without agents, or before a job's first process on its GPUs, there is still accounting.
        for record in snapshot.jobs.values():
            # A satellite's use is not what a job of that name would ask for.
            if record.state == "RUNNING" and record.gpus_on and not record.is_satellite:
                met = (record.id, record.restarts)
                if met not in self._met:
                    seen.setdefault(record.id, _Seen())
                    self._met.add(met)
        before, reports = self._known("needs", seen), self._known("reports", seen)
        with self._store.transaction():
            for number, one in seen.items():
                record = snapshot.jobs[number]
                run = number, record.restarts
                self._see(record, one, snapshot, now, (before.get(run), reports.get(run)))
        open_runs = self._store.rows("SELECT * FROM needs WHERE state IS NULL")
        ended = [row for row in open_runs if not _runs(row, snapshot)]
        if ended:
            self._close(ended, now)

    def _new(
        self, snapshot: Snapshot, heard: Mapping[str, tuple[float, NodeReport]]
    ) -> dict[int, _Seen]:
        seen: dict[int, _Seen] = {}
        alone = _alone(snapshot)
        for node, (at, report) in heard.items():
            if self._heard.get(node) == at:
                continue
            self._heard[node] = at
            before, self._traffic[node] = self._traffic.get(node), report
            if before is not None and (number := alone.get(node)) is not None:
                began = snapshot.jobs[number].started
                _listen(seen.setdefault(number, _Seen()), before, report, began=began)
            for gpu in report.gpus:
                for number in gpu.jobs:
                    record = snapshot.jobs.get(number)
                    if record is None or record.state != "RUNNING" or node not in record.gpus_on:
                        continue
                    if record.is_satellite:
                        continue
                    one = seen.setdefault(number, _Seen())
                    one.shared |= len(gpu.jobs) > 1
                    one.memory = max(one.memory, (gpu.memory_used or 0) / MIB)
                    one.card = max(one.card, (gpu.memory_total or 0) / MIB)
                    if gpu.utilization is not None:
                        one.busy.append(gpu.utilization)
        return seen

    def _known(self, table: str, jobs: Iterable[int]) -> dict[tuple[int, int], sqlite3.Row]:
        """What the table has of the runs of these jobs."""
        rows = self._store.of_jobs(table, jobs)
        return {(row["job"], row["restarts"]): row for row in rows}

    def _see(
        self,
        record: JobRecord,
        seen: _Seen,
        snapshot: Snapshot,
        now: float,
        known: tuple[sqlite3.Row | None, sqlite3.Row | None],
    ) -> None:
        """Add what was seen to a run's row; `known` are that and its job's last report."""
        before, report = known
        gpus, nodes = sum(record.gpus_on.values()), len(record.gpus_on)
        busy = sum(seen.busy) / len(seen.busy) if seen.busy else None
        works = busy is not None and busy > BUSY
        old: Mapping[str, Any] = dict(before) if before is not None else {}
        types = {snapshot.nodes[name].gpu_type for name in record.gpus_on if name in snapshot.nodes}
        row = {
            "job": record.id,
            "restarts": record.restarts,
            "at": now,
            "user": record.user,
            "account": record.account,
            "family": family_of(record.user, record.name),
            "gpu_type": types.pop() if len(types) == 1 else None,
            "nodes": nodes,
            "gpus": gpus,
            "batch": _batch_per_gpu(report, gpus),
            "shared": int(bool(old.get("shared")) or seen.shared),
            "resized": int(
                bool(old.get("resized") or record.satellites) or old.get("gpus", gpus) != gpus
            ),
            "card": seen.card or old.get("card"),
            "gpu_memory": max(old.get("gpu_memory") or 0.0, seen.memory),
            "busy": (old.get("busy") or 0.0) + (busy or 0.0),
            "samples": (old.get("samples") or 0) + (busy is not None),
            "first_busy": old.get("first_busy") or (now if works else None),
            "last_busy": now if works else old.get("last_busy"),
            "received": (old.get("received") or 0.0) + seen.received,
            "sent": (old.get("sent") or 0.0) + seen.sent,
            "listened": (old.get("listened") or 0.0) + seen.listened,
        }
        self._store.put("needs", [row])

    def _close(self, ended: Iterable[sqlite3.Row], now: float) -> None:
        """Late or failing accounting only delays what is learnt; at last the run is given up."""
        rows = list(ended)
        usages = self._usages(rows, now)
        found = {(one.job, one.ordinal): one for one in usages}
        done = []
        with self._store.transaction():
            for row in rows:
                run = row["job"], row["restarts"]
                usage = found.get(run)
                if usage is not None and usage.ended < row["at"] - EARLIER:
                    usage = None  # of a job that had this number before; slurmdbd keeps them all
                if usage is None and now - row["at"] < PATIENCE:
                    continue
                closed: dict[str, Any] = {"job": run[0], "restarts": run[1], "state": "UNKNOWN"}
                if usage is not None:
                    closed |= _closing(usage)
                # Its other columns are not null, so that an insert would not do.
                self._store.put("needs", [{**dict(row), **closed}])
                done.append(run)
        for run in done:
            self._met.discard(run)
            ended_run = self._store.row("SELECT * FROM needs WHERE job = ? AND restarts = ?", *run)
            if ended_run is not None:
                self._closed.append(_run(ended_run))

    def _usages(self, rows: Sequence[sqlite3.Row], now: float) -> list[Usage]:
        if not self._rest.over(now):
            return []
        try:
            found = self._cluster.usage([row["job"] for row in rows])
        except SlurmError:
            self._rest.told(now, answered=False)
            return []
        self._rest.told(now, answered=True)
        return found

    def estimate(
        self, *, family: str, gpus: float | None = None, nodes: float | None = None
    ) -> tuple[int, list[Estimate]]:
        """How many runs of the family there were, and what the next will need.

        Raises NothingKnown.
        """
        with self._lock:
            while self._closed:
                self._needs.learn(self._closed.popleft())
            runs = self._needs.seen(family)
        if not runs:
            raise NothingKnown(
                f"nothing is known of {family}: no run of that name has had a GPU to itself here;"
                " after its first run there is an estimate"
            )
        last = self._store.row(
            "SELECT * FROM needs WHERE family = ? ORDER BY at DESC LIMIT 1", family
        )
        known: dict[str, Any] = dict(last) if last is not None else {}
        traits = Traits(
            family=family,
            gpu_type=known.get("gpu_type") or None,
            batch_per_gpu=known.get("batch") or None,
            gpus=gpus or known.get("gpus") or None,
            nodes=nodes or known.get("nodes") or None,
        )
        with self._lock:
            found = self._needs.estimate(traits, card=known.get("card") or None)
        return runs, [found[resource] for resource in Resource if resource in found]

    def used_alone(self, job: int) -> tuple[float | None, float | None]:
        """What a job has used of a GPU that it had to itself: MiB at most, and the share of its
        time; None: not known."""
        own = self._store.row(
            "SELECT max(gpu_memory) AS memory, sum(busy) / sum(samples) AS busy FROM needs"
            " WHERE job = ? AND gpus = 1 AND NOT shared AND NOT resized AND samples >= ?",
            job,
            LEAST_SAMPLES,
        )
        return (own["memory"] or None, own["busy"]) if own is not None else (None, None)

    def undoubted(self, family: str) -> Mapping[Resource, Estimate]:
        """What the family's runs say that a job of it needs of one GPU, as far as that is sure."""
        try:
            _, estimates = self.estimate(family=family, gpus=1.0, nodes=1.0)
        except NothingKnown:
            return {}
        return {one.resource: one for one in estimates if not one.advice_only}

    def report(self, only: str | None) -> list[dict[str, Any]]:
        """What runs that have ended asked for and used, by user and account, the most GPU time
        first. Means are weighted by time; shared runs count, since they asked, too."""
        rows = self._store.rows(
            "SELECT user, account, count(*) AS runs, sum(gpus * seconds) / 3600.0 AS gpu_hours,"
            " sum(busy / samples * gpus * seconds)"
            " / sum(iif(samples, gpus * seconds, NULL)) AS busy,"
            f" {_mean('gpu_memory', 'card')}, {_mean('card', 'gpu_memory')},"
            f" {_mean('memory_asked', 'host_memory')}, {_mean('host_memory', 'memory_asked')},"
            f" {_mean('cpus_asked', 'cpu_cores')}, {_mean('cpu_cores', 'cpus_asked')},"
            " avg(iif(time_asked IS NULL, NULL, seconds)) AS time,"
            " avg(time_asked) AS time_asked"
            " FROM (SELECT *, max(ended - started, 1.0) AS seconds FROM needs"
            " WHERE ended IS NOT NULL AND (?1 IS NULL OR user = ?1))"
            " GROUP BY user, account ORDER BY gpu_hours DESC, user, account",
            only,
        )
        return [dict(row) for row in rows]

    def asked_by(self, number: int) -> dict[str, Any] | None:
        """The last run of a job."""
        row = self._store.row(
            "SELECT * FROM needs WHERE job = ? ORDER BY restarts DESC LIMIT 1", number
        )
        return None if row is None else dict(row)


def _mean(column: str, beside: str) -> str:
    """SQL: the mean of a column, weighted by time, over the runs that know the other one, too."""
    both = f"{column} IS NOT NULL AND {beside} IS NOT NULL"
    return (
        f"sum(iif({both}, {column} * seconds, NULL)) / sum(iif({both}, seconds, NULL)) AS {column}"
    )


def _alone(snapshot: Snapshot) -> dict[str, int]:
    """Node -> the one job that runs on it, with GPUs there."""
    jobs: dict[str, list[JobRecord]] = {}
    for record in snapshot.jobs.values():
        if record.state == "RUNNING":
            for node in expand(record.nodes):
                jobs.setdefault(node, []).append(record)
    return {
        node: one.id
        for node, (one, *others) in jobs.items()
        if not others and node in one.gpus_on and not one.is_satellite
    }


def _batch_per_gpu(row: sqlite3.Row | None, gpus: int) -> float | None:
    """Samples per GPU and pass, by the run's last report."""
    if row is None or not gpus:
        return None
    report = REPORT.decode(row["report"])
    return report.batch / (gpus * (report.passes or 1)) if report.batch else None


def _listen(seen: _Seen, before: NodeReport, now: NodeReport, *, began: float) -> None:
    """Add what a node has sent and received between two of its reports, all of it in one run."""
    first, last = before.network, now.network
    seconds = now.taken - before.taken
    if first is None or last is None or seconds <= 0 or before.taken < began:
        return
    if last.received < first.received or last.sent < first.sent:
        return  # the node was started anew
    seen.received += last.received - first.received
    seen.sent += last.sent - first.sent
    seen.listened += seconds


def _runs(row: sqlite3.Row, snapshot: Snapshot) -> bool:
    record = snapshot.jobs.get(row["job"])
    return record is not None and record.state == "RUNNING" and record.restarts == row["restarts"]


def _closing(usage: Usage) -> dict[str, Any]:
    cores = None
    if usage.cpu_seconds is not None and usage.seconds > 0:
        cores = usage.cpu_seconds / usage.seconds / usage.nodes
    return {
        "state": usage.state,
        "started": usage.started,
        "ended": usage.ended,
        "host_memory": usage.memory,
        "cpu_cores": cores,
        "memory_asked": usage.memory_asked,
        "cpus_asked": usage.cpus / usage.nodes,
        "time_asked": usage.time_limit,
    }


def _run(row: sqlite3.Row) -> Run:
    """What a closed row teaches."""
    traits = Traits(
        family=row["family"],
        gpu_type=row["gpu_type"] or None,
        batch_per_gpu=row["batch"] or None,
        gpus=row["gpus"] or None,
        nodes=row["nodes"] or None,
    )
    used: dict[Resource, float | None] = {
        Resource.GPU_MEMORY: row["gpu_memory"] or None,
        Resource.GPU_UTILIZATION: row["busy"] / row["samples"] if row["samples"] else None,
        Resource.HOST_MEMORY: row["host_memory"],
        Resource.CPU_CORES: row["cpu_cores"],
        Resource.NETWORK_IN: row["received"] / row["listened"] if row["listened"] else None,
        Resource.NETWORK_OUT: row["sent"] / row["listened"] if row["listened"] else None,
    }
    started, ended = row["started"], row["ended"]
    if started is not None and row["first_busy"] is not None:
        used[Resource.BEFORE_GPU] = max(row["first_busy"] - started, 0.0)
    if row["state"] == "COMPLETED" and started is not None and ended is not None:
        used[Resource.TOTAL] = max(ended - started, 0.0)
        if row["last_busy"] is not None:
            used[Resource.AFTER_GPU] = max(ended - row["last_busy"], 0.0)
    killed: dict[Resource, float] = {}
    if row["state"] == "OUT_OF_MEMORY" and row["memory_asked"]:
        killed[Resource.HOST_MEMORY] = row["memory_asked"]
    full = row["card"] and row["gpu_memory"] >= FULL * row["card"]
    if row["state"] in FAILED and full:
        killed[Resource.GPU_MEMORY] = row["gpu_memory"]
    return Run(
        traits=traits,
        used={resource: value for resource, value in used.items() if value is not None},
        alone=not row["shared"] and not row["resized"],
        killed_at=killed,
    )


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What onesctl asks: of a job, or of what a script asks for."""

    job: Annotated[int, msgspec.Meta(ge=1)] | None = None
    user: Annotated[str, msgspec.Meta(max_length=256)] = ""
    name: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    gpus: Amount | None = None
    nodes: Amount | None = None
    cpus: Amount | None = None
    memory: Amount | None = None
    time: Amount | None = None


QUESTION = msgspec.json.Decoder(Question)


def answer(book: NeedsBook, question: Question, only: str | None) -> dict[str, Any]:
    """The estimates, beside what was asked for. `only`: whose runs the asker may see.

    Raises NothingKnown.
    """
    asked = {
        "gpus": question.gpus,
        "nodes": question.nodes,
        "cpus": question.cpus,
        "memory": question.memory,
        "time": question.time,
    }
    user, family = question.user, family_of(question.user, question.name)
    if question.job is not None:
        run = book.asked_by(question.job)
        # The same words for both cases: an answer must not tell whose jobs exist.
        if run is None or (only is not None and run["user"] != only):
            raise NothingKnown(
                f"job {question.job}: no run of a job of yours with this number has been seen on a"
                " GPU; give its batch script instead"
            )
        user, family = run["user"], run["family"]
        asked = {
            "gpus": run["gpus"],
            "nodes": run["nodes"],
            "cpus": run["cpus_asked"],
            "memory": run["memory_asked"],
            "time": run["time_asked"],
            "card": run["card"],
        }
    if only is not None and user != only:
        raise NothingKnown(f"{user or 'no user'}: only an operator may ask about others' jobs")
    runs, estimates = book.estimate(family=family, gpus=asked["gpus"], nodes=asked["nodes"])
    return {
        "family": family,
        "runs": runs,
        "asked": asked,
        "estimates": [
            {
                "resource": one.resource.value,
                "expected": one.expected,
                "reserve": one.reserve,
                "share": one.share,
                "error": one.error,
                "runs": one.runs,
                "footing": one.footing.words,
                "doubts": list(one.doubts),
                "why": one.why,
            }
            for one in estimates
        ],
    }
