"""Carries out moves, one step at a time, journaled before and after each touch of Slurm.

What a step does, and when it is due, is decided by ones.slurm_ext.moves, which is pure. A crash
between any two lines here is survived: the journal says what was meant, Slurm says what is, and
the same `advance` repeats the step or skips it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from ones.daemon.filling import Filling
from ones.daemon.inbox import Inbox
from ones.daemon.learning import Learning, fits
from ones.daemon.metrics import Metrics
from ones.daemon.move_journal import keep_move, new_move, open_moves, words
from ones.daemon.store import Store
from ones.policies.guard import Move
from ones.policies.model import Job, Placement
from ones.slurm_ext.actions import Hold, Release, Reshape
from ones.slurm_ext.actuator import Actuator, JobChanged
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.moves import Evidence, MoveLimits, MoveRecord, advance, leaving
from ones.slurm_ext.shards import alone
from ones.slurm_ext.shards import beside as beside_others
from ones.slurm_ext.snapshot import JobRecord, Snapshot

log = logging.getLogger(__name__)
STEPS_A_TICK = 8  # a move that needs no waiting is done in one tick; a loop in it can't hang us


class Mover:
    """The journal of moves under way, and the hand that advances them."""

    def __init__(
        self,
        store: Store,
        actuator: Actuator,
        inbox: Inbox,
        learning: Learning,
        metrics: Metrics,
        *,
        limits: MoveLimits,
        clock: Callable[[], float],
        filling: Filling | None = None,
    ) -> None:
        self._filling = filling
        self._store = store
        self._actuator = actuator
        self._inbox = inbox
        self._learning = learning
        self._metrics = metrics
        self._limits = limits
        self._clock = clock

    def open(self) -> list[MoveRecord]:
        """The moves under way, oldest first."""
        return [MoveRecord.from_json(text) for text in open_moves(self._store, live=False)]

    def begin(
        self,
        move: Move,
        job: Job,
        record: JobRecord,
        *,
        shards: int = 0,
        beside: int | None = None,
    ) -> None:
        """Write a move into the journal; the next tick takes its first step.

        With `shards` to so many of one GPU's, of a GPU of its own or `beside` another job.

        A new batch alone needs no steps: the job reads it from its lease by itself.
        """
        if move.kind == "tune":
            assert move.target is not None, "a tune is of a job that runs"
            self._lease(job, move.target, move.batch)
            log.info("job %d: to take batch %s: %s", record.id, move.batch, move.reason)
            return
        now = self._clock()
        with self._store.transaction():
            number = new_move(self._store, record.id, now=now)
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
            )
            keep_move(self._store, begun, now=now)
        log.info("job %d: %s to %s: %s", record.id, move.kind, words(move.target), move.reason)
        if move.target is not None:
            self._lease(job, move.target, move.batch)

    def let_go(self, record: JobRecord, why: str) -> None:
        """Release a job that is held for us although we can't handle it: it runs as a plain job."""
        try:
            self._actuator.perform(Release(job=record.id, restarts=record.restarts))
        except (JobChanged, SlurmError) as fault:
            log.warning("job %d: %s; tried again in the next round", record.id, fault)
            return
        log.info("job %d: released as a plain job: %s", record.id, why)
        self._keep_hold(record.id, record.restarts, released=True)

    def take_back(self, record: JobRecord) -> None:
        """Hold a job that waits for the nodes of its last run, so that it is planned for anew."""
        # First: held and not written down, it would be held for ever.
        self._keep_hold(record.id, record.restarts, released=False)
        try:
            self._actuator.perform(Hold(job=record.id, restarts=record.restarts))
        except (JobChanged, SlurmError) as fault:
            log.warning("job %d: %s; looked at again in the next round", record.id, fault)
            return
        log.info(
            "job %d: taken back: Slurm requeued it and can't start it on %s (%s)",
            record.id,
            record.required_nodes,
            record.reason,
        )

    def claimed(self, snapshot: Snapshot) -> dict[str, int]:
        """Node -> GPUs that jobs which are being started wait for."""
        claims: dict[str, int] = {}
        for move in self.open():
            record = snapshot.jobs.get(move.job)
            if move.target is not None and record is not None and record.state == "PENDING":
                for node, gpus in move.target.gpus_on:
                    claims[node] = claims.get(node, 0) + gpus
        return claims

    def tick(self, snapshot: Snapshot, promised: Mapping[str, int] | None = None) -> None:
        """Take every step that is due; `promised` are GPUs that other kinds of moves will free."""
        checkpoints = self._inbox.checkpoints()
        moves = self.open()
        free, coming = _free(snapshot), leaving(moves, snapshot.jobs)
        for node, gpus in (promised or {}).items():
            coming[node] = coming.get(node, 0) + gpus
        halves, together = alone(snapshot.jobs), beside_others(snapshot.jobs)
        for move in moves:
            record = snapshot.jobs.get(move.job)
            told = checkpoints.get(move.job)
            confirmed = told is not None and fits(told, record)
            evidence = Evidence(
                now=self._clock(),
                checkpoint_at=told.received.at if told is not None and confirmed else None,
                ready=record is not None and self._learning.ready(record),
                free=free,
                coming=coming,
                half_taken=halves,
                shared=move.job in together,
            )
            self._advance(move, record, evidence)

    def _advance(self, move: MoveRecord, record: JobRecord | None, evidence: Evidence) -> None:
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
                record = self._actuator.perform(action)
            except JobChanged as fault:
                log.info("job %d: %s; looked at again", move.job, fault)
                return
            except SlurmError as fault:
                self._metrics.slurm_errors.inc()
                log.warning("job %d: %s; tried again", move.job, fault)
                return
            if isinstance(action, Reshape) and action.request.why and record and self._filling:
                self._filling.written(record, action.request, now=self._clock())
            self._record(following.move, following.done)
            move = following.done

    def _with_request(self, action: Reshape, record: JobRecord) -> Reshape:
        if self._filling is None:
            return action
        request = self._filling.request(record, action.target, now=self._clock())
        return action if request is None else replace(action, request=request)

    def _record(self, before: MoveRecord, after: MoveRecord) -> None:
        if after == before:
            return
        with self._store.transaction():
            keep_move(self._store, after, now=self._clock())
            if after.holds or after.outcome:
                self._keep_hold(after.job, after.restarts, released=not after.holds)
        if after.outcome and not before.outcome:
            log.info("job %d: %s: %s", after.job, after.kind, after.outcome)
            short = after.outcome.split(":")[0]
            self._metrics.moves.labels(kind=after.kind, outcome=short).inc()

    def _keep_hold(self, job: int, restarts: int, *, released: bool) -> None:
        """Keep the table that ones-release reads: the jobs that we hold, and held."""
        now = self._clock()
        at = now if released else None
        row = {"job": job, "restarts": restarts, "since": now, "released": at}
        self._store.put("holds", [row])

    def _lease(self, job: Job, target: Placement, batch: int | None) -> None:
        row = {"job": int(job.id), "sizes": str(job.sizes), "gpus": target.gpus, "batch": batch}
        self._store.put("leases", [row])


def _free(snapshot: Snapshot) -> Mapping[str, int]:
    """GPUs that Slurm itself says are free: capacity is free only when Slurm says so."""
    return {node.name: node.gpus - node.gpus_used for node in snapshot.nodes.values() if node.gpus}
