"""Who keeps a pending job from starting; onesd and ones-release judge by the same rules.

Slurm says how a job is held, not by whom. `JobHeldUser` is a hold from submission, job_submit.lua's
or the user's own, or one that its user has put on it since. `JobHeldAdmin` is an administrator's,
or ours. `job requeued in held state` is of whoever requeued it. So onesd writes its holds down
before it sends them, and what it sees of others'; what is not written down is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from ones.slurm_ext.snapshot import UNTRIED

SINCE = "holds_since"  # the fact in onesd's database: when it began to know of holds
LATE = 600.0  # seconds within which a hold that nobody has answered may still strike
STALE = 30.0  # seconds for which Slurm's answer may be older than a hold of ours
CLOCK_SKEW = 60.0  # seconds that onesd's clock may run behind slurmctld's
REQUEUE_WAIT = 121.0 + 60.0  # seconds for which Slurm lets a requeued job wait, and for its end
BY_OWNER, BY_ADMINISTRATOR = "jobhelduser", "jobheldadmin"
BAD_SHAPE = "BadConstraints"  # with this reason Slurm itself holds a job that can't run anywhere
REQUEUED = "job requeued in held state"
_RESERVATION_OVER = re.compile(r"reservation ?deleted|reservation .* was deleted")
_LIKE_OURS = frozenset({BY_ADMINISTRATOR, REQUEUED})


@dataclass(frozen=True, slots=True)
class Hold:
    """What onesd wrote down about holding a job."""

    restarts: int  # of the job when onesd decided on it: one less than once it is requeued
    released: bool
    freed: bool = False  # nobody held it since it was queued: its owner may hold it now
    pinned: bool = False  # onesd has released it onto nodes of its choice
    queued: bool = False  # onesd has given it a place in Slurm's own queue
    let_go: float | None = None  # when onesd itself released it; None: it did not
    at: float = inf  # when this was written

    def counts(self, restarts: int) -> bool:
        """Whether it was written of the present run of the job, or of the wait for it."""
        return self.restarts <= restarts <= self.restarts + 1

    def before(self, submitted: float) -> bool:
        """Whether it was written before a job that never ran was submitted, so of another one.

        Slurm gives a job's number away again.
        """
        return self.at < submitted - CLOCK_SKEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is written down of the holds of one job."""

    hold: Hold | None = None
    unanswered: int | None = None  # the job's restarts at a hold of ours that nobody answered
    lost: bool = False  # whether more was written down once, in a database that is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How Slurm says that a marked job is pending."""

    reason: str
    restarts: int
    submitted: float = 0.0
    held_at_submission: bool = True  # its mark says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """All that is written down of holds, by job."""

    rows: Mapping[int, Hold] = field(default_factory=dict)
    unanswered: Mapping[int, int] = field(default_factory=dict)
    since: float = 0.0  # when the first was written; a job queued before may have been held by us

    def of(self, job: int, submitted: float) -> Known:
        return Known(
            hold=self.rows.get(job),
            unanswered=self.unanswered.get(job),
            lost=submitted < self.since,
        )


NO_HOLDS = Holds()


def held_for_onesd(job: Waits, known: Known) -> bool:
    """Whether a pending job that is held waits for onesd, and for nobody else."""
    word = _word(job.reason)
    if "launch failed" in word or held_by_slurm(job.reason):
        return False  # Slurm itself holds it until somebody has looked
    if _came_late(job, known):
        return True
    hold, lost = known.hold, known.lost
    if hold is not None and not hold.counts(job.restarts):
        hold, lost = None, False  # of another job, or of a run before the last
    if word == BY_OWNER:
        if hold is not None:
            return not (hold.released or hold.freed)
        return job.restarts == 0 and job.held_at_submission
    if hold is not None:
        return not hold.released
    if job.restarts == 0:
        return job.held_at_submission and word != BY_ADMINISTRATOR
    return lost and word in _LIKE_OURS


def begins_by_owner(*, eligible: float, submitted: float, restarts: int) -> bool:
    """Whether it is by its owner's wish that a pending job begins no sooner.

    Slurm itself lets a requeued job, which it takes for submitted anew, wait for two minutes.
    """
    by_slurm = restarts > 0 and eligible <= submitted + REQUEUE_WAIT
    return eligible > submitted and not by_slurm


def held_like_ours(job: Waits) -> bool:
    """Whether the job is held as at its submission or as we do it, for all that Slurm says."""
    word = _word(job.reason)
    if word == BY_OWNER:
        return job.restarts == 0 and job.held_at_submission
    return word in _LIKE_OURS


def held_by_slurm(reason: str) -> bool:
    """Whether Slurm itself holds the job, because its reservation is over."""
    return _RESERVATION_OVER.fullmatch(_word(reason)) is not None


def in_doubt(job: Waits, known: Known) -> bool:
    """Whether a held job is an administrator's, or ours of a database that is gone.

    Nobody can tell: a start of it may have been withdrawn before its first run.
    """
    mine = job.restarts == 0 and job.held_at_submission and known.hold is None and known.lost
    return mine and _word(job.reason) == BY_ADMINISTRATOR and not _came_late(job, known)


def left_pinned(job: Waits, known: Known, *, held: bool, required_nodes: str) -> bool:
    """Whether Slurm can't start a job on the nodes that we chose, and nobody else sees to it.

    A job keeps asking for the nodes it was started on, and a lost one may never come back.
    """
    # Slurm itself holds a job whose nodes are none that it may have, such as one excluded since.
    if (held and job.reason != BAD_SHAPE) or not required_nodes or job.reason in UNTRIED:
        return False
    hold = known.hold
    ours = hold is not None and hold.released and hold.pinned
    return job.restarts > 0 or (ours and hold is not None and hold.counts(job.restarts))


def left_unfit(job: Waits, known: Known) -> bool:
    """Whether Slurm itself holds a job that we let go, for a form that may be of our giving."""
    hold = known.hold
    ours = hold is not None and hold.released and hold.counts(job.restarts)
    return ours and job.reason == BAD_SHAPE


def _came_late(job: Waits, known: Known) -> bool:
    """Several may have been sent, and the next run be stopped by the next of them."""
    sent = known.unanswered
    return sent is not None and sent <= job.restarts and _word(job.reason) in _LIKE_OURS


def _word(reason: str) -> str:
    return reason.replace("_", " ").lower()
