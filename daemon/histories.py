"""What Slurm's present record of a job doesn't say: earlier runs, reports, open moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ones.daemon.learning import Learning
from ones.daemon.live_mover import LiveMover
from ones.daemon.records import Records
from ones.policies.model import Job, JobId
from ones.slurm_ext.live_moves import LiveMove
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.snapshot import JobRecord, Snapshot


class Histories:
    """Completes jobs with their past, and with what stands in the way of moving them."""

    def __init__(self, records: Records, learning: Learning, live: LiveMover) -> None:
        self._records = records
        self._learning = learning
        self._live = live

    def complete(
        self,
        jobs: Sequence[Job],
        snapshot: Snapshot,
        moves: Sequence[MoveRecord | LiveMove],
        *,
        now: float,
    ) -> list[Job]:
        moving = {move.job: move for move in moves}
        return [
            self._complete(job, snapshot.jobs[int(job.id)], moving.get(int(job.id)), now=now)
            for job in jobs
        ]

    def _complete(
        self, job: Job, record: JobRecord, move: MoveRecord | LiveMove | None, *, now: float
    ) -> Job:
        batch, batches = self._learning.batches(record)
        past = self._records.past(record, now=now)
        placement, fixed, keeps = job.placement, job.fixed, None
        if move is not None:
            # Where it is going is as good as taken, so that nothing else is planned there.
            placement = move.target or placement
            if isinstance(move, MoveRecord) and move.target is not None:
                beside = None if move.beside is None else JobId(move.beside)
                job = replace(job, share=move.shards > 0, beside=beside)
            fixed = f"{move.kind} under way"
        elif placement is not None and not fixed:
            if not record.shares and self._live.able(record):
                keeps = self._live.keeps(record)
            elif silent := self._live.silent(record):
                fixed = silent
            elif not self._learning.ready(record):
                fixed = "it has not yet said that it can save a checkpoint"
        return replace(
            job,
            submitted=past.submitted,
            executed=past.executed,
            waited=past.waited,
            batch=batch,
            batches=batches,
            placement=placement,
            keeps=keeps,
            fixed=fixed or self._records.not_resizable(record),
        )
