"""The three moves of a job as a pure state machine: start, resize, preempt.

`advance` looks at a move's record and at what Slurm and the job say now, and answers with at most
one action. The shell writes `move` down, carries the action out, and then writes `done` down. A
crash between any two of these is safe: the next `advance` sees what Slurm really has, and repeats
the action or passes over it. Everything that anybody else does to the job in the meantime ends the
move: nothing more is written, and the outcome says what happened.

    start:             begun > shaping > shaped > releasing > starting
    resize:  begun > asking > asked > stopping > stopped > shaping > shaped > releasing > starting
    preempt: begun > asking > asked > stopping > stopped
    A start that does not come within its time is withdrawn: starting > withdrawing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from signal import Signals
from typing import Literal

from ones.policies.model import Placement
from ones.policies.words import lasting
from ones.slurm_ext.actions import (
    FIRST,
    Action,
    GoFirst,
    Hold,
    Release,
    RequeueHold,
    Reshape,
    Revive,
    Signal,
)
from ones.slurm_ext.holding import BAD_SHAPE, STALE
from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.job_json import MALFORMED
from ones.slurm_ext.layout import gpus_wanted
from ones.slurm_ext.shards import beside
from ones.slurm_ext.snapshot import ENDED, UNTRIED, JobRecord
from ones.slurm_ext.waits import about

Kind = Literal["start", "resize", "preempt"]
Step = Literal[
    "begun", "asking", "asked", "stopping", "stopped", "shaping", "shaped", "releasing",
    "starting", "withdrawing",
]  # fmt: skip
_BEFORE_STOP = frozenset({"begun", "asking", "asked"})
_ASKED = frozenset({"asking", "asked", "stopping"})
_Turn = tuple[int, int, int]
_TURNS: Mapping[Kind, int] = {"start": 0, "resize": 1, "preempt": 2}

# How far a node's clock may run behind ours: a confirmation so little older than our request is
# taken for one. At worst it is of a periodic checkpoint, and this much work is done again.
CLOCK_SKEW = 2.0
FRESH = 60.0  # seconds for which a checkpoint is good enough to stop the job on
HEARING = 30.0  # seconds in which every agent is heard once
LEAVING = 20.0  # seconds that Slurm may take to give back what somebody has left
HANDOVER = 30.0  # seconds for which a job that is to stop waits for those who wait for its GPUs
ELSEWHERE = "it was told to start elsewhere"
KILLED = "refused: the signal that asks for a checkpoint ended it; it is not asked again"
BY_OWNER = "JobHeldUser"  # with this one its owner holds it, if it was held otherwise, or not


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimits:
    """How long the steps of a move may take, in seconds, and how jobs are asked."""

    checkpoint_timeout: float = 300.0
    requeue_timeout: float = 120.0
    start_timeout: float = 60.0
    settle: float = 1.5
    """From a requeue to the next start. slurmd refuses, and Slurm then fails, a batch job that is
    started in the same second in which its last run was ended ("Job credential revoked")."""
    checkpoint_signal: str = "USR1"

    @property
    def longest(self) -> float:
        """Of any step."""
        return max(self.checkpoint_timeout, self.requeue_timeout, self.start_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known besides Slurm's record of the job."""

    now: float
    checkpoint_at: float | None = None  # when the job's present run last confirmed a checkpoint
    reported: bool = False  # whether its present run has reported ...
    ready: bool = False  # ... and said with its last word that it saves when asked
    free: Mapping[str, int] = field(default_factory=dict)  # node -> GPUs that are free now
    coming: Mapping[str, int] = field(default_factory=dict)
    """Node -> GPUs that other moves under way are about to free; see `leaving`."""
    awaited: bool = False
    """Whether others are to have GPUs of it that do not wait for them in Slurm yet; see `awaited`.
    """
    half_taken: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Node -> the jobs there that have a GPU to themselves of which they hold half of the shards.
    """
    shared: bool = False  # whether another job is on its GPU, which stays taken when it goes
    out_of_service: frozenset[str] = frozenset()  # nodes on which Slurm starts nothing now
    listening: float = 0.0
    """Since when agents could be heard: before, a checkpoint may have been confirmed unheard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """One move as the journal keeps it."""

    id: int
    job: int
    kind: Kind
    restarts: int  # of the job when the move was decided
    target: Placement | None = None  # None: a preempt
    shards: int = 0  # of its one GPU, which it is to share; 0: whole GPUs
    beside: int | None = None  # the job on whose GPU it starts; None: on a GPU to itself at first
    batch: int | None = None
    reason: str = ""
    begun_at: float
    queued: bool = False  # of a job in Slurm's own queue, which is held before it is started
    gone: bool = False  # whether its run had ended before Slurm went back to what it had saved
    forgotten: bool = False  # whether Slurm went back to before its stop, if that had been
    ran: int = 0  # GPUs that it held as the move was begun, where it is stopped on the way
    step: Step = "begun"
    asked_at: float | None = None
    lacked_at: float | None = None  # when it last waited, stopped, for others to leave its target
    deadline: float | None = None  # of the present step
    holds: bool = False  # whether the job is, or is about to be, held by us
    killed: bool = False  # whether the run ended of the signal that asks for a checkpoint
    refused: str = ""  # Slurm's reason for not starting the job, once it is not to start any more
    outcome: str = ""  # empty: under way; else "done" or "WORD: what happened"

    def __post_init__(self) -> None:
        if (self.target is None) != (self.kind == "preempt"):
            raise ValueError(f"move {self.id}: a {self.kind} with target {self.target}")
        if self.target is not None and self.target.shape is None:
            raise ValueError(f"move {self.id}: no allocation can promise {self.target.gpus_on}")

    @property
    def expected_restarts(self) -> int:
        """The job's restart count once it is where this step needs it."""
        stopped = self.kind != "start" and self.step not in _BEFORE_STOP
        return self.restarts + stopped

    def to_json(self) -> str:
        target = dict(self.target.gpus_on) if self.target else None
        return json.dumps(asdict(self) | {"target": target})

    @classmethod
    def from_json(cls, text: str) -> MoveRecord:
        """Read what `to_json` wrote. Raises ValueError."""
        try:
            values = json.loads(text)
            target = values.pop("target")
            return cls(**values, target=Placement.of(target) if target else None)
        except MALFORMED as fault:
            raise ValueError(f"not a move of this version: {fault!r:.200}") from None


@dataclass(frozen=True, slots=True)
class Next:
    """What to write down, what to do, and what to write down once it is done."""

    move: MoveRecord
    action: Action | None
    done: MoveRecord


def leaving(moves: Iterable[MoveRecord], jobs: Mapping[int, JobRecord]) -> dict[str, int]:
    """Node -> GPUs that moves under way will take away from it: not free yet, but promised."""
    coming: dict[str, int] = {}
    together = beside(jobs)
    for move in moves:
        job = jobs.get(move.job)
        if job is None or move.outcome or move.kind == "start" or job.id in together:
            continue
        kept = dict(move.target.gpus_on) if move.target else {}
        for node, gpus in job.held_on.items():
            coming[node] = coming.get(node, 0) + max(0, gpus - kept.get(node, 0))
    return coming


def awaited(
    moves: Iterable[MoveRecord], jobs: Mapping[int, JobRecord], free: Mapping[str, int]
) -> frozenset[int]:
    """The moves whose jobs should not stop yet: who is to have their GPUs has no claim to them.

    As soon as GPUs are free Slurm gives them to whoever is next in its queue, but for those of
    nodes that a job names which is before all others. So that job must be there first. Nobody waits
    for each other: starts are before resizes, growth is before shrinking, and preemptions are last.
    """
    first: dict[str, _Turn] = {}  # node -> of those who lack GPUs there
    stopping: list[tuple[int, _Turn, list[str]]] = []
    for move in moves:
        job = jobs.get(move.job)
        if job is None or move.outcome or move.step in ("starting", "withdrawing"):
            continue
        target = dict(move.target.gpus_on) if move.target else {}
        turn = (_TURNS[move.kind], sum(job.held_on.values()) - sum(target.values()), move.id)
        for node, gpus in target.items():
            if free.get(node, 0) + job.gpus_on.get(node, 0) < gpus:
                first[node] = min(turn, first.get(node, turn))
        if move.kind != "start":
            left = [node for node, gpus in job.held_on.items() if target.get(node, 0) < gpus]
            stopping.append((move.id, turn, left))
    return frozenset(
        number
        for number, own, left in stopping
        if any(node in first and first[node] < own for node in left)
    )


def pinned(move: MoveRecord, job: JobRecord) -> bool:
    """Whether the job asks for the nodes that the move gave it."""
    wanted = frozenset() if move.target is None else frozenset(move.target.nodes)
    try:
        return bool(wanted) and wanted == frozenset(expand(job.required_nodes))
    except ValueError:
        return False  # nothing that we wrote


def _as_told(move: MoveRecord, job: JobRecord) -> bool:
    """Whether the job asks for the nodes that the move gave it, and for as many GPUs."""
    if not pinned(move, job) or move.target is None:
        return False
    return bool(move.shards) or gpus_wanted(job) == move.target.gpus


def _to_be_revived(move: MoveRecord, job: JobRecord) -> bool:
    """Whether Slurm takes the job for failed: by our signal, or as it has forgotten our stop."""
    stopping = (move.forgotten or move.killed) and move.step == "stopping"
    return stopping and job.state == "FAILED" and job.restarts == move.restarts


def _killed(move: MoveRecord, job: JobRecord, limits: MoveLimits) -> bool:
    """Whether the signal that asks for a checkpoint has ended the job instead.

    Its script may have gone on to something that has no handler for it, with nobody told in time.
    """
    if move.asked_at is None or move.step not in _ASKED or job.restarts != move.restarts:
        return False
    asked = job.ended >= move.asked_at - CLOCK_SKEW
    return asked and job.ended_by(Signals[f"SIG{limits.checkpoint_signal}"])


def advance(
    move: MoveRecord, job: JobRecord | None, evidence: Evidence, limits: MoveLimits
) -> Next:
    """The next step of a move, given the job as Slurm has it now."""
    if move.outcome:
        return _wait(move)
    if job is None:
        return _end(move, "abandoned: Slurm no longer knows the job", holds=False)
    if _to_be_revived(move, job):
        return _revive(_Case(move, job, evidence, limits))
    if _killed(move, job, limits):
        case = _Case(replace(move, killed=True), job, evidence, limits)
        return _revive(case.to("stopping", within=limits.requeue_timeout, holds=True))
    if job.state in ENDED:
        ran = move.step in ("releasing", "starting", "withdrawing") and job.started > 0
        if ran and job.restarts == move.expected_restarts:
            return _end(move, "done", holds=False)
        return _end(move, f"abandoned: the job has ended ({job.state})", holds=False)
    if not job.marked:
        held = job.held and move.holds
        advice = "; it stays held: scontrol release it" if held else ""
        return _end(move, f"abandoned: the job is no longer marked elastic{advice}", holds=held)
    if job.restarts not in (move.restarts, move.expected_restarts):
        return _end(move, "abandoned: somebody else requeued the job", holds=False)
    return _STEPS[move.step](_Case(move, job, evidence, limits))


@dataclass(frozen=True, slots=True)
class _Case:
    """A move and all that its next step depends on."""

    move: MoveRecord
    job: JobRecord
    evidence: Evidence
    limits: MoveLimits

    @property
    def now(self) -> float:
        return self.evidence.now

    @property
    def late(self) -> bool:
        """Whether the step's time is over; also where the clock was set back since it began."""
        deadline = self.move.deadline
        return deadline is not None and not 0 < deadline - self.now <= self.limits.longest

    @property
    def age(self) -> float:
        """Seconds since the move was begun; endless where the clock was set back since."""
        age = self.now - self.move.begun_at
        return age if age >= 0 else float("inf")

    @property
    def held_lately(self) -> bool:
        """Whether Slurm's answer may be older than the hold with which a queued start begins."""
        deadline = self.move.deadline
        return deadline is not None and self.now < deadline - self.limits.start_timeout + STALE

    @property
    def fresh(self) -> bool:
        """Whether the job's last checkpoint is of this moment."""
        confirmed = self.evidence.checkpoint_at
        return confirmed is not None and self.now - confirmed <= FRESH

    @property
    def where(self) -> str:
        target = self.move.target
        return f"{target.gpus} GPUs on {fold(target.nodes)}" if target else "nothing"

    def to(self, step: Step, *, within: float | None = None, holds: bool) -> _Case:
        """The same at another step, with its time from now on."""
        deadline = None if within is None else self.now + within
        moved = replace(self.move, step=step, deadline=deadline, holds=holds)
        return replace(self, move=moved)

    def has_room(self, *, promised: bool) -> bool:
        """Whether the target's GPUs are free; `promised`: or will be, by other moves under way."""
        if self.move.target is None:
            return True
        if not self.evidence.out_of_service.isdisjoint(self.move.target.nodes):
            return False  # also of what it holds there: it could not start again
        # Satellites leave when the job is stopped.
        held = self.job.held_on if promised else self.job.gpus_on
        free, own = self.evidence.free, {} if self.evidence.shared else held
        if self.move.shards:
            # Slurm puts it beside whoever is alone on a shared GPU of the node.
            (node,) = self.move.target.nodes
            met = self.evidence.half_taken.get(node, frozenset()) - {self.job.id}
            if met != ({self.move.beside} - {None}):
                return False
            if met:
                return True
        coming = self.evidence.coming if promised else {}
        return all(
            free.get(node, 0) + own.get(node, 0) + coming.get(node, 0) >= gpus
            for node, gpus in self.move.target.gpus_on
        )

    def not_running(self) -> Next | None:
        """What to do where the job is not in the run that the move was decided for."""
        if self.job.restarts != self.move.restarts:
            return _end(self.move, "abandoned: somebody else requeued the job", holds=False)
        if self.job.state != "RUNNING":
            return _end(self.move, f"abandoned: the job is {self.job.state.lower()}", holds=False)
        if self.job.held:  # stopped, it would wait for whoever holds it
            return _end(self.move, "abandoned: somebody holds the job", holds=False)
        return _wait(self.move) if "COMPLETING" in self.job.flags else None

    def not_ready(self) -> Next | None:
        """What to do where nobody waits for the signal: a batch script without a trap dies of it.

        What is over is not begun again, either, where a checkpoint of its last moments is there.
        """
        if self.evidence.ready:
            return None
        told = "says that it saves no checkpoint now"
        why = told if self.evidence.reported else "has not reported in this run"
        return _end(self.move, f"abandoned: the job {why}", holds=False)

    def not_held(self) -> Next | None:
        """What to do where the job does not wait, held, for us."""
        if self.job.state != "PENDING":
            return _end(self.move, "abandoned: the job has started already", holds=False)
        if self.job.held:
            return None
        if self.move.queued and self.held_lately:
            return _wait(self.move)  # we hold it ourselves: Slurm's answer may be from before
        return _end(self.move, "abandoned: somebody else released the job", holds=False)


def _begun(case: _Case) -> Next:
    move = case.move
    if move.kind == "start":
        # A start is of a job that is held for us already, and stays so until it is released.
        begun = replace(
            move,
            holds=True,
            deadline=move.deadline or move.begun_at + case.limits.start_timeout,
        )
        if move.queued and (instead := _out_of_the_queue(case, begun)) is not None:
            return instead
        return case.not_held() or _place(replace(case, move=begun))
    if (instead := case.not_running() or case.not_ready()) is not None:
        return instead
    if not case.has_room(promised=True):
        # Not stopped before there is room for it: it is better off where it is.
        if case.age < case.limits.start_timeout:
            return _wait(move)
        return _end(move, f"expired: {case.where} did not become free; it runs on", holds=False)
    return _ask_anew(case)


def _out_of_the_queue(case: _Case, begun: MoveRecord) -> Next | None:
    """Hold a job that waits in Slurm's own queue, or Slurm could start it elsewhere meanwhile."""
    move, job = case.move, case.job
    if job.state == "RUNNING":
        return _runs(case)  # Slurm was quicker
    if job.state != "PENDING":
        return None
    if job.held:
        ours = move.holds and job.reason != BY_OWNER
        return None if ours else _end(move, f"abandoned: it was held ({job.reason})", holds=False)
    if replace(case, move=begun).late:
        return _end(move, "failed: Slurm did not hold the job; it waits in the queue", holds=False)
    return _same(begun, _hold(begun))


def _ask_anew(case: _Case) -> Next:
    asking = case.to("asking", within=case.limits.checkpoint_timeout, holds=False)
    return _ask(replace(asking, move=replace(asking.move, asked_at=case.now)))


def _asking(case: _Case) -> Next:
    if (instead := case.not_running() or case.not_ready()) is not None:
        return instead
    if case.late:
        return _end(case.move, "failed: the job could not be signalled; it runs on", holds=False)
    # After a crash it is asked twice: a job may be asked for a checkpoint at any time.
    return _ask(case)


def _ask(case: _Case) -> Next:
    move = case.move
    signal = Signal(move.job, move.restarts, case.limits.checkpoint_signal)
    return Next(move, signal, replace(move, step="asked"))


def _asked(case: _Case) -> Next:
    if (instead := case.not_running() or case.not_ready()) is not None:
        return instead
    move, confirmed = case.move, case.evidence.checkpoint_at
    asked = move.begun_at if move.asked_at is None else move.asked_at
    if confirmed is None or confirmed < asked - CLOCK_SKEW:
        listening = case.evidence.listening
        if not case.late or listening <= case.now < listening + HEARING:
            return _wait(move)
        if asked < listening or asked > case.now:
            return _ask_anew(case)  # it may have answered when nobody listened
        waited = lasting(case.now - asked)
        return _end(move, f"refused: no checkpoint confirmed within {waited}", holds=False)
    if not case.has_room(promised=True):
        return _end(move, f"expired: {case.where} were taken meanwhile; it runs on", holds=False)
    if not case.fresh:
        return _ask_anew(case)
    if case.evidence.awaited and 0 <= case.now - confirmed < HANDOVER:
        return _wait(move)
    stopping = case.to("stopping", within=case.limits.requeue_timeout, holds=True)
    return _same(stopping.move, RequeueHold(move.job, move.restarts))


def _stopping(case: _Case) -> Next:
    if "COMPLETING" in case.job.flags:
        return _wait(case.move)  # whatever the deadline: it will be held, and we must know
    if case.move.killed:
        # It does not go where it was to: that was planned for a job that can be moved.
        refused = replace(case.move, outcome=KILLED, deadline=None)
        return case.not_held() or Next(case.move, _hold(case.move), refused)
    if case.job.restarts == case.move.restarts:
        if case.job.state == "PENDING" or case.late:
            return _end(case.move, "failed: Slurm did not requeue the job", holds=False)
        if not case.fresh and not case.move.gone:
            return _ask_once_more(case)
        return _same(case.move, RequeueHold(case.move.job, case.move.restarts))
    return _stopped(case.to("stopped", within=case.limits.start_timeout, holds=True))


def _revive(case: _Case) -> Next:
    if "COMPLETING" in case.job.flags:
        return _wait(case.move)
    if case.late:
        return _end(case.move, "failed: Slurm does not requeue the job any more", holds=False)
    return _same(case.move, Revive(case.move.job, case.move.restarts))


def _ask_once_more(case: _Case) -> Next:
    """It trains on: what it would lose is asked for again, but not for ever.

    The step stays the same. What Slurm says may be older than our stop; then its hold is ours.
    """
    move, limits, confirmed = case.move, case.limits, case.evidence.checkpoint_at
    if case.age > limits.checkpoint_timeout + limits.requeue_timeout:
        return _end(move, "failed: Slurm did not requeue the job", holds=False)
    asked = move.begun_at if move.asked_at is None else move.asked_at
    answered = confirmed is not None and confirmed >= asked - CLOCK_SKEW
    waits = not answered and case.evidence.listening <= asked <= case.now
    if waits or not case.evidence.ready:
        return _wait(move)
    signal = Signal(move.job, move.restarts, limits.checkpoint_signal)
    again = case.to("stopping", within=limits.checkpoint_timeout, holds=True).move
    return Next(again, signal, replace(again, asked_at=case.now))


def _stopped(case: _Case) -> Next:
    if case.move.queued and case.job.state == "PENDING" and not case.job.held and not case.late:
        return _same(case.move, _hold(case.move))
    if (instead := case.not_held()) is not None:
        return instead
    if case.move.kind == "preempt" and case.late:
        return _end(case.move, "done", holds=True)  # its owner could release it, and nothing else
    if case.move.kind == "preempt":
        return Next(case.move, _hold(case.move), replace(case.move, outcome="done", deadline=None))
    return _place(case)


def _place(case: _Case) -> Next:
    """Give the held job its shape, once its last run is over for good.

    Where others are about to leave its target, it is put before all that wait for those nodes.
    """
    if not case.has_room(promised=True):
        if not case.late:
            return _wait(replace(case.move, lacked_at=case.now))
        return _end(case.move, f"expired: {case.where} did not become free; held", holds=True)
    since = case.now - case.job.submitted
    if case.job.restarts and -CLOCK_SKEW <= since < case.limits.settle:
        return _wait(case.move)
    return _shape(case.to("shaping", within=case.limits.start_timeout, holds=True))


def _shaping(case: _Case) -> Next:
    if (instead := case.not_held()) is not None:
        return instead
    if case.late:
        unfit = replace(case.move, refused=BAD_SHAPE)
        return _end(unfit, f"failed: Slurm does not take {case.where}; held", holds=True)
    return _shape(case)


def _shape(case: _Case) -> Next:
    move = case.move
    assert move.target is not None, "only a preempt has none"
    reshape = Reshape(move.job, move.expected_restarts, move.target, shards=move.shards)
    return Next(move, reshape, replace(move, step="shaped"))


def _shaped(case: _Case) -> Next:
    if (instead := case.not_held()) is not None:
        return instead
    if case.job.reason == BY_OWNER:  # we hold it as administrators do by now
        return _end(case.move, f"abandoned: it was held again ({BY_OWNER})", holds=False)
    return _release(case.to("releasing", within=case.limits.start_timeout, holds=True))


def _releasing(case: _Case) -> Next:
    if case.job.state != "PENDING" or not case.job.held:
        return _starting(case.to("starting", within=case.limits.start_timeout, holds=False))
    if case.late:
        return _end(case.move, "failed: Slurm did not release the job; held", holds=True)
    return _release(case)


def _release(case: _Case) -> Next:
    starting = case.to("starting", within=case.limits.start_timeout, holds=False)
    return Next(case.move, Release(case.move.job, case.move.expected_restarts), starting.move)


def _starting(case: _Case) -> Next:
    if case.job.state == "RUNNING":
        return _runs(case)
    if case.job.state != "PENDING":
        return _end(case.move, f"abandoned: the job is {case.job.state.lower()}", holds=False)
    if case.job.held and case.job.reason == BAD_SHAPE:
        unfit = replace(case.move, refused=BAD_SHAPE)
        return _end(unfit, f"failed: Slurm can't give {case.where} here; held", holds=True)
    if case.job.held:
        return _end(case.move, f"abandoned: it was held again ({case.job.reason})", holds=False)
    if case.job.priority >= FIRST and not _as_told(case.move, case.job):
        # Its owner may change what a waiting job asks for, but not go before others with that.
        return _withdraw(case, ELSEWHERE)
    room = case.has_room(promised=False)
    comes = not room and case.has_room(promised=True)
    if comes or not (about(case.job.reason) or _lost(case) or _overdue(case)):
        waits = replace(case.move, lacked_at=case.now) if comes else case.move
        passed = case.job.reason == "Priority" or comes
        if passed and case.job.priority < FIRST:
            return _same(waits, GoFirst(waits.job, waits.expected_restarts))
        return _wait(waits)
    return _withdraw(case, case.job.reason or "None")


def _withdraw(case: _Case, why: str) -> Next:
    withdrawn = case.to("withdrawing", within=case.limits.requeue_timeout, holds=True).move
    return _same(replace(withdrawn, refused=why), _hold(withdrawn))


def _lost(case: _Case) -> bool:
    """Whether somebody else was started on its GPUs: Slurm says that it waits for them, and so it
    is. Who is just leaving them is given a moment."""
    deadline = case.move.deadline
    released = inf if deadline is None else deadline - case.limits.start_timeout
    left = max(released, case.move.lacked_at or 0.0)
    waits = case.job.reason == "Resources" and case.now - left >= LEAVING
    return waits and not case.has_room(promised=True)


def _overdue(case: _Case) -> bool:
    """Whether it should have started by now; what it waited for others to leave does not count."""
    lacked = case.move.lacked_at
    return case.late and (lacked is None or not 0 <= case.now - lacked < case.limits.start_timeout)


def _withdrawing(case: _Case) -> Next:
    if case.job.state == "RUNNING":
        return _runs(case)
    if case.job.state != "PENDING":
        return _end(case.move, f"abandoned: the job is {case.job.state.lower()}", holds=False)
    if case.job.held and case.job.reason == BY_OWNER:
        return _end(case.move, f"abandoned: it was held again ({BY_OWNER})", holds=False)
    if case.job.held and (case.late or not case.job.required_nodes):
        return _end(case.move, f"{_not_started(case)}; held", holds=True)
    if case.late:
        return _end(case.move, f"{_not_started(case)}; Slurm does not hold it", holds=False)
    return _same(case.move, _hold(case.move))


def _not_started(case: _Case) -> str:
    why = case.move.refused
    if about(why):
        return f"failed: Slurm does not start the job on {case.where} ({why})"
    within = f"within {lasting(case.limits.start_timeout)}"
    said = f" ({why})" if why not in UNTRIED else ""
    return f"expired: the job did not start on {case.where} {within}{said}"


def _runs(case: _Case) -> Next:
    move, job = case.move, case.job
    assert move.target is not None, "only a preempt has none"
    outcome = "done"
    if job.gpus_on and dict(job.gpus_on) != dict(move.target.gpus_on):
        parts = ", ".join(f"{gpus} on {node}" for node, gpus in sorted(job.gpus_on.items()))
        outcome = f"changed: the job runs with {parts}"
    elif bool(job.shares) != bool(move.shards) and job.gpus_on:
        outcome = f"changed: the job runs with {'shards of a GPU' if job.shares else 'whole GPUs'}"
    elif job.nodes and set(expand(job.nodes)) != set(move.target.nodes):
        outcome = f"changed: the job runs on {job.nodes}, not on {fold(move.target.nodes)}"
    ended = _end(move, outcome, holds=False)
    if job.held and job.reason != BY_OWNER:
        # It started while we held it: left so, its next requeue would hold it for ever.
        return Next(move, Release(move.job, job.restarts), ended.move)
    return ended


def _wait(move: MoveRecord) -> Next:
    return Next(move, None, move)


def _same(move: MoveRecord, action: Action) -> Next:
    """An action whose success Slurm itself shows: nothing more is to be written down."""
    return Next(move, action, move)


def _end(move: MoveRecord, outcome: str, *, holds: bool) -> Next:
    return _wait(replace(move, outcome=outcome, holds=holds, deadline=None))


def _hold(move: MoveRecord) -> Hold:
    return Hold(move.job, move.expected_restarts)


_STEPS: Mapping[Step, Callable[[_Case], Next]] = {
    "begun": _begun,
    "asking": _asking,
    "asked": _asked,
    "stopping": _stopping,
    "stopped": _stopped,
    "shaping": _shaping,
    "shaped": _shaped,
    "releasing": _releasing,
    "starting": _starting,
    "withdrawing": _withdrawing,
}
