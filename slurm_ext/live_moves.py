"""A live move as a pure state machine: the job keeps running, and its satellites change.

Where `moves` stops a job and starts it anew, this one gives an order to the job's own launcher, and
looks on: Slurm says which satellites there are, the launcher says what has become of the order.
Nothing here touches Slurm. An order is told from the journal for as long as the move stands at it,
so a daemon that was killed at any point goes on telling it; the launcher does each number once.

    begun > ordered > (giving > ordered) > (begun > ordered > ...) > done
    An order that isn't carried out in time is called back: ordered > withdrawing.

A satellite's GPUs come and go as one. To give back a part of one it is replaced by a smaller one,
before it leaves where there is room for both, else after; so a move may take several orders. The
same holds for the nodes of the job's own allocation but its first one: once the launcher there has
left, Slurm takes the node back (*giving*), and it never returns to the allocation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal

import msgspec

from ones.policies.model import Placement
from ones.policies.words import lasting
from ones.slurm_ext.actions import FIRST
from ones.slurm_ext.hostlists import fold
from ones.slurm_ext.job_json import MALFORMED
from ones.slurm_ext.layout import gpus_wanted
from ones.slurm_ext.satellites import Tie
from ones.slurm_ext.snapshot import ENDED, JobRecord
from ones.slurm_ext.waits import about

Step = Literal["begun", "ordered", "giving", "withdrawing"]
MOST_ORDERS = 6  # of one move
_OWN = 0  # as a satellite's number: the job's own part of a node
QUEUED = ("Priority", "Resources")  # Slurm's reasons of a job that is only behind others
ORDERS_A_MOVE = 100  # numbers: those of a move follow those of the move before


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLimits:
    """How long the steps of a live move may take, in seconds."""

    room: float = 60.0  # until the GPUs are free, or Slurm has taken a node back
    order: float = 120.0  # until an order is carried out
    answer: float = 60.0  # until one that was called back is given up

    @property
    def longest(self) -> float:
        """Of any step."""
        return max(self.room, self.order, self.answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the launcher is to bring about: these satellites stay, those come, the others leave."""

    number: int
    keep: tuple[int, ...]
    add: tuple[tuple[str, int], ...]  # node, GPUs
    leave: tuple[str, ...] = ()  # nodes of its own allocation that it gives back


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The last word of the job's launcher in its present run."""

    at: float
    able: bool
    order: int
    state: str  # idle, working, done, failed
    reason: str = ""
    own: Mapping[str, int] = field(default_factory=dict)
    """Further nodes of the job's own allocation -> workers there; 0: nothing is left there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEvidence:
    """What is known besides Slurm's record of the job and its satellites."""

    now: float
    listening: float = 0.0  # since when launchers could be heard: the start of onesd
    said: Said | None = None
    free: Mapping[str, int] = field(default_factory=dict)  # node -> GPUs that are free now
    ended: Mapping[int, str] = field(default_factory=dict)
    """Order -> what became of a satellite of that order which has ended without being asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMove:
    """One live move as the journal keeps it."""

    id: int
    job: int
    restarts: int
    target: Placement
    batch: int | None = None
    reason: str = ""
    begun_at: float
    step: Step = "begun"
    order: Order | None = None
    orders: int = 0
    deadline: float | None = None
    because: str = ""  # why the order is called back
    refused: str = ""  # Slurm's reason for not starting what it was to grow by
    given: tuple[str, ...] = ()  # nodes of its own allocation that Slurm has taken back
    outcome: str = ""  # empty: under way; else "done" or "WORD: what happened"
    kind: Literal["live"] = "live"

    @property
    def holds(self) -> bool:
        """A live move never holds the job."""
        return False

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"target": dict(self.target.gpus_on)})

    @classmethod
    def from_json(cls, text: str) -> LiveMove:
        """Read what `to_json` wrote. Raises ValueError."""
        try:
            values = json.loads(text)
            if strange := sorted(values.keys() - {each.name for each in fields(cls)}):
                raise ValueError(f"it has {strange[0]}")
            values["target"] = {"gpus_on": sorted(values["target"].items())}
            return msgspec.convert(values, cls)
        except (*MALFORMED, msgspec.ValidationError) as fault:
            raise ValueError(f"not a live move of this version: {fault!r:.200}") from None


msgspec.json.Decoder(LiveMove)  # worked out here, not by two threads at once (see daemon/wire.py)


def core(job: JobRecord, own: Mapping[str, int]) -> Placement:
    """The part of a job's own allocation that it can't give back while it runs.

    That is its first node, and those of which its launcher knows no launcher (`Said.own`).
    """
    return Placement.of(
        {
            node: gpus
            for node, gpus in job.gpus_on.items()
            if node == job.batch_host or node not in own
        }
    )


def next_order(
    job: JobRecord,
    target: Placement,
    free: Mapping[str, int],
    *,
    number: int,
    own: Mapping[str, int] | None = None,
) -> Order | None:
    """The next order towards the target; None where there is no room for it now."""
    own = own or {}
    fixed = dict(core(job, own).gpus_on)
    wanted = {node: gpus - fixed.get(node, 0) for node, gpus in target.gpus_on}
    running = [each for each in job.satellites if each.state == "RUNNING"]
    further = [node for node in job.gpus_on if node not in fixed]
    keep: list[int] = []
    leave: list[str] = []
    missing: dict[str, int] = {}
    freed: dict[str, int] = {}
    for node in sorted({*wanted, *further, *(node for each in running for node in each.gpus_on)}):
        room = wanted.get(node, 0)
        here = {each.id: each.gpus_on[node] for each in running if node in each.gpus_on}
        if node in further and own[node]:
            here[_OWN] = job.gpus_on[node]
        kept = _most(here, room)
        keep += [key for key in kept if key != _OWN]
        freed[node] = sum(gpus for key, gpus in here.items() if key not in kept)
        if node in further and _OWN not in kept:
            leave.append(node)
            freed[node] += 0 if own[node] else job.gpus_on[node]
        if lacks := room - sum(here[key] for key in kept):
            missing[node] = lacks
    if any(free.get(node, 0) + freed.get(node, 0) < gpus for node, gpus in missing.items()):
        return None
    add = tuple((node, gpus) for node, gpus in missing.items() if free.get(node, 0) >= gpus)
    return Order(number=number, keep=tuple(sorted(keep)), add=add, leave=tuple(leave))


def advance(
    move: LiveMove, job: JobRecord | None, evidence: LiveEvidence, limits: LiveLimits
) -> LiveMove:
    """The move after its next step, given the job as Slurm has it now."""
    if move.outcome:
        return move
    if job is None or job.state in ENDED:
        state = "Slurm no longer knows the job" if job is None else f"it has ended ({job.state})"
        return _end(move, f"abandoned: {state}")
    if job.restarts != move.restarts or job.state != "RUNNING" or "COMPLETING" in job.flags:
        return _end(move, "abandoned: the job does not run as it did")
    if not job.marked:
        return _end(move, "abandoned: the job is no longer marked elastic")
    match move.step:
        case "begun":
            return _begun(move, job, evidence, limits)
        case "ordered":
            return _ordered(move, job, evidence, limits)
        case "giving":
            return _giving(move, job, evidence, limits)
        case "withdrawing":
            return _withdrawing(move, evidence, limits)


def _begun(move: LiveMove, job: JobRecord, evidence: LiveEvidence, limits: LiveLimits) -> LiveMove:
    until = move.deadline if move.deadline is not None else move.begun_at + limits.room
    if evidence.said is None:
        # We may have been started just now, and not have heard the agents yet.
        until = max(until, evidence.listening + limits.room)
        if not _passed(until, evidence, limits):
            return replace(move, deadline=until)
        return _end(move, "expired: nothing was heard of the job's launcher; it runs on")
    if not evidence.said.able:
        return _end(move, "abandoned: the job does not take orders any more")
    if not move.target.covers(core(job, evidence.said.own)):
        return _end(move, "abandoned: the job's own GPUs are not among the wanted ones")
    if dict(job.held_on) == dict(move.target.gpus_on) and all(
        each.state == "RUNNING" for each in job.satellites
    ):
        return _end(move, "done")
    if move.orders >= MOST_ORDERS:
        return _end(move, f"failed: not there after {MOST_ORDERS} orders; it runs on")
    number = ORDERS_A_MOVE * move.id + move.orders
    own = evidence.said.own
    order = next_order(job, move.target, evidence.free, number=number, own=own)
    if order is None:
        if not _passed(until, evidence, limits):
            return replace(move, deadline=until)
        return _end(move, f"expired: {_where(move)} did not become free; it runs on")
    return replace(
        move,
        step="ordered",
        order=order,
        orders=move.orders + 1,
        deadline=evidence.now + limits.order,
    )


def _ordered(
    move: LiveMove, job: JobRecord, evidence: LiveEvidence, limits: LiveLimits
) -> LiveMove:
    order, said = move.order, evidence.said
    assert order is not None, "only `begun` has none"
    if said is not None and said.order == order.number and said.state == "failed":
        return _end(move, f"failed: {said.reason or 'no reason given'}; it runs on")
    if said is not None and said.order == order.number and said.state == "done":
        if any(node in job.gpus_on for node in order.leave):
            return replace(move, step="giving", deadline=evidence.now + limits.room)
        left = set(order.keep)
        # Slurm may need a moment until it has seen the leavers leave.
        gone = all(each.id in left or _of_order(each, order) for each in job.satellites)
        if gone:
            again = replace(move, step="begun", deadline=evidence.now + limits.room)
            return _begun(again, job, evidence, limits)
    if fault := evidence.ended.get(order.number):
        return _withdraw(move, f"failed: {fault}", evidence, limits)
    for each in job.satellites:
        if each.state == "PENDING" and _of_order(each, order) and about(each.reason):
            fault = f"failed: Slurm does not start satellite {each.id} ({each.reason})"
            return _withdraw(replace(move, refused=each.reason), fault, evidence, limits)
    if _passed(move.deadline, evidence, limits):
        fault = f"expired: not carried out within {lasting(limits.order)}"
        return _withdraw(move, fault, evidence, limits)
    return move


def _giving(move: LiveMove, job: JobRecord, evidence: LiveEvidence, limits: LiveLimits) -> LiveMove:
    """The launchers on these nodes have left; nothing of the job is there any more."""
    order = move.order
    assert order is not None, "only `begun` has none"
    left = tuple(node for node in order.leave if node in job.gpus_on)
    if not left:
        given = (*move.given, *order.leave)
        deadline = evidence.now + limits.room
        return replace(move, step="ordered", given=given, deadline=deadline)
    if _passed(move.deadline, evidence, limits):
        return _end(move, f"failed: Slurm did not take {fold(left)} back; it runs on")
    return move


def _withdraw(move: LiveMove, because: str, evidence: LiveEvidence, limits: LiveLimits) -> LiveMove:
    deadline = evidence.now + limits.answer
    return replace(move, step="withdrawing", because=because, deadline=deadline)


def _withdrawing(move: LiveMove, evidence: LiveEvidence, limits: LiveLimits) -> LiveMove:
    order, said = move.order, evidence.said
    assert order is not None, "only `begun` has none"
    heard = said is not None and said.order == order.number and said.state in ("done", "failed")
    if heard:
        return _end(move, f"{move.because}; it runs on")
    if _passed(move.deadline, evidence, limits):
        return _end(move, f"{move.because}, and the job does not answer")
    return move


def _passed(deadline: float | None, evidence: LiveEvidence, limits: LiveLimits) -> bool:
    """Whether the step's time is over; also where the clock was set back since it began."""
    return deadline is not None and not 0 < deadline - evidence.now <= limits.longest


def _of_order(satellite: JobRecord, order: Order) -> bool:
    tie = Tie.of(satellite)
    return tie is not None and tie.order == order.number


def passed_over(move: LiveMove, job: JobRecord) -> list[int]:
    """The satellites that wait in Slurm's queue, though their GPUs were kept free for them.

    They ask for just what the order says: anybody can call a job a satellite.
    """
    if move.outcome or move.step != "ordered" or move.order is None:
        return []
    ordered = dict(move.order.add)
    return [
        each.id
        for each in job.satellites
        if each.state == "PENDING"
        and not each.held
        and each.reason in QUEUED
        and each.priority < FIRST
        and _of_order(each, move.order)
        and ordered.get(each.required_nodes) == gpus_wanted(each)
    ]


def _most(gpus: Mapping[int, int], room: int) -> list[int]:
    """The jobs that together hold the most GPUs, yet no more than `room`; the fewest of such."""
    best: dict[int, list[int]] = {0: []}
    for key in sorted(gpus, key=lambda key: (-gpus[key], key)):
        for total, chosen in list(best.items()):
            more = total + gpus[key]
            if more <= room and (more not in best or len(best[more]) > len(chosen) + 1):
                best[more] = [*chosen, key]
    return best[max(best)]


def promised(moves: Iterable[LiveMove], jobs: Mapping[int, JobRecord]) -> dict[str, int]:
    """Node -> GPUs that live moves under way will give back."""
    coming: dict[str, int] = {}
    for move in moves:
        job = jobs.get(move.job)
        if job is None or move.outcome:
            continue
        wanted = dict(move.target.gpus_on)
        for node, gpus in job.held_on.items():
            coming[node] = coming.get(node, 0) + max(0, gpus - wanted.get(node, 0))
    return coming


def _where(move: LiveMove) -> str:
    return f"{move.target.gpus} GPUs on {fold(move.target.nodes)}"


def _end(move: LiveMove, outcome: str) -> LiveMove:
    return replace(move, outcome=outcome, deadline=None)
