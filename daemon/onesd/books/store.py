"""The database of onesd: history, what was learnt, and the journal of moves under way.

Slurm is the only truth; losing this file loses no job. One writer, SQLite in WAL mode; the round
runs in a thread beside the API, so one lock serialises what is written. Who asks while something is
written is told by another connection what was before it, and waits for nothing. On a file system
that hosts share there is no WAL, whose index is memory that only the processes of one host share:
see `shared`; there he waits.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from ones.slurm_ext.errors import OnesError

_MIGRATIONS = (
    """
    CREATE TABLE jobs(
        job INTEGER PRIMARY KEY, name TEXT NOT NULL, user TEXT NOT NULL, account TEXT NOT NULL,
        sizes TEXT NOT NULL, requested INTEGER NOT NULL, submitted REAL NOT NULL,
        state TEXT NOT NULL, ended REAL, family TEXT NOT NULL,
        restarts INTEGER NOT NULL DEFAULT 0, fixed TEXT NOT NULL DEFAULT '');
    CREATE TABLE runs(
        job INTEGER NOT NULL, ordinal INTEGER NOT NULL, started REAL NOT NULL, ended REAL,
        nodes TEXT NOT NULL, gpus INTEGER NOT NULL, state TEXT NOT NULL,
        PRIMARY KEY(job, ordinal));
    CREATE TABLE moves(
        id INTEGER PRIMARY KEY, job INTEGER NOT NULL, at REAL NOT NULL, open INTEGER NOT NULL,
        ended REAL, record TEXT NOT NULL);
    CREATE INDEX moves_by_job ON moves(job);
    CREATE TABLE holds(
        job INTEGER PRIMARY KEY, restarts INTEGER NOT NULL, since REAL NOT NULL, released REAL);
    CREATE TABLE leases(
        job INTEGER PRIMARY KEY, sizes TEXT NOT NULL, gpus INTEGER, batch INTEGER);
    CREATE TABLE reports(
        job INTEGER PRIMARY KEY, restarts INTEGER NOT NULL, at REAL NOT NULL,
        report TEXT NOT NULL, checkpoint_at REAL, checkpoint TEXT);
    CREATE TABLE observations(
        at REAL NOT NULL, job INTEGER NOT NULL, family TEXT NOT NULL, gpu_type TEXT NOT NULL,
        nodes INTEGER NOT NULL, gpus INTEGER NOT NULL, batch INTEGER NOT NULL,
        step_seconds REAL NOT NULL, PRIMARY KEY(job, gpu_type, nodes, gpus, batch));
    CREATE TABLE finished(
        job INTEGER PRIMARY KEY, at REAL NOT NULL, family TEXT NOT NULL, samples REAL NOT NULL);
    CREATE TABLE restart_costs(
        at REAL NOT NULL, job INTEGER NOT NULL, family TEXT NOT NULL, seconds REAL NOT NULL);
    CREATE TABLE rounds(
        id INTEGER PRIMARY KEY, at REAL NOT NULL, seconds REAL NOT NULL, policy TEXT NOT NULL,
        mode TEXT NOT NULL, outcome TEXT NOT NULL);
    CREATE TABLE decisions(
        round INTEGER NOT NULL, job INTEGER NOT NULL, kind TEXT NOT NULL, target TEXT,
        batch INTEGER, gpus INTEGER NOT NULL, reason TEXT NOT NULL, verdict TEXT NOT NULL);
    CREATE INDEX decisions_by_job ON decisions(job, round);
    CREATE TABLE facts(name TEXT PRIMARY KEY, value TEXT NOT NULL);
    """,
    """
    CREATE TABLE gradients(
        at REAL NOT NULL, job INTEGER NOT NULL, family TEXT NOT NULL, epochs INTEGER NOT NULL,
        batch INTEGER NOT NULL, sqr REAL NOT NULL, var REAL NOT NULL,
        PRIMARY KEY(job, epochs, batch));
    ALTER TABLE observations ADD COLUMN passes INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE observations ADD COLUMN sync_seconds REAL;
    ALTER TABLE reports ADD COLUMN initial_loss REAL;
    ALTER TABLE reports ADD COLUMN loss REAL;
    ALTER TABLE reports ADD COLUMN accuracy REAL;
    """,
    """
    CREATE TABLE needs(
        job INTEGER NOT NULL, restarts INTEGER NOT NULL, at REAL NOT NULL, user TEXT NOT NULL,
        account TEXT NOT NULL, family TEXT NOT NULL, gpu_type TEXT, nodes INTEGER NOT NULL,
        gpus INTEGER NOT NULL, batch REAL, shared INTEGER NOT NULL, resized INTEGER NOT NULL,
        card REAL, gpu_memory REAL NOT NULL, busy REAL NOT NULL, samples INTEGER NOT NULL,
        first_busy REAL, last_busy REAL, state TEXT, started REAL, ended REAL, host_memory REAL,
        cpu_cores REAL, memory_asked REAL, cpus_asked REAL, time_asked REAL,
        PRIMARY KEY(job, restarts));
    CREATE INDEX needs_by_family ON needs(family, at);
    """,
    """
    CREATE TABLE fills(
        job INTEGER NOT NULL, restarts INTEGER NOT NULL, at REAL NOT NULL, memory INTEGER,
        memory_asked INTEGER, cpus INTEGER, why TEXT NOT NULL, PRIMARY KEY(job, restarts));
    """,
    """
    CREATE TABLE stages(
        job INTEGER PRIMARY KEY, stage INTEGER NOT NULL, nodes TEXT NOT NULL, begun REAL,
        free_at REAL NOT NULL, outcome TEXT NOT NULL);
    """,
    """
    CREATE TABLE pairs(
        id INTEGER PRIMARY KEY, at REAL NOT NULL, ended REAL, node TEXT NOT NULL,
        gpu INTEGER NOT NULL, first INTEGER NOT NULL, second INTEGER NOT NULL,
        first_restarts INTEGER NOT NULL, second_restarts INTEGER NOT NULL,
        first_family TEXT NOT NULL, second_family TEXT NOT NULL,
        first_batch REAL NOT NULL, second_batch REAL NOT NULL, first_busy REAL, second_busy REAL,
        first_expected REAL, second_expected REAL, first_speed REAL, second_speed REAL,
        most_memory REAL NOT NULL DEFAULT 0, xid INTEGER, parted TEXT NOT NULL DEFAULT '');
    CREATE TABLE unshared(
        node TEXT NOT NULL, gpu INTEGER NOT NULL, at REAL NOT NULL, why TEXT NOT NULL,
        PRIMARY KEY(node, gpu));
    """,
    """
    CREATE TABLE satellites(
        job INTEGER PRIMARY KEY, base INTEGER NOT NULL, restarts INTEGER NOT NULL,
        ordered INTEGER NOT NULL, started REAL, ended REAL, nodes TEXT NOT NULL DEFAULT '',
        gpus INTEGER NOT NULL DEFAULT 0, state TEXT NOT NULL);
    CREATE INDEX satellites_by_base ON satellites(base, job);
    CREATE TABLE live(job INTEGER PRIMARY KEY, restarts INTEGER NOT NULL, heard REAL NOT NULL);
    ALTER TABLE restart_costs ADD COLUMN live INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE needs ADD COLUMN received REAL NOT NULL DEFAULT 0;
    ALTER TABLE needs ADD COLUMN sent REAL NOT NULL DEFAULT 0;
    ALTER TABLE needs ADD COLUMN listened REAL NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE shrinks(
        job INTEGER NOT NULL, ordinal INTEGER NOT NULL, until REAL NOT NULL, nodes TEXT NOT NULL,
        gpus INTEGER NOT NULL, PRIMARY KEY(job, ordinal, until));
    """,
    """
    ALTER TABLE moves ADD COLUMN kind TEXT NOT NULL DEFAULT '';
    ALTER TABLE moves ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE moves ADD COLUMN outcome TEXT NOT NULL DEFAULT '';
    UPDATE moves SET kind = coalesce(json_extract(record, '$.kind'), ''),
        restarts = coalesce(json_extract(record, '$.restarts'), 0),
        outcome = coalesce(json_extract(record, '$.outcome'), '');
    CREATE INDEX moves_open ON moves(open) WHERE open = 1;
    """,
    """
    CREATE TABLE failed_starts(
        job INTEGER NOT NULL, what TEXT NOT NULL, gpus INTEGER NOT NULL, reason TEXT NOT NULL,
        at REAL NOT NULL, until REAL NOT NULL, times INTEGER NOT NULL, PRIMARY KEY(job, what));
    ALTER TABLE holds ADD COLUMN freed INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE holds ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
    UPDATE holds SET freed = 1, pinned = 1 WHERE released IS NOT NULL;
    CREATE TABLE unanswered(
        job INTEGER PRIMARY KEY, restarts INTEGER NOT NULL, at REAL NOT NULL);
    """,
    """
    ALTER TABLE holds ADD COLUMN queued INTEGER NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE courses(
        job INTEGER NOT NULL, at REAL NOT NULL, batch REAL, loss REAL, samples_per_second REAL,
        utilization REAL, PRIMARY KEY(job, at)) WITHOUT ROWID;
    """,
    """
    ALTER TABLE holds ADD COLUMN let_go REAL;
    """,
    """
    CREATE TABLE recoveries(
        job INTEGER NOT NULL, restarts INTEGER NOT NULL, generation INTEGER NOT NULL,
        at REAL NOT NULL, lost INTEGER NOT NULL, source TEXT NOT NULL, samples INTEGER,
        steps INTEGER, PRIMARY KEY(job, restarts, generation)) WITHOUT ROWID;
    """,
    # What a round asks for is found without going through all that is remembered.
    """
    CREATE INDEX jobs_alive ON jobs(job) WHERE ended IS NULL;
    CREATE INDEX jobs_by_end ON jobs(ended) WHERE ended IS NOT NULL;
    CREATE INDEX jobs_by_submission ON jobs(submitted);
    CREATE INDEX satellites_alive ON satellites(job) WHERE ended IS NULL;
    CREATE INDEX needs_open ON needs(job) WHERE state IS NULL;
    CREATE INDEX pairs_open ON pairs(id) WHERE ended IS NULL;
    CREATE INDEX failed_starts_until ON failed_starts(until);
    CREATE INDEX moves_by_time ON moves(at);
    CREATE INDEX stages_wanted ON stages(outcome);
    CREATE INDEX decisions_by_round ON decisions(round);
    """,
    """
    ALTER TABLE holds ADD COLUMN own TEXT NOT NULL DEFAULT '';
    """,
)


# What is of no use without its job.
_OF_A_JOB = (
    "runs",
    "shrinks",
    "reports",
    "courses",
    "recoveries",
    "leases",
    "live",
    "holds",
    "unanswered",
    "moves",
    "failed_starts",
    "decisions",
    "fills",
    "stages",
)

_BESIDE = ("-journal", "-wal")  # files of a database that hold what is under way
MOST_LOG = 64 * 2**20  # bytes that the write-ahead log keeps on disk once it is written back
MINUTE = 60.0
COPIES = 3  # of a database are made before it is given up as damaged


class StoreError(OnesError):
    """The database can't be opened or written."""


class Store:
    """Typed questions and answers over the database; rows come back as sqlite3.Row.

    `shared`: it lies on a file system that several hosts share, and has a rollback journal.

    One of an earlier release is brought forward. Before that a copy is made beside it, with which
    that release can go on; not of a shared one, which is a copy itself. Raises StoreError.
    """

    def __init__(self, path: Path | str, *, shared: bool = False) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._read_apart = not shared and self.path != ":memory:"
        self._readers: list[sqlite3.Connection] = []  # of whom nobody makes use now
        self._upserts: dict[tuple[str, tuple[str, ...]], str] = {}
        try:
            self._db = self._connected()
            self._db.execute(f"PRAGMA journal_mode = {'DELETE' if shared else 'WAL'}")
            # The journal of moves must be on disk before Slurm is touched.
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(f"PRAGMA journal_size_limit = {MOST_LOG}")
            self._migrate(keep=not shared)
        except sqlite3.DatabaseError as fault:
            raise StoreError(
                f"{path}: {fault}; move the file away to start afresh: no job depends on it"
            ) from None

    def _connected(self) -> sqlite3.Connection:
        database = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=10
        )
        database.row_factory = sqlite3.Row
        return database

    def _migrate(self, *, keep: bool) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(_MIGRATIONS):
            raise StoreError(f"{self.path}: written by a newer ONES (schema {version}); upgrade")
        if keep and 0 < version < len(_MIGRATIONS):
            self._copy(Path(f"{self.path}.schema-{version}"))
        for number, script in enumerate(_MIGRATIONS[version:], start=version + 1):
            self._db.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")

    def _copy(self, to: Path) -> None:
        """Whole, or not at all."""
        beside = to.with_name(f"{to.name}.new")
        try:
            beside.unlink(missing_ok=True)
            with closing(sqlite3.connect(beside)) as copy:
                self._db.backup(copy)
            beside.replace(to)
        except (OSError, sqlite3.Error) as fault:
            raise StoreError(
                f"{to}: {fault}; the database is of an earlier release, and is left so because"
                " no copy of it can be made; make room there"
            ) from None

    def size(self) -> int:
        """Bytes of the database's files, the write-ahead log included; 0 for one in memory."""
        files = (Path(self.path + end) for end in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.is_file())

    def used(self) -> int:
        """Bytes of the database that hold something; what was forgotten leaves room for more."""
        pages, free, size = (
            int(self.rows(f"PRAGMA {name}")[0][0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def close(self) -> None:
        with self._lock:
            self._db.close()
        while self._readers:
            self._readers.pop().close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, on disk when it returns; one within another when that one returns."""
        with self._lock:
            within = self._db.in_transaction
            self._db.execute("SAVEPOINT part" if within else "BEGIN IMMEDIATE")
            try:
                yield
                # Where others read meanwhile, on a shared file system, this can fail, too.
                self._db.execute("RELEASE part" if within else "COMMIT")
            except BaseException:
                # Where the disk is full SQLite has rolled it back itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK TO part" if within else "ROLLBACK")
                    if within:
                        self._db.execute("RELEASE part")
                raise

    def rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """What a question finds; whose transaction is under way finds what he has written, too."""
        if self._lock.acquire(blocking=not self._read_apart):
            try:
                return self._db.execute(sql, values).fetchall()
            finally:
                self._lock.release()
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._connected()
            reader.execute("PRAGMA query_only = 1")
        found = reader.execute(sql, values).fetchall()
        self._readers.append(reader)
        return found

    def row(self, sql: str, *values: Any) -> sqlite3.Row | None:
        found = self.rows(sql, *values)
        return found[0] if found else None

    def of_jobs(self, table: str, jobs: Iterable[int], columns: str = "*") -> list[sqlite3.Row]:
        """A table's rows of these jobs: by one query, and not one for each."""
        return self.rows(
            f"SELECT {columns} FROM {table} WHERE job IN (SELECT value FROM json_each(?))",
            json.dumps(sorted(set(jobs))),
        )

    def write(self, sql: str, *values: Any) -> int:
        """Run one statement; returns the id of the row it inserted."""
        with self._lock:
            return int(self._db.execute(sql, values).lastrowid or 0)

    def put(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert or update whole rows by the table's primary key, keeping columns not named."""
        for row in rows:
            self.write(self._upsert(table, tuple(row)), *row.values())

    def _upsert(self, table: str, names: tuple[str, ...]) -> str:
        """The statement that puts a row of these columns; composed once: a round puts thousands."""
        found = self._upserts.get((table, names))
        if found is None:
            columns = self.rows(f"PRAGMA table_info({table})")
            keys = [one["name"] for one in columns if one["pk"]]
            updates = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
            found = self._upserts[table, names] = (
                f"INSERT INTO {table}({', '.join(names)}) VALUES({', '.join('?' * len(names))})"
                f" ON CONFLICT({', '.join(keys)}) DO UPDATE SET {updates}"
            )
        return found

    def fact(self, name: str) -> Any:
        """A small JSON value kept across restarts (pause, a policy's memory), or None."""
        row = self.row("SELECT value FROM facts WHERE name = ?", name)
        return None if row is None else json.loads(row["value"])

    def set_fact(self, name: str, value: Any) -> None:
        self.put("facts", [{"name": name, "value": json.dumps(value)}])

    def forget_job(self, job: int) -> None:
        """Drop all that is known of a job under its number, which another job has now.

        What families of jobs have taught stays.
        """
        with self.transaction():
            for table in (*_OF_A_JOB, "needs", "jobs"):
                self.write(f"DELETE FROM {table} WHERE job = ?", job)
            self.write("DELETE FROM satellites WHERE base = ?", job)

    def forget(self, before: float) -> None:
        """Drop the history of what ended before that time."""
        with self.transaction():
            ended = "(SELECT job FROM jobs WHERE ended < ?)"
            for table in _OF_A_JOB:
                self.write(f"DELETE FROM {table} WHERE job IN {ended}", before)
            self.write(f"DELETE FROM satellites WHERE base IN {ended}", before)
            for table in (
                "observations",
                "gradients",
                "restart_costs",
                "rounds",
                "finished",
                "needs",
                "pairs",
                "unshared",
            ):
                self.write(f"DELETE FROM {table} WHERE at < ?", before)
            self.write(
                "DELETE FROM decisions WHERE round < (SELECT min(id) FROM rounds)"
                " OR NOT EXISTS (SELECT 1 FROM rounds)"
            )
            self.write("DELETE FROM jobs WHERE ended < ?", before)

    def keep_within(self, most: int, *, now: float) -> float:
        """Drop the oldest history until the database has no more than so many bytes in use.

        What is of jobs that have not ended stays, however much that is. Returns the time before
        which history was dropped; 0 if none was.
        """
        before = 0.0
        while self.used() > most:
            first = self._first()
            if first is None or first >= now:
                break
            before = first + max(MINUTE, (now - first) / 8)
            self.forget(before)
        return before

    def _first(self) -> float | None:
        """When what is remembered longest ended."""
        found = self.rows(
            "SELECT at FROM (SELECT at FROM rounds ORDER BY id LIMIT 1)"
            " UNION ALL SELECT min(ended) FROM jobs WHERE ended IS NOT NULL"
        )
        return min((row["at"] for row in found if row["at"] is not None), default=None)


def inherit(before: Path, own: Path) -> None:
    """Make `own` a copy of the database `before`, whose writer is gone, or stopped and not to be
    waited for; nothing of `before` is touched, so its locks don't count.

    A transaction that it had begun is rolled back in the copy, which is there whole or not at all.
    Without `before` there is no `own`, either. Raises StoreError.
    """
    beside = own.with_name(f".{own.name}.new")
    try:
        for _ in range(COPIES):
            # The database last: with a journal that is older than it nothing is lost that was
            # committed, and a writer that wakes up in between is found out below.
            for end in (*_BESIDE, ""):
                Path(f"{beside}{end}").unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{before}{end}", f"{beside}{end}")
            if not beside.exists():
                return
            if _sound(beside):
                with beside.open("rb+") as file:
                    os.fsync(file.fileno())
                beside.replace(own)
                return
    except OSError as fault:
        raise StoreError(
            f"{fault.filename or own}: {fault.strerror or fault}; {before.name} can't be copied"
        ) from None
    raise StoreError(
        f"{before}: its copy is damaged; move it away to start afresh: no job depends on it"
    )


def _sound(path: Path) -> bool:
    """Whether a copied database is whole; what is under way in the files beside it is settled."""
    try:
        with closing(sqlite3.connect(path, timeout=10)) as copied:
            # Or what is in a write-ahead log could not be had without its index.
            copied.execute("PRAGMA locking_mode = EXCLUSIVE")
            copied.execute("PRAGMA journal_mode = DELETE")
            return bool(copied.execute("PRAGMA quick_check").fetchone()[0] == "ok")
    except sqlite3.DatabaseError:
        return False
