"""The daemon's round on a simulated cluster and a virtual clock (Pollux's world, §5.3 there).

At 0, R, 2R, ... seconds the jobs submitted so far are shown to the round; then everything advances
by R. A change of a job's placement costs a restart with its GPUs held, the first start included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np

from ones.daemon.onesd.deciding import Question, answer
from ones.daemon.replay.faults import ReplayError
from ones.daemon.replay.jobs import SimulatedJob, simulated
from ones.daemon.replay.plain import Elsewhere, PlainJobs, moves_nobody
from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.site_limits import SiteLimits
from ones.daemon.replay.site_rules import nodes_of
from ones.daemon.replay.truth import true_outlook
from ones.daemon.replay.workload import Workload
from ones.estimator.assess import Knowledge, Priors, assess, family_of
from ones.estimator.experience import Experience, GradientReport
from ones.estimator.progress import Finished
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.forecast import by_name, type_of
from ones.policies.guard import HOUR, History, Limits
from ones.policies.model import (
    Job,
    JobId,
    Node,
    Outlook,
    Policy,
    Problem,
    Seconds,
    TunesBetweenRounds,
)
from ones.policies.moves import Move
from ones.policies.rigid import Rigid
from ones.policies.slurm.settings import SlurmSettings

DAY: Seconds = 86400.0
WAKE: Seconds = 1.0  # from a submission to the round for it, or from the round before
STUCK_DAYS = 40  # in which plain jobs wait, nobody runs and nobody else will come
STUCK = 2000  # rounds in a row in which nobody gets any further, and nobody else will come
LIMITS = Limits(grace=0.0, exempt=0.0, max_resizes_per_hour=10**6, min_gain=None, max_wait=inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The rules of a replay."""

    nodes: tuple[Node, ...]
    round_seconds: Seconds = 60.0
    restart_seconds: Seconds = 30.0  # of jobs whose application has no figure of its own
    limits: Limits = LIMITS
    strictness: float = 0.0  # how far priorities count within a tier; see policies.model.Problem
    seed: int = 0
    prices: Mapping[str, float] = field(default_factory=dict)  # of a GPU and hour, by type
    rules: SlurmSettings | None = None  # of the site, beside plain jobs; None: none is known

    def __post_init__(self) -> None:
        if not self.nodes or not any(node.gpus for node in self.nodes):
            raise ReplayError("the cluster has no GPUs; describe it with --cluster or --nodes")
        if self.round_seconds <= 0 or self.restart_seconds < 0:
            raise ReplayError("a round takes more than 0 seconds and a restart not less")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one round came to and cost."""

    at: Seconds
    active: int  # jobs
    cpu_seconds: Seconds  # of assessing and deciding
    gap: float | None  # of the plan to its bound, where the policy knows one
    left_out: Mapping[JobId, str] = field(default_factory=dict)  # stayed as they were, and why
    fault: str = ""  # why everything stayed as it was; empty: it was decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished replay."""

    policy: str
    jobs: tuple[SimulatedJob, ...]
    decisions: tuple[Decision, ...]
    experience: Experience
    nodes: tuple[Node, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)  # of a GPU and hour, by type


@dataclass(slots=True)
class _Simulation:
    world: World
    policy: Policy
    jobs: list[SimulatedJob]
    experience: Experience
    knowledge: Knowledge
    truth: bool
    clock: Callable[[], float]
    rules: SiteLimits | None = None  # None: there are none
    plain: PlainJobs | None = None  # None: everybody is in onesd's hands
    memory: object = None
    rigid: Rigid | None = None
    now: Seconds = 0.0
    moved: dict[JobId, list[Seconds]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    reported: set[tuple[object, ...]] = field(default_factory=set)
    still: int = 0  # rounds without progress

    def run(self, watch: Callable[[Seconds, int], None] | None) -> None:
        rng = np.random.default_rng(self.world.seed)
        coming = sorted(self.jobs, key=lambda job: (job.trace.submitted, job.id))
        active: list[SimulatedJob] = []
        seen = 0
        while active or seen < len(coming) or not (self.plain is None or self.plain.over):
            if not active:  # nothing happens in onesd before the next submission
                self._idle(coming[seen].trace.submitted if seen < len(coming) else inf)
            while seen < len(coming) and coming[seen].trace.submitted <= self.now:
                newcomer = coming[seen]
                newcomer.waited = self.now - newcomer.trace.submitted
                active.append(newcomer)
                seen += 1
            if active:
                self._round(active, [job.trace.submitted for job in coming[:seen]], rng)
                following = coming[seen].trace.submitted if seen < len(coming) else inf
                self._advance(active, until=self._next(following), last=seen == len(coming))
            active = [job for job in active if job.finished is None]
            if watch is not None:
                ended = self.plain.ended if self.plain is not None else 0
                watch(self.now, ended + seen - len(active))

    def _idle(self, submission: Seconds) -> None:
        """Time passes until onesd has a job, or a day."""
        if self.plain is None:
            rounds = ceil(submission / self.world.round_seconds)
            self.now = max(self.now, rounds * self.world.round_seconds)
            return
        until = max(self.now, min(submission, self.now + DAY))
        self.plain.run(self.now, until, ())
        self.now = until
        stuck = self.plain.stuck()
        self.still = 0 if stuck is None else self.still + 1
        if submission == inf and stuck is not None and self.still > STUCK_DAYS:
            reason = self.plain.reason(stuck.id)
            raise ReplayError(
                f"job {stuck.id} ({stuck.trace.name!r}) is never started by"
                f" {self.plain.scheduler.name}: it asks for {stuck.trace.requested} GPUs"
                f"{f' and waits for {reason}' if reason else ''};"
                " take it out of the trace or give it a larger cluster"
            )

    def _next(self, submission: Seconds) -> Seconds:
        """When the next round is. Beside plain jobs a submission wakes it, as it does in onesd."""
        regular = self.now + self.world.round_seconds
        if self.plain is None:
            return regular
        return min(regular, max(submission, self.now + min(WAKE, self.world.round_seconds)))

    def _round(
        self, active: Sequence[SimulatedJob], arrivals: Sequence[Seconds], rng: np.random.Generator
    ) -> None:
        if self.plain is not None:
            self.plain.admit(self.now)
        begun = self.clock()
        problem, stopped = self._within_rules(self._problem(active, arrivals))
        question = Question(
            problem=problem,
            history=History(self.moved),
            limits=self.world.limits,
            strictness=self.world.strictness,
            plain=None if self.plain is None else self.plain.questions(stopped),
            rigid=self.rigid,
        )
        decided = answer(question, self.policy, self.memory, rng)
        self.memory, self.rigid = decided.memory, decided.rigid
        self.decisions.append(
            Decision(
                at=self.now,
                active=len(active),
                cpu_seconds=self.clock() - begun,
                gap=decided.plan.gap,
                left_out=decided.left_out,
                fault=decided.fault,
            )
        )
        self._act(active, decided.moves)
        if self.plain is not None:
            for job in active:
                if job.id in decided.from_slurm:
                    self.plain.reclaim(job.id)
                elif job.id in decided.to_slurm:
                    self.plain.lend(job)

    def _problem(self, active: Sequence[SimulatedJob], arrivals: Sequence[Seconds]) -> Problem:
        jobs: list[Job] = [self._as_seen(job) for job in active]
        priors = Priors(restart_seconds=max(self.world.restart_seconds, 1e-3))
        if not self.truth:
            told = [job.told(declared=self.knowledge.declared) for job in active]
            return assess(
                now=self.now,
                nodes=self._nodes(),
                jobs=jobs,
                experience=self.experience,
                progress={one.job: one for one in told if one is not None},
                arrivals=arrivals,
                round_seconds=self.world.round_seconds,
                priors=priors,
                knowledge=self.knowledge,
            )
        recent = [at for at in arrivals if self.now - priors.arrival_window < at]
        return Problem(
            now=self.now,
            nodes=self._nodes(),
            jobs=tuple(jobs),
            outlooks={
                job.id: true_outlook(
                    job,
                    restart_cost=self._restart_seconds(job),
                    per_node=max(node.gpus for node in self.world.nodes),
                )
                for job in active
            },
            arrival_rate=len(recent) / priors.arrival_window,
            round_seconds=self.world.round_seconds,
        )

    def _as_seen(self, job: SimulatedJob) -> Job:
        lent = self.plain is not None and job.id in self.plain.lent
        return replace(job.as_seen(), time_left=job.time_left(self.now), queued=lent)

    def _within_rules(self, problem: Problem) -> tuple[Problem, Collection[JobId]]:
        """With the site's order, limits and reservations, as onesd reads them of Slurm; and the
        plain jobs that wait for a limit."""
        if self.plain is None:
            return problem, ()
        jobs = tuple(self.plain.ordered(job, self.now) for job in problem.jobs)
        if self.rules is None:
            return replace(problem, jobs=jobs), ()
        jobs = tuple(self.rules.left_to(job, self.now) for job in jobs)
        holding = self.plain.holding()
        stopped = self.rules.stopped(self.plain.queue(), [*holding, *jobs])
        return replace(problem, jobs=jobs, caps=self.rules.caps(jobs, holding, stopped)), stopped

    def _nodes(self) -> tuple[Node, ...]:
        """As onesd sees them: with what plain jobs hold."""
        if self.plain is None:
            return self.world.nodes
        taken = self.plain.taken()
        return tuple(
            replace(node, taken=node.taken + taken[node.name]) if taken.get(node.name) else node
            for node in self.world.nodes
        )

    def _outlook(self, job: SimulatedJob, seen: Job) -> Outlook:
        """What is believed of one running job, between rounds."""
        restart = self._restart_seconds(job)
        if self.truth:
            per_node = max(node.gpus for node in self.world.nodes)
            return true_outlook(job, restart_cost=restart, per_node=per_node)
        told = job.told(declared=self.knowledge.declared)
        problem = assess(
            now=self.now,
            nodes=self.world.nodes,
            jobs=[seen],
            experience=self.experience,
            progress={} if told is None else {job.id: told},
            priors=Priors(restart_seconds=max(self.world.restart_seconds, 1e-3)),
            knowledge=self.knowledge,
        )
        return problem.outlooks[job.id]

    def _act(self, active: Sequence[SimulatedJob], moves: Sequence[Move]) -> None:
        by_id = {job.id: job for job in active}
        nodes = by_name(self.world.nodes)
        for move in moves:
            job = by_id[move.job]
            if self.plain is not None:
                self.plain.reclaim(job.id)
            if move.batch is not None:
                job.batch = move.batch
            if move.target is None:
                job.place(None, "", self.now)
            elif move.kind != "tune":
                pause = self._pause(job, first=job.started is None)
                job.place(move.target, type_of(move.target, nodes), self.now)
                job.pause = pause
            if move.kind in ("resize", "preempt"):
                before = self.moved.get(job.id, ())
                self.moved[job.id] = [*(at for at in before if self.now - HOUR < at), self.now]

    def _pause(self, job: SimulatedJob, *, first: bool) -> Seconds:
        """What a start takes. Recorded durations, beside plain jobs, have the first in them."""
        free = self.plain is not None and isinstance(job.trace.application, Recorded)
        return 0.0 if free and first else self._restart_seconds(job)

    def _restart_seconds(self, job: SimulatedJob) -> Seconds:
        own = job.trace.application.restart_seconds
        return self.world.restart_seconds if own is None else own

    def _rounds_of_a_restart(self, active: Sequence[SimulatedJob]) -> float:
        """How many the longest may take, which is waited for. It is no progress by itself: a policy
        that restarts a job in every round would have the replay go on for ever."""
        return max(map(self._restart_seconds, active)) / self.world.round_seconds

    def _advance(self, active: Sequence[SimulatedJob], *, until: Seconds, last: bool) -> None:
        further = False
        held = [
            (job, job.as_seen())
            for job in active
            if self.plain is not None and job.placement is not None
        ]
        for job in active:
            job.advance(self.now, until - self.now, self._epoch_over)
            if job.trained:
                further = True
                job.trained = False
                if job.finished is None and job.progress > job.epoch_began:
                    self._report(job, job.epoch)
            if job.finished is not None:
                self._finish(job)
        if self.plain is not None:
            others = [
                Elsewhere(seen, inf if job.finished is None else job.finished) for job, seen in held
            ]
            self.plain.run(self.now, until, others)
            started = self.plain.back()
            for job in active:
                if job.id in started:
                    self._go_on(job, started[job.id], until)
            further = further or bool(started or self.plain.running)
        self.now = until
        self.still = 0 if further or not last else self.still + 1
        if self.still > STUCK and self.still > STUCK + self._rounds_of_a_restart(active):
            stuck = next(job for job in active if job.finished is None)
            latest = self.decisions[-1]
            why = latest.left_out.get(stuck.id) or latest.fault
            raise ReplayError(
                f"job {stuck.id} ({stuck.trace.name!r}) never gets any further under"
                f" {self.policy.name}: "
                + (
                    f"{why}; take it out of the trace or try another policy"
                    if why
                    else f"it asks for {stuck.trace.requested} GPUs and accepts"
                    f" {stuck.trace.sizes}; take it out of the trace or give it a larger cluster"
                )
            )

    def _go_on(self, job: SimulatedJob, at: Seconds, until: Seconds) -> None:
        """Slurm itself has started the job: from then on until now it has not waited."""
        job.waited -= until - at
        job.pause = self._pause(job, first=not job.resizes)
        job.advance(at, until - at, self._epoch_over)
        job.trained = False
        if job.finished is not None:
            self._finish(job)

    def _epoch_over(self, job: SimulatedJob) -> None:
        """At the end of an epoch a job reports and, where the policy has it so, tunes its batch."""
        self._report(job, job.epoch - 1)
        over = job.epoch == len(job.trace.application.epochs)
        tunes = job.batches is not None and job.batches.tunes and job.batch is not None
        if over or not tunes or not isinstance(self.policy, TunesBetweenRounds):
            return
        seen = job.as_seen()
        batch = self.policy.batch_after_epoch(seen, self._outlook(job, seen), job.gpu_type)
        if batch is not None:
            job.batch = batch

    def _report(self, job: SimulatedJob, epoch: int) -> None:
        """The step time and the gradient statistics that it has measured in that epoch."""
        batch, placement, timed = job.present_batch, job.placement, job.step_seconds()
        if placement is None or timed is None:
            return
        key: tuple[object, ...] = (job.id, job.gpu_type, placement.gpus_on, batch)
        if key not in self.reported:
            self.reported.add(key)
            self.experience.observe(
                Observation(
                    job=job.id,
                    family=family_of(job.trace.user, job.trace.family),
                    gpu_type=job.gpu_type,
                    nodes=len(placement.gpus_on),
                    gpus=placement.gpus,
                    batch=float(batch),
                    passes=job.split()[1],
                    step_seconds=timed[0],
                    sync_seconds=timed[1],
                )
            )
        gradient = job.trace.application.gradient(batch, epoch)
        key = (job.id, epoch, batch)
        if gradient is None or job.batches is None or key in self.reported:
            return
        self.reported.add(key)
        self.experience.gradient(
            GradientReport(
                job=job.id,
                family=family_of(job.trace.user, job.trace.family),
                epochs=float(epoch),
                batch=float(batch),
                sqr=gradient.sqr,
                var=gradient.var,
            )
        )

    def _finish(self, job: SimulatedJob) -> None:
        family = family_of(job.trace.user, job.trace.family)
        samples = job.progress * (job.batches.reference if job.batches else 1)
        self.experience.restart(
            RestartCost(job=job.id, family=family, seconds=self._restart_seconds(job))
        )
        self.experience.finish(Finished(family=family, total_samples=samples, job=job.id))


def replay(
    workload: Workload,
    policy: Policy,
    world: World,
    *,
    clock: Callable[[], float],
    knowledge: Knowledge | None = None,
    experience: Experience | None = None,
    truth: bool = False,
    scheduler: Policy | None = None,
    watch: Callable[[Seconds, int], None] | None = None,
) -> Run:
    """Run the trace to its end under `policy`; `clock` counts the CPU seconds of its decisions.

    `experience` is what was learnt before, and is added to. With `truth` the policy is an oracle
    that sees true curves and true remaining work. With a `scheduler` the jobs that did not opt in
    are plain ones, which it starts; a policy that moves nobody starts everybody, in one queue.
    `watch` is told the time and how many jobs have ended. Raises ReplayError where a job can never
    run.
    """
    experience = experience if experience is not None else Experience()
    alone = scheduler is not None and moves_nobody(policy.name)
    scheduler = policy if alone else scheduler
    ours = [scheduler is None or (job.opted_in and not alone) for job in workload.jobs]
    jobs = simulated(workload.jobs, world.nodes, ours, nodes_of(world.rules) if world.rules else {})
    simulation = _Simulation(
        world=world,
        policy=policy,
        jobs=[job for job, own in zip(jobs, ours, strict=True) if own],
        experience=experience,
        knowledge=knowledge or Knowledge(),
        truth=truth,
        clock=clock,
        rules=None if world.rules is None else SiteLimits(world.rules),
        plain=None
        if scheduler is None
        else PlainJobs(
            nodes=by_name(world.nodes),
            scheduler=scheduler,
            rng=np.random.default_rng(world.seed),
            coming=deque(
                sorted(
                    (job for job, own in zip(jobs, ours, strict=True) if not own),
                    key=lambda job: (job.trace.submitted, job.id),
                )
            ),
            clock=clock,
            tiers={one.name: one.tier for one in world.rules.partitions} if world.rules else {},
            restart_seconds=world.restart_seconds,
        ),
    )
    simulation.run(watch)
    asked = simulation.plain.asked if alone and simulation.plain is not None else ()
    return Run(
        policy=policy.name,
        jobs=tuple(jobs),
        decisions=(
            *simulation.decisions,
            *(Decision(at=at, active=seen, cpu_seconds=took, gap=None) for at, seen, took in asked),
        ),
        experience=experience,
        nodes=world.nodes,
        prices=world.prices,
    )
