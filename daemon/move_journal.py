"""The table of moves: what was meant, so that a crash between any two steps is survived."""

from __future__ import annotations

from typing import Protocol

from ones.daemon.store import Store
from ones.policies.model import Placement


class Journaled(Protocol):
    """A move as it is written down."""

    @property
    def id(self) -> int: ...

    @property
    def outcome(self) -> str: ...

    def to_json(self) -> str: ...


def open_moves(store: Store, *, live: bool) -> list[str]:
    """The moves under way, oldest first, as they were written; those of live jobs, or the rest."""
    rows = store.rows(
        "SELECT record FROM moves WHERE open = 1"
        " AND (json_extract(record, '$.kind') = 'live') = ? ORDER BY id",
        int(live),
    )
    return [row["record"] for row in rows]


def new_move(store: Store, job: int, *, now: float) -> int:
    """The number of a move that is about to be written down, in the same transaction."""
    return store.write("INSERT INTO moves(job, at, open, record) VALUES(?, ?, 1, '{}')", job, now)


def keep_move(store: Store, move: Journaled, *, now: float) -> None:
    """As it is now; one with an outcome is over."""
    store.write(
        "UPDATE moves SET record = ?, open = ?, ended = ? WHERE id = ?",
        move.to_json(),
        0 if move.outcome else 1,
        now if move.outcome else None,
        move.id,
    )


def words(target: Placement | None) -> str:
    """Where a move goes, for the log."""
    if target is None:
        return "nothing"
    return ", ".join(f"{gpus} on {node}" for node, gpus in target.gpus_on)
