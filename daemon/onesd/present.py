"""What the last round went by, kept for those who ask what would become of one more job."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ones.daemon.config import Config
from ones.daemon.onesd.deciding import Question
from ones.policies.model import Job
from ones.slurm_ext.described import Described, NoSuchJob, beside
from ones.slurm_ext.elastic import elastic_jobs
from ones.slurm_ext.limited import Used, caps
from ones.slurm_ext.limits import SiteLimits
from ones.slurm_ext.priority import Order
from ones.slurm_ext.snapshot import JobRecord, Snapshot


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

    def waiting(self, number: int) -> tuple[Job, JobRecord] | None:
        """The elastic job of that number, if it waits."""
        record = self.snapshot.jobs.get(number)
        found = [job for job in self.question.problem.jobs if int(job.id) == number]
        if record is None or not found or found[0].placement is not None:
            return None
        return found[0], record

    def newcomer(self, asked: Described, user: str) -> Job:
        """The described job as this round would have seen it. Raises NoSuchJob."""
        record = self._record(asked, user)
        number = record.id
        alone = replace(self.snapshot, jobs={number: record})
        found, ignored = elastic_jobs(alone, limits=self.limits)
        if not found:
            raise NoSuchJob(ignored.get(number) or "it makes no elastic job here")
        job = found[0]
        if self.order is not None:
            priority = self.order.priority(record, requested=job.requested, waited=0.0)
            job = replace(job, priority=priority or 0, tier=self.order.tier(record))
        return job

    def with_caps(self, job: Job, asked: Described, user: str) -> Question:
        """The question with the site's limits as they count with this job, too."""
        problem = self.question.problem
        if not self.limits.enforced:
            return self.question
        used = Used(self.limits, beside(self.snapshot, self._record(asked, user)))
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
