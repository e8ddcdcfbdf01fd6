"""What Slurm's present record of a job doesn't say: earlier runs, reports, open moves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.books.jobs import Past
from ones.daemon.onesd.books.reports import Kept
from ones.daemon.onesd.books.starts import Refusal, without_refused
from ones.daemon.onesd.moves.live import LiveMover
from ones.policies.model import Job, JobId, Shape
from ones.slurm_ext.live_moves import LiveMove
from ones.slurm_ext.moves import KILLED, MoveRecord
from ones.slurm_ext.snapshot import JobRecord, Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the books have of all jobs: asked for at once, and not for each."""

    pasts: Mapping[int, Past]
    reports: Mapping[int, Kept]
    barred: Mapping[int, list[Refusal]]
    refusals: Mapping[tuple[int, int], str]
    killed: frozenset[int]  # jobs of which the signal for a checkpoint has ended a run
    _fewest: dict[int, tuple[tuple[Shape, ...], int]] = field(default_factory=dict)

    def fewest(self, job: Job) -> int:
        """The fewest GPUs of its shapes; by their identity, since most jobs share theirs."""
        found = self._fewest.get(id(job.shapes))
        if found is None:
            least = min((shape.gpus for shape in job.shapes), default=0)
            found = self._fewest[id(job.shapes)] = (job.shapes, least)
        return found[1] or job.sizes.least

    def refused(self, record: JobRecord) -> str:
        """Why this run of a job is left alone: it was asked for a checkpoint and gave none."""
        if record.id in self.killed and record.state != "PENDING":
            return f"not resizable; {KILLED}"
        refusal = self.refusals.get((record.id, record.restarts), "")
        return f"not resizable in this run; {refusal}" if refusal else ""


class Histories:
    """Completes jobs with their past, and with what stands in the way of moving them."""

    def __init__(self, books: Books, live: LiveMover) -> None:
        self._store = books.store
        self._records = books.jobs
        self._learning = books.reports
        self._journal = books.journal
        self._starts = books.starts
        self._live = live

    def complete(
        self,
        jobs: Iterable[Job],
        snapshot: Snapshot,
        moves: Iterable[MoveRecord | LiveMove],
        *,
        now: float,
    ) -> tuple[tuple[Job, ...], dict[int, str]]:
        """The jobs with their past; and those whose own records make no sense, with why not."""
        moving = {move.job: move for move in moves}
        jobs = list(jobs)
        records = [snapshot.jobs[int(job.id)] for job in jobs]
        refusals = self._journal.refusals()
        known = _Known(
            pasts=self._records.pasts(records, now=now),
            reports=self._learning.kept(),
            barred=self._starts.barred(now=now),
            refusals=refusals,
            killed=frozenset(job for (job, _), why in refusals.items() if why == KILLED),
        )
        complete, spoilt = [], {}
        # What is heard of live jobs is written down on the way, all at once.
        with self._store.transaction():
            for job, record in zip(jobs, records, strict=True):
                number = record.id
                try:
                    complete.append(self._complete(job, record, moving.get(number), known))
                except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as fault:
                    log.exception("job %d: what is kept of it makes no sense", number)
                    spoilt[number] = f"what is kept of it makes no sense: {fault}"
        return tuple(complete), spoilt

    def _complete(
        self, job: Job, record: JobRecord, move: MoveRecord | LiveMove | None, known: _Known
    ) -> Job:
        least = known.fewest(job)
        batch, batches = self._learning.batches(record, least=least, kept=known.reports)
        past = known.pasts[record.id]
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
                # What it has is not asked of Slurm again, whoever has reserved the nodes since.
                # Else it stays the set that others share: to compare equal ones takes longer.
                if not job.nodes.issuperset(placement.nodes):
                    there = frozenset(placement.nodes)
                    job = replace(job, nodes=job.nodes | there, closed=there - job.nodes)
            elif silent := self._live.silent(record):
                fixed = silent
            elif (report := self._learning.report(record, known.reports)) is None:
                fixed = "it has not yet said that it can save a checkpoint"
            elif not report.checkpoints:
                fixed = "it says that it saves no checkpoint now"
        if move is None and not fixed and (placement or job.startable):
            refusals = known.barred.get(record.id, [])
            if keeps is not None:  # where it may grow it finds out without being stopped
                refusals = [one for one in refusals if one.what == "size"]
            job, fixed = without_refused(job, refusals)
        return replace(
            job,
            submitted=past.submitted,
            executed=past.executed,
            limit_used=past.limit_used,
            waited=past.waited,
            batch=batch,
            batches=batches,
            placement=placement,
            keeps=keeps,
            fixed=fixed or known.refused(record),
        )
