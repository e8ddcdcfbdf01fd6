"""What a forecast is asked with, and what it says."""

from __future__ import annotations

from dataclasses import dataclass

from ones.policies.model import Job, Outlook, Seconds
from ones.policies.rigid import PlainJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A job that is not there, or waits: what would become of it is the question."""

    job: Job
    length: Seconds | None = None  # at the size that it asks for; None: what is known here
    spread: float | None = None  # standard deviation of ln(length); None: what is known here


@dataclass(frozen=True, slots=True)
class Came:
    """An elastic job that came lately, with its outlook; or another one, with how long it took."""

    job: Job | PlainJob
    outlook: Outlook | None = None
    seconds: Seconds | None = None  # None: it has not ended


@dataclass(frozen=True, slots=True)
class Lately:
    """Who came since a time, in the order in which they came."""

    since: Seconds
    came: tuple[Came, ...] = ()


@dataclass(frozen=True, slots=True)
class Length:
    """How long a job takes at the size that it asks for, and what tells it."""

    seconds: Seconds
    spread: float  # standard deviation of its logarithm
    told: str  # in words
    guessed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is foreseen of a job; times are seconds from the round that it begins with."""

    start: Seconds | None = None  # None: it runs already, or no start is foreseen
    end: Seconds | None = None  # None: no end is foreseen
    gpus: int = 0  # at first
    nodes: tuple[str, ...] = ()  # at first
    resizes: int = 0
    at_limit: bool = False  # whether it is its time limit that ends it
    why: str = ""  # why no end is foreseen
    ends: tuple[Seconds | None, ...] = ()  # one of each draw; `end` is their geometric mean
