"""The door between onesd and the simulated Slurm, at which calls go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ones.slurm_ext.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `Cluster`."""

    name: str  # of its method
    arguments: tuple[object, ...]
    writes: bool


@dataclass(frozen=True, slots=True)
class Pass:
    """It is done, and answered."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Slurm refuses with these words, and does nothing."""

    words: str


@dataclass(frozen=True, slots=True)
class Lose:
    """It is done, but the answer is lost."""


@dataclass(frozen=True, slots=True)
class Late:
    """Nobody answers for `waited` seconds; the call strikes so many seconds after it was made."""

    seconds: float
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Twice:
    """It is done twice, and the first is answered."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Nobody answers until the time-out has passed on the world's clock, and nothing is done."""

    timeout: float = 20.0


@dataclass(frozen=True, slots=True)
class Stale:
    """A snapshot says what was so when it was last read, as if it were so now.

    Not where that is longer ago than an answer of Slurm's may be late by (holding.STALE).
    """


@dataclass(frozen=True, slots=True)
class Altered:
    """A snapshot says something else than the truth."""

    change: Callable[[Snapshot], Snapshot]


Verdict = Pass | Refuse | Lose | Late | Twice | Hang | Stale | Altered
PASS = Pass()


class Gate(Protocol):
    """Says of each call what becomes of it."""

    def judge(self, call: Call) -> Verdict: ...


class OpenGate:
    """Lets everything pass."""

    def judge(self, call: Call) -> Verdict:
        return PASS
