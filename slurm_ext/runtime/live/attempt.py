"""Workers as the council knows them, and a generation in the making."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from ones.slurm_ext.runtime.live.terms import Number, Offer, Seconds, Slot, WorkerId


class Phase(Enum):
    STARTING = auto()
    READY = auto()  # waits for a generation, without the state
    MEMBER = auto()
    LEAVING = auto()


@dataclass(slots=True)
class Worker:
    """What is known of a worker process."""

    id: WorkerId
    slot: Slot
    phase: Phase
    since: Seconds
    parked: bool = False  # a member that has lost its group, and waits
    committed: int | None = None  # of a parked one
    killed: bool = False
    first: bool = False  # it has read the checkpoint


@dataclass(slots=True)
class Attempt:
    """A generation in the making."""

    number: Number
    members: tuple[WorkerId, ...]  # by rank
    leavers: frozenset[WorkerId]
    at_once: bool
    since: Seconds
    switching: bool = False  # somebody has seen the vote
    aborted: bool = False
    told_new: bool = False  # that it is aborted
    done: set[WorkerId] = field(default_factory=set)  # switched, or dropped where aborted

    @property
    def everybody(self) -> frozenset[WorkerId]:
        return self.leavers.union(self.members)


def attempt_at(
    number: Number,
    members: Iterable[Worker],
    *,
    leavers: Iterable[Worker],
    sources: Iterable[WorkerId],
    batch: int | None,
    at_once: bool,
    now: Seconds,
) -> tuple[Attempt, dict[WorkerId, Offer]]:
    """An attempt at a generation of these members, and what each of all involved is told of it.

    Ranks follow the slots. `sources` are the members that have the whole state.
    """
    ordered = sorted(members, key=lambda each: each.slot)
    ranks = {each.id: rank for rank, each in enumerate(ordered)}
    have = sorted(ranks[key] for key in sources)
    gone = frozenset(each.id for each in leavers)
    attempt = Attempt(number, tuple(ranks), gone, at_once, now)
    everybody = [*ranks, *sorted(gone)]
    offers = {
        key: Offer(
            number=number,
            rank=ranks.get(key),
            size=len(ranks),
            sources=tuple(have),
            receivers=tuple(rank for rank in range(len(ranks)) if rank not in have),
            batch=batch,
            at_once=at_once,
            place=place,
            involved=len(everybody),
        )
        for place, key in enumerate(everybody)
    }
    return attempt, offers
