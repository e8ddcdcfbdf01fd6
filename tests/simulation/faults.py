"""What goes wrong at the door to Slurm, and in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from ones.daemon.onesd.books.store import Store
from ones.slurm_ext.simulated.gate import (
    PASS,
    Altered,
    Call,
    Hang,
    Late,
    Lose,
    Refuse,
    Stale,
    Twice,
    Verdict,
)
from ones.slurm_ext.snapshot import Snapshot

REFUSALS = (
    "Requested node configuration is not available",
    "Job/step already completing or completed",
    "Invalid job id specified",
    "Access/permission denied",
    "Transport endpoint is not connected",
)


class Killed(BaseException):
    """SIGKILL: nothing of onesd goes on, nothing is cleaned up."""


class Chance:
    """Draws from a generator of its own, with a rate that can be switched off."""

    def __init__(self, rng: Random, rate: float) -> None:
        self.rng = rng
        self.rate = rate

    def strikes(self) -> bool:
        return self.rate > 0 and self.rng.random() < self.rate


RATES = {
    "refused": 0.01,
    "lost": 0.01,
    "late": 0.005,
    "twice": 0.01,
    "hang": 0.002,
    "stale": 0.02,
    "empty": 0.01,
    "kill": 0.002,
    "database": 0.001,
    "standby": 0.001,
    "backup": 0.015,
}


class Door:
    """The gate of the simulated cluster; says in `told` what it did."""

    def __init__(
        self,
        chances: dict[str, Chance],
        told: Callable[[str], None],
        struck: Callable[[str], None],
        point: Callable[[], None],
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self._chances = chances
        self._told = told
        self._struck = struck
        self._point = point
        self._fence = fence

    def judge(self, call: Call) -> Verdict:
        self._point()
        if call.writes:
            self._fence()
        verdict = self._write(call) if call.writes else self._read(call)
        if verdict is not PASS:
            self._told(f"onesd: {_words(call)}: {type(verdict).__name__.lower()}")
        elif call.writes:
            self._told(f"onesd: {_words(call)}")
        return verdict

    def _strikes(self, fault: str) -> bool:
        chance = self._chances.get(fault)
        if chance is None or not chance.strikes():
            return False
        self._struck(fault)
        return True

    def _write(self, call: Call) -> Verdict:
        if self._strikes("refused"):
            return Refuse(self._chances["refused"].rng.choice(REFUSALS))
        if self._strikes("lost"):
            return Lose()
        if self._strikes("late"):
            rng = self._chances["late"].rng
            return Late(rng.uniform(1.0, 60.0), waited=20.0)
        if self._strikes("twice"):
            return Twice()
        if self._strikes("hang"):
            return Hang()
        return PASS

    def _read(self, call: Call) -> Verdict:
        if self._strikes("hang"):
            return Hang()
        if call.name == "snapshot":
            if self._strikes("stale"):
                return Stale()
            if self._strikes("empty"):
                rng = self._chances["empty"].rng
                return Altered(rng.choice((_without_jobs, _without_nodes, _Half(rng))))
        return PASS


def _words(call: Call) -> str:
    """A call in a line of a story: what a new shape comes to, rather than all of its fields."""
    said = []
    for argument in call.arguments:
        if isinstance(argument, dict):
            shown = ("NumNodes", "TresPerNode", "ReqNodeList", "NodeList", "MinMemoryNode")
            said += [f"{key}={argument[key]}" for key in shown if key in argument]
        else:
            said.append(str(argument))
    return " ".join((call.name, *said))


def _without_jobs(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, jobs={})


def _without_nodes(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, nodes={})


class _Half:
    """Half of the jobs are missing."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        jobs = {number: job for number, job in snapshot.jobs.items() if self._rng.random() < 0.5}
        return replace(snapshot, jobs=jobs)


class FaultyStore(Store):
    """A database that is full or locked at times; onesd may be killed before and after a write."""

    def __init__(
        self, path: str, chance: Chance | None = None, point: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(path)
        self.chance = chance
        self.point = point
        self._inside = False

    def copy_to(self, other: FaultyStore) -> None:
        """All that was committed."""
        self._db.backup(other._db)

    def write(self, sql: str, *values: Any) -> int:
        if not self._inside:
            self._before()
        found = super().write(sql, *values)
        if not self._inside:
            self.point()
        return found

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._inside:
            with super().transaction():
                yield
            return
        self._before()
        self._inside = True
        try:
            with super().transaction():
                yield
        finally:
            self._inside = False
        self.point()

    def _before(self) -> None:
        self.point()
        if self.chance is not None and self.chance.strikes():
            words = self.chance.rng.choice(("database is locked", "database or disk is full"))
            raise sqlite3.OperationalError(words)
