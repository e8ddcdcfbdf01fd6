"""The database keeps what it was given, and nothing half."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ones.daemon.onesd.books.store import _MIGRATIONS, Store, StoreError


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


def test_what_is_within_a_failed_transaction_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    with pytest.raises(RuntimeError), store.transaction():
        with store.transaction():
            store.set_fact("inner", 1)
        raise RuntimeError
    assert store.fact("inner") is None
    store.set_fact("later", 2)
    assert Store(tmp_path / "db").fact("later") == 2
