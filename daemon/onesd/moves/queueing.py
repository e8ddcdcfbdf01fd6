"""Places of waiting jobs in Slurm's own queue: given, and taken away again, a few at a time.

A round decides who is to have one. Where thousands wait, to say so to Slurm takes minutes at the
writes a second that the site allows. So a round sees to the first of them only, and the ticks
behind it to the others, until the next round decides anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf

from ones.daemon.onesd.moves.restart import Mover
from ones.daemon.onesd.moves.turns import Turns
from ones.policies.model import JobId, Seconds
from ones.slurm_ext.layout import gpus_wanted
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.own_request import to_put_back
from ones.slurm_ext.snapshot import JobRecord, Snapshot
from ones.slurm_ext.whereabouts import Whereabouts


class Queueing:
    """Who is still to be put into Slurm's queue, and who to be taken out of it."""

    def __init__(self, restarts: Mover, clock: Callable[[], float]) -> None:
        self._restarts = restarts
        # Job -> Slurm's reason for its waiting, as the round saw it.
        self._into: dict[int, str] = {}
        self._out: dict[int, str] = {}
        self._turns_into, self._turns_out = Turns(clock), Turns(clock)

    @property
    def left(self) -> bool:
        """Whether there is still something to do."""
        return bool(self._into or self._out)

    def decide(
        self, snapshot: Snapshot, *, into: Collection[JobId], out: Collection[JobId]
    ) -> None:
        """What a round has decided takes the place of what was left of the last one."""
        self._into, self._out = _reasons(into, snapshot), _reasons(out, snapshot)

    def go_on(self, snapshot: Snapshot, moving: Collection[JobId], *, most: Seconds = inf) -> None:
        """See to those that come to their turn in so many seconds, once for each way."""
        where = Whereabouts(snapshot)
        for job in self._turns_out.of(self._out, most=most):
            if (record := _still(job, self._out.pop(job), snapshot, moving)) is not None:
                why = "it kept a plain job waiting whose turn it is"
                self._restarts.take_back(record, why)
        for job in self._turns_into.of(self._into, most=most):
            if (record := _still(job, self._into.pop(job), snapshot, moving)) is not None:
                own = to_put_back(record, where)
                mark = Mark.parse(record.admin_comment)
                # At no more than it asks for.
                if own is not None or (mark is not None and gpus_wanted(record) <= mark.request):
                    why = "plain jobs behind it wait, and would go first"
                    self._restarts.let_go(record, why, own=own, queued=True)


def _reasons(jobs: Collection[JobId], snapshot: Snapshot) -> dict[int, str]:
    return {job: snapshot.jobs[job].reason for job in jobs if job in snapshot.jobs}


def _still(
    job: int, reason: str, snapshot: Snapshot, moving: Collection[JobId]
) -> JobRecord | None:
    """The job, if it waits as the round saw it."""
    record = snapshot.jobs.get(job)
    if record is None or record.state != "PENDING" or job in moving:
        return None
    return record if record.reason == reason or not record.held else None
