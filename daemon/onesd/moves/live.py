"""Carries out live moves: journals their steps, gives their orders out, ends satellites left over.

What a step is, and when it is due, is decided by ones.slurm_ext.live_moves, which is pure. Nothing
is done to Slurm here but two things: nodes that a job's launcher has left are given back, and
satellites whose job does not want them any more are cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ones.daemon.onesd import audit
from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.books.heard import Told
from ones.daemon.onesd.books.journal import LIVE
from ones.daemon.onesd.books.reports import fits
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves import telling
from ones.daemon.onesd.moves.odd import SENSELESS, OddMoves
from ones.daemon.wire import Live, LiveOrder, LivePart
from ones.policies.model import JobId, Placement
from ones.policies.moves import Move
from ones.policies.words import lasting
from ones.slurm_ext.actions import GiveBack
from ones.slurm_ext.actuator import Actuator, JobChanged
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.hostlists import fold
from ones.slurm_ext.layout import gpu_type_wanted
from ones.slurm_ext.live_moves import (
    LiveEvidence,
    LiveLimits,
    LiveMove,
    Said,
    advance,
    core,
    passed_over,
    promised,
)
from ones.slurm_ext.satellites import Tie, stale
from ones.slurm_ext.snapshot import NOT_DONE, JobRecord, Snapshot

log = logging.getLogger(__name__)
SILENCE = 30.0  # seconds without a word after which a launcher is not relied on
PATIENCE = 120.0  # seconds without one after which the job is taken for one that must restart
GRACE = 20.0  # seconds that a satellite may be unknown to its job
AGAIN = 10.0  # seconds between two attempts to end a satellite
STEPS_A_TICK = 4


class LiveMover:
    """The journal of live moves under way, and what follows from it."""

    def __init__(
        self,
        books: Books,
        actuator: Actuator,
        metrics: Metrics,
        *,
        limits: LiveLimits,
        clock: Callable[[], float],
    ) -> None:
        self._store = books.store
        self._journal = books.journal
        self._live_runs = books.live_runs
        self._leases = books.leases
        self._starts = books.starts
        self._heard = books.heard
        self._reports = books.reports
        self._actuator = actuator
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._odd = OddMoves(metrics, clock=clock)
        self._since = clock()
        self._cancelled: dict[int, float] = {}
        self._empty: dict[tuple[int, str], float] = {}  # a job's node -> since when
        self._unknown: dict[int, float] = {}  # satellite -> since when its job does not know it

    def open(self, of: Iterable[int] | None = None) -> list[LiveMove]:
        """The live moves under way, oldest first; `of` these jobs alone."""
        return self._journal.open(LiveMove.from_json, live=True, of=of)

    def able(self, record: JobRecord) -> bool:
        """Whether the job can be resized live now, by the fresh word of its launcher."""
        said = self._said(record)
        if said is not None:
            heard = said.at if said.able else 0.0
            self._live_runs.keep(record.id, record.restarts, heard=heard)
        return said is not None and said.able

    def keeps(self, record: JobRecord) -> Placement:
        """The part of its own allocation that a job which is able can't give back."""
        said = self._said(record)
        return core(record, {} if said is None else said.own)

    def silent(self, record: JobRecord) -> str:
        """Why a job that could be resized live a moment ago is left alone now, or ''.

        After a start of ours the agents need a moment to tell us: it isn't restarted for that.
        """
        heard = self._live_runs.heard(record.id, record.restarts)
        if not heard:
            return ""
        quiet = self._clock() - max(heard, self._since)
        return f"its launcher was not heard for {lasting(quiet)}" if quiet < PATIENCE else ""

    def begin(self, move: Move, record: JobRecord, *, by: str = telling.ONESD) -> None:
        """Write a live move into the journal; the next tick gives its first order."""
        assert move.target is not None, "only a preempt has none"
        now = self._clock()
        with self._store.transaction():
            number = self._journal.new(record.id, now=now)
            begun = LiveMove(
                id=number,
                job=record.id,
                restarts=record.restarts,
                target=move.target,
                batch=move.batch,
                reason=move.reason,
                begun_at=now,
            )
            self._journal.keep(begun, now=now)
        telling.begun(move, record, kind=LIVE, by=by, number=number)

    def order(self, job: int, record: JobRecord | None) -> LiveOrder | None:
        """What the launcher of a job is to do now, as the journal has it."""
        move = next(iter(self.open([job])), None)
        if move is None or record is None:
            return None
        if move.order is None or move.step == "begun":
            return None
        return LiveOrder(
            number=move.order.number,
            restarts=move.restarts,
            keep=move.order.keep,
            add=tuple(LivePart(node=node, gpus=gpus) for node, gpus in move.order.add),
            leave=move.order.leave,
            gpu_type=gpu_type_wanted(record),
            batch=move.batch,
            patience=self._limits.order,
            withdrawn=move.step == "withdrawing",
        )

    def tick(self, snapshot: Snapshot, claimed: Mapping[str, int]) -> None:
        """Take every step that is due; `claimed` are GPUs that other kinds of moves wait for."""
        moves = self.open()
        if not moves:
            return
        free = {
            node.name: 0
            if snapshot.barred(node)
            else node.gpus - node.gpus_used - claimed.get(node.name, 0)
            for node in snapshot.nodes.values()
            if node.gpus
        }
        ended = _ended(snapshot)
        for move in moves:
            if snapshot.makes_no_sense(move.job):
                continue
            record = snapshot.jobs.get(move.job)
            try:
                evidence = LiveEvidence(
                    now=self._clock(),
                    listening=self._since,
                    said=None if record is None else self._said(record),
                    free=free,
                    ended=ended.get(move.job, {}),
                )
                self._advance(move, record, evidence)
            except SENSELESS as fault:
                if self._odd.failed(move.id, move.job, fault):
                    why = f"abandoned: its steps make no sense ({fault!r})"
                    self._record(move, replace(move, outcome=why[:300], deadline=None), record)
            else:
                self._odd.went_on(move.id)
            if record is not None:
                for satellite in passed_over(move, record):
                    self._put_first(satellite)
                # Who came first has the first claim on what is free.
                held = record.held_on
                for node, gpus in move.target.gpus_on:
                    free[node] = free.get(node, 0) - max(0, gpus - held.get(node, 0))

    def _advance(self, move: LiveMove, record: JobRecord | None, evidence: LiveEvidence) -> None:
        for _ in range(STEPS_A_TICK):
            following = advance(move, record, evidence, self._limits)
            if following == move:
                break
            self._record(move, following, record)
            move = following
        if move.step == "giving" and not move.outcome:
            self._give_back(move)

    def _give_back(self, move: LiveMove) -> None:
        """Have Slurm take the nodes back; what it says of the job next tells whether it has."""
        assert move.order is not None, "only `begun` has none"
        action = GiveBack(job=move.job, restarts=move.restarts, nodes=move.order.leave)
        if self._tried(f"job {move.job}", lambda: self._actuator.perform(action)):
            log.info("job %d: gave back %s", move.job, fold(move.order.leave))

    def _put_first(self, satellite: int) -> None:
        act = self._actuator.put_satellite_first
        self._tried(f"satellite {satellite}", lambda: act(satellite))

    def _tried(self, whom: str, act: Callable[[], object]) -> bool:
        """Whether it was done; if not, the next tick looks again."""
        try:
            act()
        except JobChanged as fault:
            log.info("%s: %s; looked at again", whom, fault)
        except SlurmError as fault:
            self._metrics.slurm_errors.inc()
            log.warning("%s: %s; tried again", whom, fault)
        else:
            return True
        return False

    def clean(self, snapshot: Snapshot) -> None:
        """End the satellites that are left over: their job is gone, or does not know them."""
        now = self._clock()
        orders = {move.job: move.order.number for move in self.open() if move.order is not None}
        wrong = [(job, "its job does not run any more") for job in stale(snapshot)]
        for base in snapshot.jobs.values():
            told = self._told(base) if base.satellites else None
            if told is None:
                continue  # nobody knows what it wants
            live = told.received.message
            assert isinstance(live, Live)
            wrong += [
                (job, f"job {base.id} does not know it")
                for job in base.satellites
                if str(job.id) not in live.parts
                if (tie := Tie.of(job)) is None or tie.order != orders.get(base.id)
                # It may be about to come, or to leave.
                if now - self._unknown.setdefault(job.id, now) > GRACE
            ]
            for job in base.satellites:
                if str(job.id) in live.parts:
                    self._unknown.pop(job.id, None)
        for job, why in wrong:
            if 0 <= now - self._cancelled.get(job.id, -AGAIN) < AGAIN:
                continue
            self._cancelled[job.id] = now
            try:
                self._actuator.end_satellite(job.id)
            except (JobChanged, SlurmError) as fault:
                log.warning("satellite %d: %s", job.id, fault)
            else:
                audit.acted("cancel", job=job.id, user=job.user, why=f"satellite: {why}")
        self._unknown = {job: at for job, at in self._unknown.items() if job in snapshot.jobs}
        self._cancelled = {job: at for job, at in self._cancelled.items() if job in snapshot.jobs}

    def give_up_nodes(self, snapshot: Snapshot, moving: Iterable[int]) -> None:
        """Begin moves that give back nodes of jobs' own on which nothing is left of them.

        Of jobs that aren't `moving` already.
        """
        now, busy = self._clock(), set(moving)
        empty: dict[tuple[int, str], float] = {}
        for record in snapshot.jobs.values():
            said = self._said(record) if record.marked and record.id not in busy else None
            if said is None or not said.able or said.state == "working":
                continue
            fixed = dict(core(record, said.own).gpus_on)
            left = [node for node in record.gpus_on if node not in fixed and not said.own[node]]
            for node in left:
                empty[record.id, node] = self._empty.get((record.id, node), now)
            late = [node for node in left if now - empty[record.id, node] > GRACE]
            if late:
                held = {node: n for node, n in record.held_on.items() if node not in late}
                why = f"nothing of it is left on {fold(late)}"
                target = Placement.of(held)
                move = Move(job=JobId(record.id), kind="resize", target=target, reason=why)
                self.begin(move, record)
        self._empty = empty

    def promised(self, snapshot: Snapshot) -> dict[str, int]:
        """Node -> GPUs that live moves under way will give back."""
        return promised(self.open(), snapshot.jobs)

    def _told(self, record: JobRecord) -> Told | None:
        """The last word of the launcher in this run, where it is fresh."""
        told = self._heard.live(record.id)
        if told is None or not fits(told, record):
            return None
        heard = self._heard.node(told.node)
        patience = max(SILENCE, 3 * heard[1].interval if heard is not None else 0.0)
        return told if self._clock() - told.at <= patience else None

    def _said(self, record: JobRecord) -> Said | None:
        told = self._told(record)
        if told is None:
            return None
        live = told.received.message
        assert isinstance(live, Live)
        return Said(
            at=told.at,
            able=live.able,
            order=live.order,
            state=live.state,
            reason=live.reason,
            own=live.own,
        )

    def _record(self, before: LiveMove, after: LiveMove, record: JobRecord | None) -> None:
        with self._store.transaction():
            self._journal.keep(after, now=self._clock())
            if after.outcome == "done" and record is not None:
                self._leases.grow(after.job, after.target.gpus, after.batch)
            if after.outcome and after.refused:
                self._starts.failed(after.job, after.target, after.refused, now=self._clock())
        if after.order != before.order and after.order is not None:
            order = after.order
            log.info(
                "job %d: order %d: keep %s, add %s, leave %s",
                after.job,
                order.number,
                order.keep,
                order.add,
                order.leave,
            )
        if after.outcome:
            telling.ended(after.job, after.id, kind=LIVE, outcome=after.outcome)
            self._metrics.moves.labels(kind=LIVE, outcome=after.outcome.split(":")[0]).inc()
        if after.outcome == "done" and record is not None:
            self._learn(after, record)

    def _learn(self, move: LiveMove, record: JobRecord) -> None:
        told = self._told(record)
        if told is None or move.order is None:
            return
        live = told.received.message
        assert isinstance(live, Live)
        if live.order == move.order.number and live.pause is not None:
            self._reports.live_cost(record, live.pause, at=self._clock())


def _ended(snapshot: Snapshot) -> dict[int, dict[int, str]]:
    """Base -> order -> what became of a satellite that ended otherwise than in good order."""
    found: dict[int, dict[int, str]] = {}
    for job in snapshot.jobs.values():
        tie = Tie.of(job)
        if tie is not None and job.state in NOT_DONE:
            what = f"satellite {job.id} ended ({job.state})"
            found.setdefault(tie.base, {})[tie.order] = what
    return found
