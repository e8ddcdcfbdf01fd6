"""Carries out moves, one step at a time, journaled before and after each touch of Slurm.

What a step does, and when it is due, is decided by ones.slurm_ext.moves, which is pure. A crash
between any two lines here is survived: the journal says what was meant, Slurm says what is, and
the same `advance` repeats the step or skips it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf

from ones.daemon.onesd import audit
from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.books.reports import fits
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves import telling
from ones.daemon.onesd.moves.odd import SENSELESS, OddMoves
from ones.daemon.onesd.moves.requests import Filling
from ones.daemon.onesd.moves.turns import Turns
from ones.policies.model import Job, Placement, Seconds, Shape
from ones.policies.moves import Move
from ones.slurm_ext.actions import Action, Hold, Release, RequeueHold, Reshape, Restore, Revive
from ones.slurm_ext.actuator import Actuator, JobChanged
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.lapse import UNSAVED, Lapse, put_back
from ones.slurm_ext.moves import Evidence, MoveLimits, MoveRecord, advance, awaited, leaving
from ones.slurm_ext.own_request import own_fields
from ones.slurm_ext.reserved import left_to
from ones.slurm_ext.shards import alone
from ones.slurm_ext.shards import beside as beside_others
from ones.slurm_ext.snapshot import JobRecord, Snapshot
from ones.slurm_ext.whereabouts import Whereabouts

log = logging.getLogger(__name__)
GAP = 30.0  # seconds without a tick after which agents may have spoken to nobody
STEPS_A_TICK = 8  # a move that needs no waiting is done in one tick; a loop in it can't hang us


class Mover:
    """The journal of moves under way, and the hand that advances them."""

    def __init__(
        self,
        books: Books,
        actuator: Actuator,
        metrics: Metrics,
        *,
        limits: MoveLimits,
        clock: Callable[[], float],
        filling: Filling | None = None,
    ) -> None:
        self._filling = filling
        self._store = books.store
        self._journal = books.journal
        self._holds = books.holds
        self._leases = books.leases
        self._heard = books.heard
        self._reports = books.reports
        self._starts = books.starts
        self._actuator = actuator
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._odd = OddMoves(metrics, clock=clock)
        self._listening = self._ticked = clock()
        self._turns = Turns(clock)

    def open(self, of: Iterable[int] | None = None) -> list[MoveRecord]:
        """The moves under way, oldest first; `of` these jobs alone."""
        return self._journal.open(MoveRecord.from_json, live=False, of=of)

    def begin(
        self,
        move: Move,
        job: Job,
        record: JobRecord,
        *,
        shards: int = 0,
        beside: int | None = None,
        by: str = telling.ONESD,
    ) -> None:
        """Write a move into the journal; the next tick takes its first step. `by`: who decided.

        With `shards` to so many of one GPU's, of a GPU of its own or `beside` another job.

        A new batch alone needs no steps: the job reads it from its lease by itself.
        """
        if move.kind == "tune":
            assert move.target is not None, "a tune is of a job that runs"
            self._lease(job, move.target, move.batch)
            telling.begun(move, record, kind=move.kind, by=by, number=None)
            return
        now = self._clock()
        with self._store.transaction():
            number = self._journal.new(record.id, now=now)
            begun = MoveRecord(
                id=number,
                job=record.id,
                kind=move.kind,
                restarts=record.restarts,
                target=move.target,
                shards=shards,
                beside=beside,
                batch=move.batch,
                reason=move.reason,
                begun_at=now,
                queued=move.kind == "start" and job.queued,
                ran=sum(record.gpus_on.values()) if move.kind == "resize" else 0,
            )
            self._journal.keep(begun, now=now)
        telling.begun(move, record, kind=move.kind, by=by, number=number)
        if move.target is not None:
            self._lease(job, move.target, move.batch)

    def let_go(
        self, record: JobRecord, why: str, *, own: Shape | None = None, queued: bool = False
    ) -> None:
        """Release a job that is held for us: Slurm starts it, as a plain one.

        In its `own` shape again, where it asks for another. `queued`: until then a plan may take it
        back.
        """
        try:
            if record.state == "PENDING" and (own is not None or record.required_nodes):
                # First: held and not written down, it would be held for ever.
                self._holds.keep(record.id, record.restarts, released=False, now=self._clock())
                self._unbind(record, own, queued=queued)
            self._perform(Release(job=record.id, restarts=record.restarts))
        except (JobChanged, SlurmError) as fault:
            log.warning("job %d: %s; tried again in the next round", record.id, fault)
            return
        audit.acted("release", job=record.id, user=record.user, why=why)
        now = self._clock()
        self._holds.keep(
            record.id, record.restarts, released=True, now=now, queued=queued, by_us=True
        )

    def _unbind(self, record: JobRecord, own: Shape | None, *, queued: bool) -> None:
        """As a plain one it has its own shape, and is not bound to nodes that we once chose."""
        if own is not None:
            try:
                self._perform(Restore(job=record.id, restarts=record.restarts, shape=own))
            except SlurmUnreachable:
                raise
            except SlurmError as fault:
                if queued:  # it waits for the next plan instead
                    raise
                log.warning("job %d: let go at the size that it has: %s", record.id, fault)
            else:
                return
        if record.required_nodes:
            self._perform(Hold(job=record.id, restarts=record.restarts))

    def take_back(self, record: JobRecord, why: str) -> None:
        """Hold a job that waits in Slurm's queue, so that it is planned for anew."""
        # First: held and not written down, it would be held for ever.
        now = self._clock()
        self._holds.keep(record.id, record.restarts, released=False, now=now, freed=True)
        try:
            self._perform(Hold(job=record.id, restarts=record.restarts))
        except (JobChanged, SlurmError) as fault:
            log.warning("job %d: %s; looked at again in the next round", record.id, fault)
            return
        audit.acted("hold", job=record.id, user=record.user, why=why)

    def put_back(self, snapshot: Snapshot, lapse: Lapse) -> None:
        """Put moves, also those just done, at the step to which Slurm went back in a lapse."""
        now = self._clock()
        done = self._journal.done(MoveRecord.from_json, since=lapse.answered - UNSAVED)
        for move in (*self.open(), *done):
            if snapshot.makes_no_sense(move.job):
                continue
            job = snapshot.jobs.get(move.job)
            before = replace(move, outcome="")
            back = put_back(before, job, lapse, now=now, limits=self._limits)
            if job is None or back == before:
                continue
            log.warning(
                "job %d: Slurm went back to before its %s was %s: it is %s",
                *(move.job, move.kind, move.outcome or move.step),
                back.outcome or f"at {back.step} again",
            )
            self._record(move, back)
            if back.holds:
                restarts = min(move.restarts, job.restarts)
                self._holds.keep(move.job, restarts, released=False, now=now, freed=False)

    def claimed(self, snapshot: Snapshot) -> dict[str, int]:
        """Node -> GPUs that jobs which are being started wait for."""
        claims: dict[str, int] = {}
        for move in self.open():
            record = snapshot.jobs.get(move.job)
            if move.target is not None and record is not None and record.state == "PENDING":
                for node, gpus in move.target.gpus_on:
                    claims[node] = claims.get(node, 0) + gpus
        return claims

    def tick(
        self,
        snapshot: Snapshot,
        promised: Mapping[str, int] | None = None,
        *,
        most: Seconds = inf,
    ) -> None:
        """Take every step that is due; `promised` are GPUs that other kinds of moves will free.

        What is not come to within `most` seconds is for the next tick, which begins there.
        """
        now, moves = self._clock(), self.open()
        if not 0 <= now - self._ticked < GAP:
            self._listening = now
        self._ticked = now
        checkpoints = self._heard.checkpoints()
        free, coming = _free(snapshot), leaving(moves, snapshot.jobs)
        for node, gpus in (promised or {}).items():
            coming[node] = coming.get(node, 0) + gpus
        out = frozenset(node.name for node in snapshot.nodes.values() if snapshot.barred(node))
        halves, together = alone(snapshot.jobs), beside_others(snapshot.jobs)
        early, where = awaited(moves, snapshot.jobs, free), Whereabouts(snapshot)
        by_id = {move.id: move for move in moves}
        for number in self._turns.of(by_id, most=most):
            move = by_id[number]
            if snapshot.makes_no_sense(move.job):
                continue
            record = snapshot.jobs.get(move.job)
            told = checkpoints.get(move.job)
            report = None if record is None else self._reports.report(record)
            try:
                confirmed = told is not None and fits(told, record)
                evidence = Evidence(
                    now=self._clock(),
                    checkpoint_at=told.at if told is not None and confirmed else None,
                    reported=report is not None,
                    ready=report is not None and report.checkpoints,
                    free=free,
                    coming=coming,
                    awaited=number in early,
                    half_taken=halves,
                    shared=move.job in together,
                    out_of_service=out | self._closed(move, record, snapshot),
                    listening=self._listening,
                )
                self._advance(move, record, evidence, where)
            except SENSELESS as fault:
                if self._odd.failed(move.id, move.job, fault):
                    why = f"abandoned: its steps make no sense ({fault!r})"
                    self._record(move, replace(move, outcome=why[:300], deadline=None))
            else:
                self._odd.went_on(move.id)

    def _closed(
        self, move: MoveRecord, record: JobRecord | None, snapshot: Snapshot
    ) -> frozenset[str]:
        """Where it is to go, the nodes on which reservations let it start no more."""
        if record is None or move.target is None:
            return frozenset()
        wanted = frozenset(move.target.nodes)
        return wanted - left_to(record, wanted, snapshot).nodes

    def _advance(
        self, move: MoveRecord, record: JobRecord | None, evidence: Evidence, where: Whereabouts
    ) -> None:
        for _ in range(STEPS_A_TICK):
            following = advance(move, record, evidence, self._limits)
            # Intent first: after a crash here, `advance` finds the step begun and looks again.
            self._record(move, following.move)
            action = following.action
            if action is None:
                return
            if isinstance(action, Reshape) and record is not None:
                action = self._with_request(action, record)
            try:
                record = self._perform(action)
            except JobChanged as fault:
                log.info("job %d: %s; looked at again", move.job, fault)
                return
            except SlurmError as fault:
                self._metrics.slurm_errors.inc()
                log.warning("job %d: %s; tried again", move.job, fault)
                return
            if isinstance(action, Reshape) and action.request.why and record and self._filling:
                self._filling.written(record, action.request, now=self._clock())
            with self._store.transaction():
                if isinstance(action, Reshape) and record:
                    self._holds.asked(record.id, own_fields(record, where))
                self._record(following.move, following.done)
            move = following.done

    def _perform(self, action: Action) -> JobRecord | None:
        """Have it carried out; a hold that nobody answers may strike later, and is then ours."""
        if not isinstance(action, Hold | RequeueHold | Revive | Reshape | Restore):
            return self._actuator.perform(action)
        before = self._holds.sending(action.job, action.restarts, now=self._clock())
        try:
            record = self._actuator.perform(action)
        except SlurmUnreachable:
            raise
        except (JobChanged, SlurmError):
            self._holds.answered(action.job, before)
            raise
        self._holds.answered(action.job, before)
        return record

    def _with_request(self, action: Reshape, record: JobRecord) -> Reshape:
        if self._filling is None:
            return action
        request = self._filling.request(record, action.target, now=self._clock())
        return action if request is None else replace(action, request=request)

    def _record(self, before: MoveRecord, after: MoveRecord) -> None:
        if after == before:
            return
        if after.killed and not before.killed:
            log.warning(
                "job %d: the signal that asks for a checkpoint has ended it; it is put back into"
                " the queue",
                after.job,
            )
        with self._store.transaction():
            self._journal.keep(after, now=self._clock())
            # A start that has not begun to shape the job has not touched it: whoever held it does.
            untouched = after.kind == "start" and after.step == "begun" and not after.queued
            if not untouched and (after.holds or before.holds or after.outcome):
                self._keep_hold(before, after)
            if after.outcome and after.holds and after.refused and after.target is not None:
                now = self._clock()
                why, ran = after.refused, after.ran
                self._starts.failed(after.job, after.target, why, now=now, ran=ran)
        if after.outcome and not before.outcome:
            telling.ended(after.job, after.id, kind=after.kind, outcome=after.outcome)
            short = after.outcome.split(":")[0]
            self._metrics.moves.labels(kind=after.kind, outcome=short).inc()

    def _keep_hold(self, before: MoveRecord, after: MoveRecord) -> None:
        """Keep the table that ones-release reads: the jobs that we hold, and held."""
        starts = after.step == "starting" and not after.outcome
        by_us = after.step == "starting" and after.outcome in ("", "done")
        stops = after.step == "stopping" != before.step
        self._holds.keep(
            after.job,
            after.restarts,
            released=not after.holds,
            now=self._clock(),
            freed=False if stops else None,  # it is put back into the queue, held
            pinned=starts,
            by_us=by_us,
        )

    def _lease(self, job: Job, target: Placement, batch: int | None) -> None:
        self._leases.give(int(job.id), str(job.sizes), target, batch)


def _free(snapshot: Snapshot) -> Mapping[str, int]:
    """GPUs that Slurm itself says are free: capacity is free only when Slurm says so."""
    return {node.name: node.gpus - node.gpus_used for node in snapshot.nodes.values() if node.gpus}
