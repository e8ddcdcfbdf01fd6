"""The database keeps what it was given, and nothing half."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from simulated_onesd import AtWork

from ones.daemon.onesd.books.rounds import RoundsBook
from ones.daemon.onesd.books.store import _MIGRATIONS, Store, StoreError, inherit
from ones.daemon.onesd.doors import views
from ones.daemon.onesd.outcome import Round
from ones.slurm_ext.snapshot import Snapshot


def test_put_changes_only_the_columns_it_names(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    store.put("holds", [{"job": 1, "restarts": 0, "since": 1.0}])
    store.put("holds", [{"job": 1, "restarts": 0, "since": 1.0, "released": 2.0}])
    store.put("holds", [{"job": 1, "restarts": 0, "since": 3.0}])
    row = store.row("SELECT job, restarts, since, released FROM holds")
    assert row is not None
    assert tuple(row) == (1, 0, 3.0, 2.0)


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    with pytest.raises(RuntimeError), store.transaction():
        store.set_fact("paused", {"by": "oper"})
        raise RuntimeError
    assert store.fact("paused") is None


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    Store(tmp_path / "db").set_fact("memory:ones", [1, 2])
    assert Store(tmp_path / "db").fact("memory:ones") == [1, 2]


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("x" * 4096)
    with pytest.raises(StoreError, match="move the file away"):
        Store(tmp_path / "db")


def test_history_is_forgotten_by_age_and_running_jobs_are_not(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    for job, ended in ((1, 10.0), (2, 90.0), (3, None)):
        row = {
            "job": job,
            "name": "n",
            "user": "u",
            "account": "a",
            "sizes": "1-2",
            "requested": 1,
            "submitted": 0.0,
            "state": "X",
            "family": "u/n",
            "ended": ended,
        }
        store.put("jobs", [row])
    store.forget(before=50.0)
    assert [row["job"] for row in store.rows("SELECT job FROM jobs ORDER BY job")] == [2, 3]


def test_history_is_forgotten_by_size_the_oldest_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    for number in range(1, 401):
        row = {"id": number, "at": 100.0 * number, "seconds": 1.0, "policy": "p", "mode": "act"}
        store.put("rounds", [row | {"outcome": "x" * 2000}])
        store.write(
            "INSERT INTO decisions VALUES(?, 1, 'start', '', NULL, 1, ?, '')", number, "y" * 2000
        )
    before = store.used()
    left = store.keep_within(before // 2, now=40_100.0)
    (first,) = store.rows("SELECT min(at) AS at FROM rounds")
    assert 0 < left <= first["at"]
    assert store.keep_within(before, now=40_100.0) == 0
    assert before // 4 < store.used() <= before // 2
    kept = [row["id"] for row in store.rows("SELECT id FROM rounds ORDER BY id")]
    assert kept == list(range(kept[0], 401))
    of = store.row("SELECT min(round) AS first, count(*) AS all_of_them FROM decisions")
    assert of is not None
    assert tuple(of) == (kept[0], len(kept))


def test_once_an_hour_a_round_says_what_is_not_remembered_any_more(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    book = RoundsBook(store)

    def keep(at: float) -> float | None:
        seen = Snapshot(taken=at, jobs={}, nodes={}, switches={})
        done = Round(number=1, at=at, seconds=1.0, outcome="ok", snapshot=seen)
        return book.keep(done, policy="p", mode="act", keep_seconds=86400.0, keep_bytes=1e9)

    assert keep(100_000.0) == 13_600.0
    assert keep(103_000.0) is None
    assert keep(104_000.0) == 17_600.0


def test_a_clock_that_ran_ahead_for_a_round_keeps_nothing_for_ever() -> None:
    work = AtWork(keep_days=1.0)

    def lives(rounds: int) -> int:
        for _ in range(rounds):
            work.world.step(900.0)
            work.onesd.rounds.round()
        return len(work.store.rows("SELECT 1 FROM rounds"))

    lives(4)
    work.offset = 30 * 86400.0
    lives(1)
    work.offset = 0.0
    day = 24 * 4
    assert lives(3 * day) <= day + 5  # one hour more at most


def test_what_has_not_ended_is_kept_however_small_the_database_is_to_be(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    store.put("holds", [{"job": 1, "restarts": 0, "since": 1.0}])
    store.keep_within(1, now=1e6)
    assert store.row("SELECT 1 FROM holds") is not None


def test_who_asks_waits_for_no_transaction_and_is_told_what_was_before_it(tmp_path: Path) -> None:
    store, told = Store(tmp_path / "db"), list[object]()
    store.set_fact("paused", 1)
    asker = threading.Thread(target=lambda: told.append(store.fact("paused")))
    with store.transaction():
        store.set_fact("paused", 2)
        asker.start()
        asker.join(20)
        assert told == [1]
        assert store.fact("paused") == 2
    assert store.fact("paused") == 2
    store.close()


def test_a_database_of_the_release_before_is_taken_over_with_what_it_holds(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "db")
    old.executescript(f"BEGIN; {_MIGRATIONS[0]} PRAGMA user_version = 1; COMMIT;")
    old.execute("INSERT INTO observations VALUES(1.0, 7, 'u/n', 'v100', 1, 2, 64, 0.5)")
    old.commit()
    old.close()
    store = Store(tmp_path / "db")
    row = store.row("SELECT * FROM observations")
    assert row is not None
    assert (row["step_seconds"], row["passes"], row["sync_seconds"]) == (0.5, 1, None)
    assert store.rows("SELECT * FROM gradients") == []


@pytest.mark.parametrize("version", range(1, len(_MIGRATIONS)))
def test_before_it_is_brought_forward_a_database_is_copied(tmp_path: Path, version: int) -> None:
    """So that an operator can go back to the release before."""
    path = tmp_path / "db"
    with closing(sqlite3.connect(path)) as before:
        before.executescript("".join(_MIGRATIONS[:version]))
        before.execute(f"PRAGMA user_version = {version}")
        before.execute("INSERT INTO facts VALUES('paused', '7')")
        before.commit()
    Store(path).close()
    Store(path).close()
    assert {one.name for one in tmp_path.iterdir()} == {"db", f"db.schema-{version}"}
    with closing(sqlite3.connect(f"{path}.schema-{version}")) as kept:
        assert kept.execute("PRAGMA user_version").fetchone()[0] == version
        assert kept.execute("SELECT value FROM facts").fetchall() == [("7",)]
    with closing(sqlite3.connect(path)) as now:
        assert now.execute("PRAGMA user_version").fetchone()[0] == len(_MIGRATIONS)


def test_a_database_that_cannot_be_copied_is_not_brought_forward(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with closing(sqlite3.connect(path)) as before:
        before.executescript(f"{_MIGRATIONS[0]} PRAGMA user_version = 1;")
    (tmp_path / "db.schema-1").mkdir()
    with pytest.raises(StoreError, match=r"db\.schema-1.*no copy of it can be made.*make room"):
        Store(path)
    with closing(sqlite3.connect(path)) as left:
        assert left.execute("PRAGMA user_version").fetchone()[0] == 1


def test_on_a_shared_file_system_there_is_no_write_ahead_log(tmp_path: Path) -> None:
    store = Store(tmp_path / "db", shared=True)
    row = store.row("PRAGMA journal_mode")
    assert row is not None
    assert row[0] == "delete"
    store.set_fact("paused", "after")
    other = sqlite3.connect(tmp_path / "db")  # as ones-release does, beside a running onesd
    assert other.execute("SELECT value FROM facts").fetchone() == ('"after"',)


def test_a_copy_has_what_was_committed_and_nothing_of_what_was_under_way(tmp_path: Path) -> None:
    """Its writer was stopped in the middle of a transaction, and holds his locks."""
    before, own = tmp_path / "ones.1.sqlite", tmp_path / "ones.2.sqlite"
    store = Store(before, shared=True)
    store.set_fact("paused", "committed")
    writer = sqlite3.connect(before, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")  # so that what is under way is in the file already
    writer.execute("BEGIN EXCLUSIVE")
    writer.execute("UPDATE facts SET value = '\"under way\"'")
    writer.executemany("INSERT INTO facts VALUES(?, ?)", [(f"{n}", "x" * 500) for n in range(500)])
    assert before.with_name("ones.1.sqlite-journal").stat().st_size > 0
    inherit(before, own)
    copied = Store(own, shared=True)
    assert copied.fact("paused") == "committed"
    assert len(copied.rows("SELECT * FROM facts")) == 1
    writer.execute("COMMIT")  # he wakes up, and writes into what nobody reads any more
    assert len(copied.rows("SELECT * FROM facts")) == 1


def test_a_copy_of_a_database_in_wal_mode_has_what_stands_in_its_log(tmp_path: Path) -> None:
    store = Store(tmp_path / "ones.sqlite")
    store.set_fact("paused", "in the log")
    inherit(tmp_path / "ones.sqlite", tmp_path / "ones.1.sqlite")
    assert Store(tmp_path / "ones.1.sqlite", shared=True).fact("paused") == "in the log"


def test_without_a_database_before_there_is_none_to_begin_with(tmp_path: Path) -> None:
    inherit(tmp_path / "ones.sqlite", tmp_path / "ones.1.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_database_is_named_and_left_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "ones.1.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(StoreError, match=r"ones\.1\.sqlite: its copy is damaged; move it away"):
        inherit(tmp_path / "ones.1.sqlite", tmp_path / "ones.2.sqlite")
    assert not (tmp_path / "ones.2.sqlite").exists()


def test_a_part_that_fails_takes_nothing_else_with_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    with store.transaction():
        store.set_fact("first", 1)
        with pytest.raises(RuntimeError), store.transaction():
            store.set_fact("second", 2)
            raise RuntimeError
        store.set_fact("third", 3)
    assert [Store(tmp_path / "db").fact(name) for name in ("first", "second", "third")] == [
        1,
        None,
        3,
    ]


def test_a_commit_that_meets_a_reader_fails_alone(tmp_path: Path) -> None:
    """Without a write-ahead log who reads for long, such as a backup, keeps others from writing."""
    path = str(tmp_path / "ones.sqlite")
    store = Store(path, shared=True)
    store._db.execute("PRAGMA busy_timeout = 50")
    with store.transaction():
        store.set_fact("before", 1)
    with closing(sqlite3.connect(path)) as reader:
        reading = reader.execute("SELECT 1 FROM sqlite_master")
        reading.fetchone()
        with pytest.raises(sqlite3.OperationalError, match="locked"), store.transaction():
            store.set_fact("meanwhile", 2)
        reading.fetchall()
    with store.transaction():
        store.set_fact("later", 3)
    with closing(sqlite3.connect(path, timeout=1.0)) as another:
        facts = {name for (name,) in another.execute("SELECT name FROM facts")}
    assert facts >= {"before", "later"}
    assert "meanwhile" not in facts


def test_what_is_within_a_failed_transaction_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    with pytest.raises(RuntimeError), store.transaction():
        with store.transaction():
            store.set_fact("inner", 1)
        raise RuntimeError
    assert store.fact("inner") is None
    store.set_fact("later", 2)
    assert Store(tmp_path / "db").fact("later") == 2


def test_no_round_goes_through_all_that_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: dict[str, list[str]] = {}
    rows = Store.rows

    def watched(store: Store, sql: str, *values: object) -> list[sqlite3.Row]:
        if sql.startswith(("SELECT", "WITH")) and sql not in ways:
            ways[sql] = [
                step["detail"] for step in rows(store, f"EXPLAIN QUERY PLAN {sql}", *values)
            ]
        return rows(store, sql, *values)

    at_work = AtWork(policy="ones")
    monkeypatch.setattr(Store, "rows", watched)  # what a start of onesd reads is read once
    at_work.says = {"batch": 64, "step_seconds": 0.5, "total_samples": 10**5}
    for _ in range(4):
        at_work.submit()
    at_work.live(200)
    views.jobs(at_work.onesd.service, None)
    history = {"jobs", "runs", "holds", "moves", "satellites", "reports", "needs", "failed_starts"}
    through = {
        sql: steps
        for sql, steps in ways.items()
        if any(step.split()[:2] == ["SCAN", table] for step in steps for table in history)
        and not any("_alive" in step or "_open" in step for step in steps)
    }
    assert not through
