"""What elasticity gives a job: its end, beside that of a job as rigid as its user asked for."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ones.daemon.onesd.outcome import Round
from ones.daemon.times import hour
from ones.policies.forecast import foreseeable
from ones.policies.model import Job
from ones.policies.sizes import in_gpus
from ones.policies.words import lasting


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Two predicted ends; None: nobody can tell."""

    ends: float | None  # at the size that it has; a job that waits has none
    rigid_ends: float | None
    by_now: bool  # the rigid job would have ended before the last round

    @property
    def seconds(self) -> float | None:
        """So much sooner than the rigid job; at most that, where that would have ended by now."""
        if self.ends is None or self.rigid_ends is None:
            return None
        return self.rigid_ends - self.ends


def of(last: Round, job: Job) -> Gain:
    """Of a job of the last round."""
    if last.ends is None:
        return Gain(ends=None, rigid_ends=None, by_now=False)
    due = last.ends.rigid.get(job.id)
    told = due is not None and isfinite(foreseeable(due - last.at))
    rigid = due if told else None
    by_now = rigid is not None and rigid <= last.at
    return Gain(ends=last.ends.of(job), rigid_ends=rigid, by_now=by_now)


def words(last: Round, job: Job, now: float) -> str:
    """The same in a sentence, or '' where the rigid job's end is not known."""
    gain = of(last, job)
    if gain.rigid_ends is None:
        return ""
    size = f"on {in_gpus(job.requested)}"
    then = "by now" if gain.by_now else f"about {hour(gain.rigid_ends, now)}"
    if gain.ends is None or gain.seconds is None:
        return f"were no job elastic, it would end {size} {then}"
    here = f"it ends about {hour(gain.ends, now)}"
    if abs(gain.seconds) < 60.0:
        return f"{here}, as it would {size} were no job elastic"
    least = "at least " if gain.by_now else ""
    than = "sooner" if gain.seconds > 0 else "later"
    far = f"{least}{lasting(abs(gain.seconds))} {than}"
    return f"{here}, {far} than were no job elastic ({size}, {then})"
