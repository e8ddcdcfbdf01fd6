"""slurmctld was started anew, or its backup took over: what was done last may be undone.

It saves its state every few seconds, and whoever comes up goes back to what was saved. A job that
onesd has just stopped is then taken for running, though nothing of it is there, until slurmd says
so, which may last half an hour; one that was just released is held as before, and one that was just
started waits. Here moves are put at the step to which Slurm went back. Nothing here touches Slurm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.elastic import waits_of
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.holding import Hold, Waits, held_like_ours
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.moves import MoveLimits, MoveRecord, Step, pinned
from ones.slurm_ext.snapshot import ENDED, JobRecord

UNSAVED = 60.0  # seconds before its last answer that slurmctld may not have saved: 5, and the disk
SETTLING = 60.0  # seconds in which what Slurm says of jobs is compared with what was done to them
_SINCE = re.compile(r"^Data since .*\(([0-9]{1,19})\)", re.MULTILINE)
_STOPPED: frozenset[Step] = frozenset(
    {"stopped", "shaping", "shaped", "releasing", "starting", "withdrawing"}
)
_RELEASED: frozenset[Step] = frozenset({"releasing", "starting", "withdrawing"})


@dataclass(frozen=True, slots=True)
class Lapse:
    """One slurmctld ended, and another was seen; both times are onesd's."""

    answered: float  # when the one before was last known to answer
    noticed: float

    def settles(self, now: float) -> bool:
        """Whether it is so recent that Slurm may be back at what was before."""
        return 0 <= now - self.noticed < SETTLING

    def undoes(self, at: float) -> bool:
        """Whether what was done at that time may be lost."""
        return self.answered - UNSAVED <= at <= self.noticed

    def undoes_release(self, hold: Hold, job: Waits) -> bool:
        """Whether a held job is one that we let go, and for which Slurm has forgotten that."""
        if hold.let_go is None or not self.undoes(hold.let_go) or not hold.counts(job.restarts):
            return False
        return held_like_ours(job)


def started(commands: Commands) -> str:
    """When the slurmctld that answers began to: another answer comes from another one.

    By its statistics, which begin anew at midnight, too; then nothing is lost. `BOOT_TIME` of a
    backup is when it began to wait. '' where that can't be told. Raises SlurmUnreachable.
    """
    try:
        return since_in(commands.run("sdiag"))
    except SlurmUnreachable:
        raise
    except SlurmError:
        return ""


def since_in(text: str) -> str:
    """The time from which the statistics of `sdiag` are, in its words; '' where it says none."""
    found = _SINCE.search(text)
    return "" if found is None else found[1]


def put_back(
    move: MoveRecord, job: JobRecord | None, lapse: Lapse, *, now: float, limits: MoveLimits
) -> MoveRecord:
    """The move at the step at which Slurm has the job; as it is where `advance` sees to it.

    It is over where Slurm has the job as it was before the move could be decided.
    """
    if job is None or not job.marked:
        return move
    following = move.kind != "start"
    to_stop = following and job.restarts == move.restarts
    again = replace(
        move, step="stopping", forgotten=True, deadline=now + limits.requeue_timeout, holds=True
    )
    if job.state in ENDED:
        # Slurm was told that the script has ended, and knows nothing of our stop, which ended it.
        failed = job.state == "FAILED" and job.ended >= lapse.answered
        stopped = move.step == "stopping" or move.step in _STOPPED
        return again if failed and to_stop and stopped else move
    ours = job.held and held_like_ours(waits_of(job, Mark.parse(job.admin_comment)))
    if _before_its_run(move, job):
        why = "abandoned: Slurm went back to before the run that it is of"
        return replace(move, outcome=why, deadline=None, holds=ours)
    stopping = job.restarts == move.restarts or "COMPLETING" in job.flags
    if following and move.step in _STOPPED and stopping:
        # Its run had ended. Whatever Slurm says, there is no work to be lost.
        return replace(again, gone=True)
    if to_stop and move.step == "stopping" and job.state == "RUNNING":
        return again
    if job.restarts != move.expected_restarts or job.state != "PENDING":
        return move
    if following and move.step not in _STOPPED and (move.step != "stopping" or job.held):
        return move
    if job.held and not ours:
        return move
    if not job.held and move.step in _RELEASED and pinned(move, job):
        return move  # its release was saved
    if not (job.held or following or move.queued):
        return move  # it was held before the move: somebody else released it
    return replace(
        move,
        step="stopped" if following else "begun",
        queued=not job.held,
        deadline=now + limits.start_timeout,
        holds=following or job.held,
    )


def _before_its_run(move: MoveRecord, job: JobRecord) -> bool:
    """Whether the run, or the wait, for which the move was decided has not begun yet."""
    waits = job.state == "PENDING" and "COMPLETING" not in job.flags
    return job.restarts < move.restarts or (
        move.kind != "start" and job.restarts == move.restarts and waits
    )
