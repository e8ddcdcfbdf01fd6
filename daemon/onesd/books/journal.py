"""The table `moves`: what was meant, so that a crash between any two steps is survived."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ones.daemon.onesd.books.store import Store
from ones.policies.guard import History
from ones.policies.model import JobId

log = logging.getLogger(__name__)
HOUR = 3600.0
LIVE = "live"  # the kind of a move without a restart
RESIZED = ("done", "changed")  # outcomes of a resize that has started the job again


class Journaled(Protocol):
    """A move as it is written down."""

    @property
    def id(self) -> int: ...

    @property
    def job(self) -> int: ...

    @property
    def kind(self) -> str: ...

    @property
    def restarts(self) -> int: ...

    @property
    def outcome(self) -> str: ...

    def to_json(self) -> str: ...


M = TypeVar("M", bound=Journaled)


@dataclass(frozen=True, slots=True)
class Stop:
    """A move that stopped a run."""

    kind: str
    resizes: bool  # whether it is what the next run began with, too: else the job waited for a plan
    lacked_at: float | None  # when the job last waited for others to leave where it was to go


class Journal:
    """Moves under way and ended, of all kinds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[bool, dict[int, tuple[str, Any]]] = {}  # text and move, as read last

    def open(
        self, read: Callable[[str], M], *, live: bool, of: Iterable[int] | None = None
    ) -> list[M]:
        """The moves under way, oldest first; those of live jobs, or the rest. `of`: of these only.

        One that can't be read, of another version say, is ended, and its job planned for anew.
        """
        sign = "=" if live else "!="
        some = "" if of is None else "AND job IN (SELECT value FROM json_each(?))"
        rows = self._store.rows(
            f"SELECT id, job, record FROM moves WHERE open = 1 AND kind {sign} 'live' {some}"
            " ORDER BY id",
            *(() if of is None else [json.dumps(list(of))]),
        )
        # Asked for by each tick and by everybody who asks for jobs; few have changed since.
        before, now = self._read.get(live, {}), dict[int, tuple[str, M]]()
        for number, job, text in rows:
            if (known := before.get(number)) is not None and known[0] == text:
                now[number] = known
                continue
            try:
                now[number] = text, read(text)
            except (ValueError, KeyError, TypeError, AttributeError) as fault:
                why = f"abandoned: its record can't be read ({fault})"
                log.error("job %d: move %d: %s", job, number, why)
                self._store.write(
                    "UPDATE moves SET open = 0, outcome = ? WHERE id = ?", why[:300], number
                )
        if of is None:
            self._read[live] = now
        return [move for _, move in now.values()]

    def done(self, read: Callable[[str], M], *, since: float) -> list[M]:
        """The last moves of jobs with none under way, live ones left out, that were done then."""
        rows = self._store.rows(
            "SELECT max(id), record FROM moves WHERE job NOT IN"
            " (SELECT job FROM moves WHERE open = 1)"
            " GROUP BY job HAVING kind != 'live' AND outcome = 'done' AND ended >= ?",
            since,
        )
        found = []
        for row in rows:
            with suppress(ValueError):  # of another version
                found.append(read(row["record"]))
        return found

    def moving(self) -> frozenset[int]:
        """The jobs with a move under way."""
        return frozenset(
            row["job"] for row in self._store.rows("SELECT job FROM moves WHERE open = 1")
        )

    def new(self, job: int, *, now: float) -> int:
        """The number of a move that is about to be written down, in the same transaction."""
        return self._store.write(
            "INSERT INTO moves(job, at, open, record) VALUES(?, ?, 1, '{}')", job, now
        )

    def keep(self, move: Journaled, *, now: float) -> None:
        """As it is now; one with an outcome is over."""
        self._store.write(
            "UPDATE moves SET record = ?, kind = ?, restarts = ?, outcome = ?, open = ?, ended = ?"
            " WHERE id = ?",
            move.to_json(),
            move.kind,
            move.restarts,
            move.outcome,
            0 if move.outcome else 1,
            now if move.outcome else None,
            move.id,
        )

    def history(self, now: float) -> History:
        """The resizes and preemptions of the last hour, for the guard."""
        moved: dict[JobId, list[float]] = {}
        live: dict[JobId, list[float]] = {}
        for row in self._store.rows(
            "SELECT job, at, kind FROM moves WHERE at > ?"
            " AND kind IN ('resize', 'preempt', 'live')",
            now - HOUR,
        ):
            kind = live if row["kind"] == LIVE else moved
            kind.setdefault(JobId(row["job"]), []).append(row["at"])
        return History(moved, live)

    def refusals(self) -> dict[tuple[int, int], str]:
        """Job and restarts of each run that refused to be moved, of jobs that have not ended, and
        how it did."""
        rows = self._store.rows(
            "SELECT job, restarts, outcome FROM moves WHERE outcome LIKE 'refused:%'"
            " AND job IN (SELECT job FROM jobs WHERE ended IS NULL) ORDER BY id DESC"
        )
        return {(row["job"], row["restarts"]): str(row["outcome"]) for row in rows}

    def last_outcome(self, job: int) -> str:
        """How the job's last move that is over ended, or ''."""
        row = self._store.row(
            "SELECT outcome FROM moves WHERE job = ? AND open = 0 ORDER BY id DESC LIMIT 1", job
        )
        return "" if row is None else str(row["outcome"])

    def stop_of(self, job: int, restarts: int) -> Stop | None:
        """What stopped the run that had so many restarts before it, if it was a move of ours."""
        row = self._store.row(
            "SELECT kind, outcome, record FROM moves WHERE job = ? AND restarts = ?"
            " AND kind IN ('resize', 'preempt') ORDER BY id DESC",
            job,
            restarts,
        )
        if row is None:
            return None
        over = row["kind"] == "resize" and (row["outcome"] or "done").split(":")[0] in RESIZED
        return Stop(row["kind"], over, json.loads(row["record"]).get("lacked_at"))

    def counts(self, jobs: Iterable[int]) -> dict[int, int]:
        """Moves of each of these jobs that has had any."""
        rows = self._store.rows(
            "SELECT job, count(*) AS n FROM moves"
            " WHERE job IN (SELECT value FROM json_each(?)) GROUP BY job",
            json.dumps(list(jobs)),
        )
        return {row["job"]: row["n"] for row in rows}

    def of_job(self, job: int) -> list[dict[str, Any]]:
        """All moves of a job, oldest first, for people."""
        rows = self._store.rows("SELECT at, record FROM moves WHERE job = ? ORDER BY id", job)
        return [json.loads(row["record"]) | {"at": row["at"]} for row in rows]

    def recent(self, after: int, also: Iterable[int], *, most: int) -> list[dict[str, Any]]:
        """The moves begun after that one, the latest so many, and these; oldest first."""
        columns = "id, at, ended, outcome, record"
        new = self._store.rows(
            f"SELECT {columns} FROM moves WHERE id > ? ORDER BY id DESC LIMIT ?", after, most
        )
        old = self._store.rows(
            f"SELECT {columns} FROM moves WHERE id IN (SELECT value FROM json_each(?))",
            json.dumps(sorted(also)),
        )
        return [
            json.loads(row["record"])
            | {name: row[name] for name in ("id", "at", "ended", "outcome")}
            for row in sorted((*old, *new), key=lambda row: int(row["id"]))
            if row["record"] != "{}"
        ]
