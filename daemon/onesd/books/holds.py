"""The tables `holds` and `unanswered`: which jobs onesd holds, and held. ones-release reads them.

What is written here decides whose hold a hold is: see ones.slurm_ext.holding.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ones.daemon.onesd.books.store import Store
from ones.slurm_ext.elastic import waits_of
from ones.slurm_ext.holding import LATE, SINCE, STALE, Hold, Holds, held_by_slurm, held_for_onesd
from ones.slurm_ext.lapse import Lapse
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.snapshot import JobRecord, Snapshot

log = logging.getLogger(__name__)


class HoldsBook:
    """What we wrote down about holding jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(
        self,
        job: int,
        restarts: int,
        *,
        released: bool,
        now: float,
        freed: bool | None = None,
        pinned: bool = False,
        queued: bool = False,
        by_us: bool = False,
    ) -> None:
        """The job is, or is about to be, held by us; or `released`: it isn't any more.

        `freed`: nobody has held it since it was queued, so that its owner may; None: as it was.
        `pinned`: it is released onto nodes of our choice. `queued`: it is released into Slurm's
        own queue, from which we may take it back. `by_us`: it is we who release it.
        """
        row: dict[str, Any] = {"job": job, "restarts": restarts, "since": now}
        row["queued"] = int(queued)
        row["released"] = now if released else None
        row["let_go"] = now if by_us else None
        if released or freed is not None:
            row["freed"] = int(released or bool(freed))
        if pinned:
            row["pinned"] = 1
        self._store.put("holds", [row])

    def asked(self, job: int, own: Mapping[str, str]) -> None:
        """The job asks for a shape of ours: what an update says for its own, for ones-release."""
        self._store.write("UPDATE holds SET own = ? WHERE job = ?", json.dumps(own), job)

    def sending(self, job: int, restarts: int, *, now: float) -> tuple[Any, ...] | None:
        """A hold is about to be sent; what to give to `answered` once Slurm has answered."""
        before = self._store.row("SELECT job, restarts, at FROM unanswered WHERE job = ?", job)
        self._store.put("unanswered", [{"job": job, "restarts": restarts, "at": now}])
        return None if before is None else tuple(before)

    def answered(self, job: int, before: tuple[Any, ...] | None) -> None:
        """Slurm has done it, or has refused: nothing of this hold can strike later."""
        if before is None:
            self._store.write("DELETE FROM unanswered WHERE job = ?", job)
        else:  # an earlier one still may
            _, restarts, at = before
            self._store.put("unanswered", [{"job": job, "restarts": restarts, "at": at}])

    def take(
        self,
        snapshot: Snapshot,
        moving: Collection[int],
        *,
        now: float,
        met: Collection[int] = (),
        lapse: Lapse | None = None,
    ) -> None:
        """Learn from Slurm's records who holds jobs that aren't `moving`, or that nobody does.

        `met` are those that were seen for the first time. After a `lapse` Slurm may have forgotten
        that we released a job.
        """
        with self._store.transaction():
            if self._store.fact(SINCE) is None:
                self._begin(snapshot, moving, now=now)
            self._forget_before(snapshot, met, now=now)
            if lapse is not None:
                self._hold_again(snapshot, moving, lapse, now=now)
            self._learn(snapshot, moving, now=now)

    def _learn(self, snapshot: Snapshot, moving: Collection[int], *, now: float) -> None:
        holds = self.of(snapshot.jobs, now=now)
        for job in snapshot.jobs.values():
            if not job.marked or job.state != "PENDING" or job.id in moving:
                continue
            if "COMPLETING" in job.flags:
                continue  # it isn't back in the queue yet: `submitted` is of its last run
            row = holds.rows.get(job.id)
            if job.held:
                self._see_held(job, holds, now=now)
            elif row is not None and not row.released and 0 <= now - row.at < STALE:
                continue  # held just now: what Slurm says of it may be what was so before
            elif row is None or not row.counts(job.restarts) or not row.freed:
                mark = Mark.parse(job.admin_comment)
                if row is not None or mark is None or mark.held:
                    self.keep(job.id, job.restarts, released=True, now=now)
            elif not row.released:
                log.info("job %d: released by somebody else", job.id)
                self.keep(job.id, row.restarts, released=True, now=now)

    def _hold_again(
        self, snapshot: Snapshot, moving: Collection[int], lapse: Lapse, *, now: float
    ) -> None:
        """Who is held as before our release waits for us again, or he would for ever."""
        rows = self.of(snapshot.jobs, now=now).rows
        for job in snapshot.jobs.values():
            row = rows.get(job.id)
            if row is None or not (job.marked and job.held and job.state == "PENDING"):
                continue
            if job.id in moving or "COMPLETING" in job.flags:
                continue
            if lapse.undoes_release(row, waits_of(job, Mark.parse(job.admin_comment))):
                log.warning("job %d: Slurm has lost our release; it is held as before", job.id)
                self.keep(job.id, job.restarts, released=False, now=now, freed=False)

    def _begin(self, snapshot: Snapshot, moving: Collection[int], *, now: float) -> None:
        """The first look: whoever runs now is held by nobody, whatever an earlier database said."""
        with self._store.transaction():
            earlier = self._store.row("SELECT min(at) AS at FROM rounds")
            at = earlier["at"] if earlier is not None else None
            if at is None:
                # Whoever is there was queued before, though our clock be behind slurmctld's.
                at = max([now, *(job.submitted + 1.0 for job in snapshot.jobs.values())])
            self._store.set_fact(SINCE, at)
            rows = self.of(snapshot.jobs, now=now).rows
            for job in snapshot.jobs.values():
                runs = job.marked and job.state == "RUNNING" and "COMPLETING" not in job.flags
                if runs and job.id not in rows and job.id not in moving:
                    self.keep(job.id, job.restarts, released=True, now=now)

    def _forget_before(self, snapshot: Snapshot, met: Collection[int], *, now: float) -> None:
        """What ones-release wrote of an earlier job of the same number says nothing of this one.

        Told by the clock, so only as the job is first seen: a clock may be wrong for a while.
        """
        rows = self.of(set(met) & snapshot.jobs.keys(), now=now).rows
        for number in rows:
            job = snapshot.jobs[number]
            if not job.restarts and rows[number].before(job.submitted):
                self._store.write("DELETE FROM holds WHERE job = ?", number)

    def _see_held(self, job: JobRecord, holds: Holds, *, now: float) -> None:
        """Write down a hold that must be ours, or another's, though nothing says so yet."""
        known = holds.of(job.id, job.submitted)
        row = known.hold
        if row is None and held_by_slurm(job.reason):
            # Whoever holds it next is somebody else, though it was held for us at submission.
            self.keep(job.id, job.restarts, released=True, now=now)
            return
        if row is not None and not row.released and row.counts(job.restarts):
            return
        lost = known.lost and row is None and job.restarts > 0
        if known.unanswered is None and not lost:
            return
        if not held_for_onesd(waits_of(job, Mark.parse(job.admin_comment)), known):
            if lost:  # so that an administrator's hold on top of this one isn't taken for ours
                self.keep(job.id, job.restarts, released=True, now=now)
            return
        if known.unanswered is not None:
            log.warning("job %d: held by a command of ours that Slurm did not answer", job.id)
        else:
            log.warning("job %d: requeued and held before the database was made", job.id)
        self.keep(job.id, job.restarts, released=False, now=now)

    def of(self, jobs: Iterable[int], *, now: float) -> Holds:
        """All that is written down of these jobs, as of now."""
        rows = self._store.of_jobs("holds", jobs)
        sent = self._store.rows("SELECT job, restarts, at FROM unanswered")
        return Holds(
            rows={
                row["job"]: Hold(
                    restarts=row["restarts"],
                    released=row["released"] is not None,
                    freed=bool(row["freed"]),
                    pinned=bool(row["pinned"]),
                    queued=bool(row["queued"]),
                    let_go=row["let_go"],
                    at=max(row["since"], row["released"] or 0.0),
                )
                for row in rows
            },
            unanswered={row["job"]: row["restarts"] for row in sent if 0 <= now - row["at"] < LATE},
            since=self._store.fact(SINCE) or 0.0,
        )
