"""What earlier replays, or an onesd, have learnt: kept in a database between replays."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.tables import LARGEST
from ones.estimator.experience import Experience, GradientReport
from ones.estimator.progress import Finished
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.model import JobId, Seconds

Report = Observation | GradientReport | Finished | RestartCost
KINDS: dict[str, type[Report]] = {
    "observation": Observation,
    "gradient": GradientReport,
    "finished": Finished,
    "restart": RestartCost,
}
WORDS = ("family", "gpu_type")  # fields of reports that are no numbers
MOST = 500_000  # reports that are kept, the latest
SCHEMA = "CREATE TABLE IF NOT EXISTS replayed(kind TEXT NOT NULL, report TEXT NOT NULL)"
# What onesd keeps, in the order in which it came, with our names for its columns.
ONESD: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    ("observations", "observation", "at", {}),
    ("gradients", "gradient", "at", {}),
    ("finished", "finished", "at", {"samples": "total_samples"}),
    ("restart_costs", "restart", "at", {}),
)


class Recording(Experience):
    """An experience that also keeps the reports it was made of, so that they can be saved."""

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        super().__init__()
        self.reports: list[Report] = []
        for report in reports:
            self._take(report)

    def observe(self, one: Observation, at: Seconds = 0.0) -> None:
        self.reports.append(one)
        super().observe(one, at)

    def gradient(self, report: GradientReport) -> None:
        self.reports.append(report)
        super().gradient(report)

    def finish(self, done: Finished) -> None:
        self.reports.append(done)
        super().finish(done)

    def restart(self, cost: RestartCost) -> None:
        self.reports.append(cost)
        super().restart(cost)

    def _take(self, report: Report) -> None:
        match report:
            case Observation():
                self.observe(report)
            case GradientReport():
                self.gradient(report)
            case Finished():
                self.finish(report)
            case RestartCost():
                self.restart(report)


def load(file: Path) -> Recording:
    """What a database of `save`, or of onesd, holds. Raises TraceError."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            tables = {
                row["name"]
                for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if "replayed" in tables:
                return Recording(_as_former_jobs(_replayed(file, database)))
            if "observations" in tables:
                return Recording(_as_former_jobs(_of_onesd(file, database, tables)))
    except sqlite3.Error as fault:
        raise TraceError(file, f"is no history: {fault}") from None
    raise TraceError(file, "is no history: neither of a replay nor of onesd")


def check_target(file: Path) -> None:
    """Raise TraceError where `save` could not keep anything, or would alter what is not ours."""
    if not file.exists():
        return
    if not file.is_file():
        raise TraceError(file, "is no file; a history is kept in one")
    try:
        with closing(sqlite3.connect(file)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if tables <= {"replayed"}:
                database.execute("BEGIN IMMEDIATE")  # as for writing
    except sqlite3.Error as fault:
        raise TraceError(file, f"can't keep the history: {fault}") from None
    if foreign := sorted(tables - {"replayed"}):
        raise TraceError(
            file,
            f"is a database of something else (it has a table {foreign[0]}); name a new file for"
            " the history",
        )


def save(recording: Recording, file: Path) -> None:
    """Keep all reports, those that were loaded included. Raises TraceError."""
    names = {kind: name for name, kind in KINDS.items()}
    rows = [
        (names[type(report)], json.dumps(asdict(report))) for report in recording.reports[-MOST:]
    ]
    try:
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(SCHEMA)
            database.execute("DELETE FROM replayed")
            database.executemany("INSERT INTO replayed(kind, report) VALUES(?, ?)", rows)
    except sqlite3.Error as fault:
        raise TraceError(file, f"can't keep the history: {fault}") from None


def _replayed(file: Path, database: sqlite3.Connection) -> Iterator[Report]:
    rows = database.execute("SELECT rowid, kind, report FROM replayed ORDER BY rowid")
    for row in rows:
        try:
            yield _report(row["kind"], json.loads(row["report"]))
        except (KeyError, TypeError, ValueError, RecursionError) as fault:
            raise TraceError(
                file, f"is no report: {fault}", line=row["rowid"], column="report"
            ) from None


def _of_onesd(file: Path, database: sqlite3.Connection, tables: set[str]) -> Iterator[Report]:
    for table, kind, order, renamed in ONESD:
        if table not in tables:
            continue
        for row in database.execute(f"SELECT * FROM {table} ORDER BY {order}"):
            known = KINDS[kind].__dataclass_fields__
            named = {renamed.get(name, name): value for name, value in dict(row).items()}
            try:
                yield _report(kind, {name: named[name] for name in named if name in known})
            except (KeyError, TypeError, ValueError) as fault:
                raise TraceError(file, f"table {table} can't be read: {fault}") from None


def _report(kind: str, values: dict[str, Any]) -> Report:
    """Raises KeyError, TypeError and ValueError."""
    report = KINDS[kind](**values)
    for field in fields(report):
        value = getattr(report, field.name)
        if field.name in WORDS:
            fits = isinstance(value, str)
        elif field.name == "job":
            fits = isinstance(value, int) or (value is None and field.default is None)
        else:
            fits = isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST)
            fits = fits or (value is None and field.default is None)
        if not fits:
            raise ValueError(f"{field.name} is {value!r:.60}")
    return report


def _as_former_jobs(reports: Iterable[Report]) -> Iterator[Report]:
    """The same of jobs below 0: the jobs of the next replay are numbered from 1."""
    former: dict[JobId, JobId] = {}
    for report in reports:
        if report.job is None:
            yield report
        else:
            number = former.setdefault(report.job, JobId(-1 - len(former)))
            yield replace(report, job=number)
