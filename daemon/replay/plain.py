"""The plain jobs of a replay: a plain scheduler starts them as they ask, and nobody moves them.

Unlike `onesd` it hears of every submission and every end at once, as Slurm does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

import numpy as np

from ones.daemon.replay.faults import ReplayError
from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.recorded import Recorded, speedup
from ones.policies.forecast import type_of
from ones.policies.model import Job, JobId, Node, Placement, Policy, Problem, Seconds
from ones.policies.rigid import PlainJob
from ones.policies.shapes import own_forms
from ones.policies.slurm.ledger import Ledger
from ones.policies.slurm.policy import Slurm
from ones.policies.slurm.priority import Factors

SCHEDULERS = frozenset({"slurm", "fifo"})  # policies that start jobs as asked and move nobody
AGAIN: Seconds = 30.0  # from one pass of the scheduler to the next, while it may still start some
FOR_ROOM = ("None", "Priority", "Resources")  # Slurm's reasons of jobs that wait for nothing else
CALM: Seconds = 300.0  # the same where it started nobody the last time: priorities change as well
LONGEST: Seconds = 1e9  # a job that takes longer never ends


def moves_nobody(policy: str) -> bool:
    """Whether the policy of that name, settings or not, is a plain scheduler."""
    return policy.split(":", 1)[0] in SCHEDULERS


@dataclass(slots=True)
class Elsewhere:
    """A running job in onesd's hands, as the plain scheduler sees it."""

    job: Job
    until: Seconds = inf  # when it gives its GPUs back


@dataclass(slots=True, kw_only=True)
class PlainJobs:
    """Who waits and who runs. The scheduler is a policy that is asked about these jobs alone."""

    nodes: Mapping[str, Node]
    scheduler: Policy
    rng: np.random.Generator
    coming: deque[SimulatedJob]  # by submission
    clock: Callable[[], float]  # of CPU seconds
    tiers: Mapping[str, int] = field(default_factory=dict)  # of partitions
    restart_seconds: Seconds = 0.0  # what a start takes, where no recorded duration has it in it
    waiting: dict[JobId, SimulatedJob] = field(default_factory=dict)
    running: dict[JobId, SimulatedJob] = field(default_factory=dict)
    lent: dict[JobId, Seconds | None] = field(default_factory=dict)
    """Elastic jobs that wait here, in the scheduler's order; with when it has started them."""
    ended: int = 0
    memory: object = None  # of the scheduler
    _seen: dict[JobId, Job] = field(default_factory=dict)
    _ends: list[tuple[Seconds, JobId]] = field(default_factory=list)  # a heap
    _held: dict[str, int] = field(default_factory=dict)
    _reasons: dict[JobId, str] = field(default_factory=dict)  # why each waits
    _shares: Mapping[tuple[str, str], float] | None = None  # fair-share factors, as last looked up
    _again: Seconds = inf  # when the scheduler is asked next although nothing has happened
    asked: list[tuple[Seconds, int, Seconds]] = field(default_factory=list)
    """When the scheduler was asked, about how many jobs, and the CPU seconds that it took."""

    @property
    def over(self) -> bool:
        return not (self.coming or self.waiting or self.running)

    def taken(self) -> Mapping[str, int]:
        """GPUs that they hold, by node."""
        return self._held

    def holding(self) -> list[Job]:
        """Those that run."""
        return [self._seen[id_] for id_ in self.running]

    def queue(self) -> list[Job]:
        """Those that wait; no elastic ones."""
        return [self._seen[id_] for id_ in self.waiting if id_ not in self.lent]

    def questions(self, stopped: Collection[JobId]) -> list[PlainJob]:
        """Those that hold GPUs, or wait for them and nothing else, as onesd sees them: not for a
        limit, which Slurm tells of only once it has found nodes (`stopped`)."""
        told = self.scheduler.name == "slurm"
        there = [self._seen[id_] for id_ in self.running]
        there += [
            job
            for job in self.queue()
            if job.id not in stopped and (not told or self._reasons.get(job.id, "None") in FOR_ROOM)
        ]
        priorities = self.memory.get("priority", {}) if isinstance(self.memory, dict) else {}
        return [
            PlainJob(
                id=job.id,
                submitted=job.submitted,
                gpus=job.requested,
                nodes=job.nodes,
                tier=self.tiers.get(job.partition, 0),
                priority=priorities.get(str(job.id), 0),
                shapes=own_forms(job.shapes, job.requested, job.requested_nodes),
                least_nodes=max(1, job.requested_nodes),
                limit=inf if job.time_limit is None else job.time_limit,
                started=job.started,
                placement=job.placement,
            )
            for job in there
        ]

    def ordered(self, job: Job, now: Seconds) -> Job:
        """An elastic job with its place in the scheduler's order, where that has one."""
        tier = self.tiers.get(job.partition, job.tier)
        if not isinstance(self.scheduler, Slurm):
            return job if tier == job.tier else replace(job, tier=tier)
        shares = Ledger.read(self.memory).factors if self._shares is None else self._shares
        self._shares = shares
        scale = Factors.of(self.scheduler.settings, tuple(self.nodes.values()))
        priority = scale.priority(job, self.scheduler.partition(job), shares, now)
        return replace(job, tier=tier, priority=priority)

    def lend(self, job: SimulatedJob) -> None:
        """An elastic job that waits is left to the scheduler, at its own request."""
        self.lent[job.id] = None
        self.waiting[job.id] = job
        self._seen[job.id] = job.as_seen()

    def reclaim(self, job: JobId) -> None:
        """The job is started by onesd after all."""
        if job in self.lent:
            del self.lent[job], self.waiting[job], self._seen[job]

    def back(self) -> dict[JobId, Seconds]:
        """The lent jobs that the scheduler has started, and when; they are elastic again."""
        found = {id_: at for id_, at in self.lent.items() if at is not None}
        for id_ in found:
            del self.lent[id_]
            job = self.running.pop(id_)
            del self._seen[id_]
            for name, gpus in job.placement.gpus_on if job.placement else ():
                self._held[name] -= gpus
        return found

    def admit(self, now: Seconds) -> bool:
        """Whoever was submitted by now waits from now on; whether there was anybody."""
        before = len(self.waiting)
        while self.coming and self.coming[0].trace.submitted <= now:
            job = self.coming.popleft()
            self.waiting[job.id] = job
            self._seen[job.id] = job.as_seen()
        return len(self.waiting) > before

    def run(self, now: Seconds, until: Seconds, others: Sequence[Elsewhere]) -> Seconds:
        """From now until then everything that happens to them; when the last of it did."""
        self.admit(now)
        self._start(now, others)
        leaving = sorted(one.until for one in others if now < one.until <= until)
        at = now
        while True:
            submitted = self.coming[0].trace.submitted if self.coming else inf
            ends = self._ends[0][0] if self._ends else inf
            following = min(submitted, ends, leaving[0] if leaving else inf, self._again)
            if following > until or following == inf:
                return at
            at = following
            while leaving and leaving[0] <= at:
                leaving.pop(0)
            while self._ends and self._ends[0][0] <= at:
                self._end(heappop(self._ends)[1], at)
            calm = not self.admit(at) and at == self._again
            self._start(at, others, calm=calm)

    def reason(self, id_: JobId) -> str:
        """Why it waits, as Slurm says it; '' where the scheduler gives no reason."""
        return self._reasons.get(id_, "")

    def stuck(self) -> SimulatedJob | None:
        """One that would wait for ever, with nobody else there."""
        return None if self.running or self.coming else next(iter(self.waiting.values()), None)

    def _start(self, now: Seconds, others: Sequence[Elsewhere], *, calm: bool = False) -> None:
        """Whomever the scheduler starts now; `calm`: nothing has happened since it was asked."""
        there = [one.job for one in others if one.until > now]
        self._again = inf
        if not self.waiting or not self._room(there):
            return
        begun = self.clock()
        jobs = (*there, *(self._seen[id_] for id_ in (*self.running, *self.waiting)))
        problem = Problem(now=now, nodes=tuple(self.nodes.values()), jobs=jobs, outlooks={})
        plan, self.memory = self.scheduler.plan(problem, self.memory, self.rng)
        self._shares = None
        self.asked.append((now, len(jobs), self.clock() - begun))
        self._reasons |= {
            id_: why for id_, why in plan.idle.items() if why != "nothing has changed"
        }
        for id_, given in plan.assignments.items():
            if id_ in self.waiting:
                self._begin(id_, given.placement, now)
                calm = False
        if self.waiting:
            self._again = now + (CALM if calm else AGAIN)

    def _room(self, there: Sequence[Job]) -> bool:
        """Whether there are as many free GPUs as the least of the waiting asks for."""
        free = sum(node.gpus - node.taken for node in self.nodes.values() if node.usable)
        free -= sum(self._held.values())
        free -= sum(job.placement.gpus for job in there if job.placement is not None)
        return free >= min(job.trace.requested for job in self.waiting.values())

    def _begin(self, id_: JobId, placement: Placement, now: Seconds) -> None:
        job = self.waiting.pop(id_)
        self._reasons.pop(id_, None)
        self.running[id_] = job
        kind = type_of(placement, self.nodes)
        job.place(placement, kind, now)
        for name, gpus in placement.gpus_on:
            self._held[name] = self._held.get(name, 0) + gpus
        if id_ in self.lent:
            self.lent[id_] = now
            self._seen[id_] = replace(self._seen[id_], placement=placement, started=now)
            return
        job.waited = now - job.trace.submitted
        took = seconds_as_asked(job, placement, kind, self.restart_seconds)
        self._seen[id_] = replace(
            self._seen[id_], placement=placement, started=now, fixed="a plain job"
        )
        heappush(self._ends, (now + took, id_))

    def _end(self, id_: JobId, now: Seconds) -> None:
        job = self.running.pop(id_)
        del self._seen[id_]
        placement = job.placement
        if placement is not None:
            for name, gpus in placement.gpus_on:
                self._held[name] -= gpus
        job.end(now)
        self.ended += 1


def seconds_as_asked(
    job: SimulatedJob, placement: Placement, gpu_type: str, restart_seconds: Seconds
) -> Seconds:
    """How long a job takes there that nobody touches. A recorded duration has its start in it."""
    application = job.trace.application
    if isinstance(application, Recorded):
        return application.seconds * speedup(application.gpus) / speedup(placement.gpus)
    own = application.restart_seconds
    endless = replace(job.trace, time_limit=None)
    alone = SimulatedJob(id=job.id, trace=endless, shapes=job.shapes, nodes=job.nodes)
    alone.place(placement, gpu_type, 0.0)
    alone.pause = restart_seconds if own is None else own
    alone.advance(0.0, LONGEST, lambda _: None)
    if alone.finished is None:
        raise ReplayError(
            f"job {job.id} ({job.trace.name!r}) never ends on the {placement.gpus} GPUs it asks"
            " for; take it out of the trace"
        )
    return alone.finished
