"""The words of live resizing: slots, workers, generations, and what is said of them.

A *slot* is a place for one worker (one GPU) in a *home*, which is one launcher on one node. A
*generation* is a process group with its members; its number is used once, and numbers only grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

WorkerId = NewType("WorkerId", int)  # of one process; a replacement has another
Number = NewType("Number", int)  # of a generation, or of an attempt at one
Seconds = float


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A place for a worker. Ranks follow the order of slots; home 0 is the base launcher's."""

    home: int
    index: int

    def __str__(self) -> str:
        return f"{self.home}/{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one worker is told of a generation to come."""

    number: Number
    rank: int | None  # None: it is to leave
    size: int
    sources: tuple[int, ...]  # ranks that have the whole state
    receivers: tuple[int, ...]  # ranks that are to get it
    batch: int | None = None  # the plan's global batch; None: as before
    at_once: bool = False  # no vote: nobody is training
    place: int = 0  # among all involved, those that leave being the last
    involved: int = 1  # how many these are


# What happens, as the launcher hears of it.


@dataclass(frozen=True, slots=True)
class Opened:
    """A launcher with slots has come, and workers are wanted in the first ones of them."""

    home: int
    slots: int
    workers: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A launcher is gone, and its workers with it."""

    home: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """An order: workers in these slots, and in no others."""

    slots: frozenset[Slot]
    batch: int | None = None
    together: bool = False  # who leaves trains until those who come are ready: one change


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has imported, built its model and warmed up."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Switching:
    """A member has seen the vote that makes this generation the present one."""

    worker: WorkerId
    number: Number


@dataclass(frozen=True, slots=True)
class Switched:
    """A worker has the state and is about to train in this generation."""

    worker: WorkerId
    number: Number


@dataclass(frozen=True, slots=True)
class Dropped:
    """A worker has given up this generation, and will never switch to it."""

    worker: WorkerId
    number: Number


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker could not make this generation's group."""

    worker: WorkerId
    number: Number
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A worker has lost its group and waits for another."""

    worker: WorkerId
    committed: int | None  # steps of which it has the whole state; None: it has no whole state


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker's training is over."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker's process has ended; a negative code is a signal's."""

    worker: WorkerId
    code: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """The job is being ended from outside."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes."""


Event = (
    Opened | Lost | Wanted | Ready | Switching | Switched | Dropped | Failed | Broken
    | Finished | Gone | Stopping | Tick
)  # fmt: skip


# What is to be done about it.


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker process."""

    worker: WorkerId
    slot: Slot
    rank: int  # the rank and the size that it may expect
    size: int
    first: bool  # it reads the checkpoint, and the others have the state from it


@dataclass(frozen=True, slots=True)
class Propose:
    """Tell a worker of a generation to come."""

    worker: WorkerId
    offer: Offer


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell a worker that this generation won't come."""

    worker: WorkerId
    number: Number


@dataclass(frozen=True, slots=True)
class Go:
    """Tell a newcomer that the members are switching."""

    worker: WorkerId
    number: Number


@dataclass(frozen=True, slots=True)
class Cut:
    """Tell a worker that this generation has lost a member, so that it need not wait in it."""

    worker: WorkerId
    number: Number


@dataclass(frozen=True, slots=True)
class Kill:
    """End a process that is no member: politely first, unless `now`."""

    worker: WorkerId
    now: bool = False


@dataclass(frozen=True, slots=True)
class Dismiss:
    """A launcher has no wanted slot any more: it may end, and its GPUs be given back."""

    home: int


@dataclass(frozen=True, slots=True)
class Loss:
    """What the generation before has ended by, where that was no vote."""

    workers: int  # members that were lost
    restarted: bool  # nobody had the whole state: all have begun again from the checkpoint


@dataclass(frozen=True, slots=True)
class Changed:
    """A generation is the present one."""

    number: Number
    slots: tuple[Slot, ...]  # by rank
    loss: Loss | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """An order can't be carried out, or not all of it; training goes on as it was."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    code: int


Action = Start | Propose | Abort | Go | Cut | Kill | Dismiss | Changed | Refused | End
