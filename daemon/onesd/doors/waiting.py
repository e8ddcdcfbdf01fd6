"""Why a job waits, as those read it who ask."""

from __future__ import annotations

from typing import Any

from ones.daemon.onesd.outcome import Round
from ones.daemon.times import hour
from ones.policies.model import Job
from ones.policies.prospects import NEVER, Prospect
from ones.policies.words import OTHERS_GAIN_MORE
from ones.slurm_ext.elastic import begins_later


class Waits:
    """Why the jobs of a round wait; `now`: when that is asked."""

    def __init__(self, last: Round, now: float) -> None:
        self._last = last
        self._now = now
        # They wait for nothing else.
        self._starts = {each.job for each in last.decisions if each.kind == "start"}
        self._words: dict[int, str] = {}  # by the prospect, which thousands may have in common

    def prospect(self, job: Job) -> Prospect | None:
        """What would have to change for a job that waits."""
        prospects = self._last.prospects
        return None if prospects is None or job.id in self._starts else prospects.of(job)

    def why(self, job: Job, found: Prospect | None) -> str:
        """The policy's reason, and what the job needs and when that first comes free.

        Where the policy says no more than that others have the GPUs, only what would change that.
        """
        last = self._last
        record = last.snapshot.jobs.get(int(job.id))
        if not job.startable and record is not None and record.state == "PENDING":
            if record.held and begins_later(record, last.at):
                return f"it begins at {hour(record.eligible, self._now)}, as its owner wants"
            return f"waits in Slurm itself ({record.reason or 'no reason given'}), not for onesd"
        reason = last.notes.get(job.id, "")
        if found is None:
            return reason
        if id(found) not in self._words:
            self._words[id(found)] = found.words(lambda left: hour(last.at + left, self._now))
        needs = self._words[id(found)]
        return needs if reason in ("", OTHERS_GAIN_MORE) else f"{reason}; {needs}"


def as_json(last: Round, found: Prospect | None) -> dict[str, Any] | None:
    """The same in numbers."""
    if found is None:
        return None
    first = found.first
    sure = first is not None and first.left < NEVER
    return {
        "gpus": found.gpus,
        "job": first.job if first is not None and sure else None,
        "at": last.at + first.left if first is not None and sure else None,
    }
