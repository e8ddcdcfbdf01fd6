"""What the last round went by, kept for those who ask what would become of one more job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ones.daemon.config import Config
from ones.daemon.onesd.deciding import Question
from ones.daemon.onesd.forecast.model import Came, Lately
from ones.policies.model import Job, JobId
from ones.policies.rigid import PlainJob
from ones.slurm_ext.described import Described, NoSuchJob, beside
from ones.slurm_ext.elastic import elastic_jobs, ranked
from ones.slurm_ext.limited import Used, caps
from ones.slurm_ext.limits import SiteLimits
from ones.slurm_ext.priority import Order
from ones.slurm_ext.snapshot import JobRecord, Snapshot

T = TypeVar("T")
WATCHED = 6 * 3600.0  # seconds for which it is remembered who came
MOST = 5000  # of them


class Diary:
    """Who came lately, as the rounds have seen it; lost with us, and soon known again."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._elastic: dict[JobId, Came] = {}
        self._plain: dict[JobId, tuple[PlainJob, float]] = {}  # with when it was last there

    def take(self, question: Question) -> Lately:
        """A round's jobs; and who has come by then."""
        problem, now = question.problem, question.problem.now
        # Not later than now: the clock may have been set back.
        begun = self._since = now if self._since is None else min(self._since, now)
        since = max(begun, now - WATCHED)
        for job in problem.jobs:
            outlook = problem.outlooks.get(job.id)
            # Who was there already when we began did not come while we watched.
            if job.submitted > since and outlook is not None:
                self._elastic[job.id] = Came(job, outlook)
        for one in question.plain or ():
            if one.submitted > since:
                self._plain[one.id] = one, now
        at = {id_: came.job.submitted for id_, came in self._elastic.items()}
        self._elastic = _latest(self._elastic, at, since)
        at = {id_: one.submitted for id_, (one, _) in self._plain.items()}
        self._plain = _latest(self._plain, at, since)
        came = [*self._elastic.values()]
        for one, seen in self._plain.values():
            ended = seen < now
            if ended and one.started is None:
                continue  # it was cancelled, or was too short to be seen
            took = seen - one.started if ended and one.started is not None else None
            came.append(Came(one, seconds=took))
        return Lately(since, tuple(sorted(came, key=lambda one: (one.job.submitted, one.job.id))))


def _latest(kept: dict[JobId, T], at: Mapping[JobId, float], since: float) -> dict[JobId, T]:
    """Those that came since then, of too many the last ones."""
    there = [id_ for id_ in kept if at[id_] >= since]
    if len(there) > MOST:
        there = sorted(there, key=lambda id_: at[id_])[-MOST:]
    return {id_: kept[id_] for id_ in there}


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A round as it was decided; never edited, only replaced."""

    round: int
    question: Question
    memory: object  # of the policy, before it
    config: Config  # with the policy that decided
    snapshot: Snapshot
    limits: SiteLimits
    order: Order | None
    lately: Lately

    def waiting(self, number: int) -> tuple[Job, JobRecord] | None:
        """The elastic job of that number, if it waits."""
        record = self.snapshot.jobs.get(number)
        found = [job for job in self.question.problem.jobs if int(job.id) == number]
        if record is None or not found or found[0].placement is not None:
            return None
        return found[0], record

    def newcomer(self, asked: Described, user: str) -> tuple[Job, JobRecord]:
        """The described job as this round would have seen it. Raises NoSuchJob."""
        record = self._record(asked, user)
        alone = replace(self.snapshot, jobs={record.id: record})
        found, ignored = elastic_jobs(alone, limits=self.limits)
        if not found:
            raise NoSuchJob(ignored.get(record.id) or "it makes no elastic job here")
        job = found[0]
        return job if self.order is None else ranked(job, record, self.order), record

    def with_caps(self, job: Job, record: JobRecord) -> Question:
        """The question with the site's limits as they count with this job, too."""
        problem = self.question.problem
        if not self.limits.enforced:
            return self.question
        used = Used(self.limits, beside(self.snapshot, record))
        found, _ = caps(used, (*problem.jobs, job), {})
        return replace(self.question, problem=replace(problem, caps=found))

    def _record(self, asked: Described, user: str) -> JobRecord:
        """Of the account and QOS of its user's latest job here, where it names none."""
        now, number = self.question.problem.now, max(self.snapshot.jobs, default=0) + 1
        record = asked.record(number, user=user, now=now, partitions=self.limits.partitions)
        theirs = [one for one in self.snapshot.jobs.values() if one.user == user]
        if not theirs:
            return record
        latest = max(theirs, key=lambda one: (one.submitted, one.id))
        return replace(
            record, account=record.account or latest.account, qos=record.qos or latest.qos
        )
