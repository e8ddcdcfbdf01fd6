"""A live move as a pure state machine: the job keeps running, and its satellites change.

Where `moves` stops a job and starts it anew, this one gives an order to the job's own launcher, and
looks on: Slurm says which satellites there are, the launcher says what has become of the order.
Nothing here touches Slurm. An order is told from the journal for as long as the move stands at it,
so a daemon that was killed at any point goes on telling it; the launcher does each number once.

    begun > ordered > (begun > ordered > ...) > done
    An order that isn't carried out in time is called back: ordered > withdrawing.

A satellite's GPUs come and go as one. To give back a part of one it is replaced by a smaller one,
before it leaves where there is room for both, else after; so a move may take several orders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from ones.policies.model import Placement
from ones.slurm_ext.hostlists import fold
from ones.slurm_ext.job_json import ENDED
from ones.slurm_ext.snapshot import JobRecord

Step = Literal["begun", "ordered", "withdrawing"]
MOST_ORDERS = 6  # of one move
ORDERS_A_MOVE = 100  # numbers: those of a move follow those of the move before


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLimits:
    """How long the steps of a live move may take, in seconds."""

    room: float = 60.0  # until the GPUs are free
    order: float = 120.0  # until an order is carried out
    answer: float = 60.0  # until one that was called back is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the launcher is to bring about: these satellites stay, those come, the others leave."""

    number: int
    keep: tuple[int, ...]
    add: tuple[tuple[str, int], ...]  # node, GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The last word of the job's launcher in its present run."""

    at: float
    able: bool
    order: int
    state: str  # idle, working, done, failed
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEvidence:
    """What is known besides Slurm's record of the job and its satellites."""

    now: float
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
        values = json.loads(text)
        target, order = values.pop("target"), values.pop("order")
        try:
            if order is not None:
                add = tuple((node, gpus) for node, gpus in order["add"])
                order = Order(number=order["number"], keep=tuple(order["keep"]), add=add)
            return cls(**values, target=Placement.of(target), order=order)
        except TypeError as fault:
            raise ValueError(f"not a live move of this version: {fault}") from None


def next_order(
    job: JobRecord, target: Placement, free: Mapping[str, int], *, number: int
) -> Order | None:
    """The next order towards the target; None where there is no room for it now."""
    wanted = {
        node: gpus - job.gpus_on.get(node, 0)
        for node, gpus in target.gpus_on
        if gpus > job.gpus_on.get(node, 0)
    }
    running = [each for each in job.satellites if each.state == "RUNNING"]
    keep: list[int] = []
    missing: dict[str, int] = {}
    freed: dict[str, int] = {}
    for node in sorted({*wanted, *(node for each in running for node in each.gpus_on)}):
        here = {each.id: each.gpus_on[node] for each in running if node in each.gpus_on}
        kept = _most(here, wanted.get(node, 0))
        keep += kept
        freed[node] = sum(gpus for key, gpus in here.items() if key not in kept)
        if lacks := wanted.get(node, 0) - sum(here[key] for key in kept):
            missing[node] = lacks
    if any(free.get(node, 0) + freed.get(node, 0) < gpus for node, gpus in missing.items()):
        return None
    add = tuple((node, gpus) for node, gpus in missing.items() if free.get(node, 0) >= gpus)
    return Order(number=number, keep=tuple(sorted(keep)), add=add)


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
        case "withdrawing":
            return _withdrawing(move, evidence)


def _begun(move: LiveMove, job: JobRecord, evidence: LiveEvidence, limits: LiveLimits) -> LiveMove:
    until = move.deadline if move.deadline is not None else move.begun_at + limits.room
    if evidence.said is None:
        # We may have been started just now, and not have heard the agents yet.
        if evidence.now < until:
            return replace(move, deadline=until)
        return _end(move, "expired: nothing was heard of the job's launcher; it runs on")
    if not evidence.said.able:
        return _end(move, "abandoned: the job does not take orders any more")
    if not move.target.covers(Placement.of(job.gpus_on)):
        return _end(move, "abandoned: the job's own GPUs are not among the wanted ones")
    if dict(job.held_on) == dict(move.target.gpus_on) and all(
        each.state == "RUNNING" for each in job.satellites
    ):
        return _end(move, "done")
    if move.orders >= MOST_ORDERS:
        return _end(move, f"failed: not there after {MOST_ORDERS} orders; it runs on")
    number = ORDERS_A_MOVE * move.id + move.orders
    order = next_order(job, move.target, evidence.free, number=number)
    if order is None:
        if evidence.now < until:
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
        left = set(order.keep)
        # Slurm may need a moment until it has seen the leavers leave.
        gone = all(each.id in left or _of_order(each, order) for each in job.satellites)
        if gone:
            again = replace(move, step="begun", deadline=evidence.now + limits.room)
            return _begun(again, job, evidence, limits)
    if fault := evidence.ended.get(order.number):
        return _withdraw(move, f"failed: {fault}", evidence, limits)
    if move.deadline is not None and evidence.now >= move.deadline:
        fault = f"expired: not carried out within {limits.order:.0f} s"
        return _withdraw(move, fault, evidence, limits)
    return move


def _withdraw(move: LiveMove, because: str, evidence: LiveEvidence, limits: LiveLimits) -> LiveMove:
    deadline = evidence.now + limits.answer
    return replace(move, step="withdrawing", because=because, deadline=deadline)


def _withdrawing(move: LiveMove, evidence: LiveEvidence) -> LiveMove:
    order, said = move.order, evidence.said
    assert order is not None, "only `begun` has none"
    heard = said is not None and said.order == order.number and said.state in ("done", "failed")
    if heard:
        return _end(move, f"{move.because}; it runs on")
    if move.deadline is not None and evidence.now >= move.deadline:
        return _end(move, f"{move.because}, and the job does not answer")
    return move


def _of_order(satellite: JobRecord, order: Order) -> bool:
    return f";order={order.number}" in satellite.admin_comment.split(" ")[0]


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
