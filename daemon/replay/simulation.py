"""The daemon's round on a simulated cluster and a virtual clock (Pollux's world, §5.3 there).

At 0, R, 2R, ... seconds the jobs submitted so far are shown to the round; then everything advances
by R. A change of a job's placement costs a restart with its GPUs held, the first start included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np

from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.truth import true_outlook
from ones.daemon.replay.workload import Workload
from ones.estimator.assess import Knowledge, Priors, assess, family_of
from ones.estimator.experience import Experience, GradientReport
from ones.estimator.progress import Finished
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.forecast import by_name, type_of
from ones.policies.guard import HOUR, History, Limits, Verdict
from ones.policies.model import (
    Job,
    JobId,
    Node,
    Outlook,
    Policy,
    Problem,
    Seconds,
    Shape,
    TunesBetweenRounds,
)
from ones.policies.round import decide
from ones.policies.shapes import realisable
from ones.policies.sizes import Sizes
from ones.slurm_ext.errors import OnesError

STUCK = 2000  # rounds in a row in which nobody gets any further, and nobody else will come
LIMITS = Limits(grace=0.0, exempt=0.0, max_resizes_per_hour=10**6, min_gain=None, max_wait=inf)


class ReplayError(OnesError):
    """A replay that can't come to an end; names the job at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The rules of a replay."""

    nodes: tuple[Node, ...]
    round_seconds: Seconds = 60.0
    restart_seconds: Seconds = 30.0  # of jobs whose application has no figure of its own
    limits: Limits = LIMITS
    seed: int = 0
    prices: Mapping[str, float] = field(default_factory=dict)  # of a GPU and hour, by type

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
    memory: object = None
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
        while active or seen < len(coming):
            if not active:  # nothing happens before the next submission
                until = coming[seen].trace.submitted
                rounds = ceil(until / self.world.round_seconds)
                self.now = max(self.now, rounds * self.world.round_seconds)
            while seen < len(coming) and coming[seen].trace.submitted <= self.now:
                newcomer = coming[seen]
                newcomer.waited = self.now - newcomer.trace.submitted
                active.append(newcomer)
                seen += 1
            self._round(active, [job.trace.submitted for job in coming[:seen]], rng)
            self._advance(active, last=seen == len(coming))
            active = [job for job in active if job.finished is None]
            if watch is not None:
                watch(self.now, seen - len(active))

    def _round(
        self, active: Sequence[SimulatedJob], arrivals: Sequence[Seconds], rng: np.random.Generator
    ) -> None:
        begun = self.clock()
        problem = self._problem(active, arrivals)
        decided = decide(
            problem,
            self.policy,
            self.memory,
            rng,
            history=History(self.moved),
            limits=self.world.limits,
        )
        self.memory = decided.memory
        self.decisions.append(
            Decision(
                at=self.now,
                active=len(active),
                cpu_seconds=self.clock() - begun,
                gap=decided.plan.gap,
            )
        )
        self._act(active, decided.verdict)

    def _problem(self, active: Sequence[SimulatedJob], arrivals: Sequence[Seconds]) -> Problem:
        jobs: list[Job] = [job.as_seen() for job in active]
        priors = Priors(restart_seconds=max(self.world.restart_seconds, 1e-3))
        if not self.truth:
            told = [job.told(declared=self.knowledge.declared) for job in active]
            return assess(
                now=self.now,
                nodes=self.world.nodes,
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
            nodes=self.world.nodes,
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

    def _act(self, active: Sequence[SimulatedJob], verdict: Verdict) -> None:
        by_id = {job.id: job for job in active}
        nodes = by_name(self.world.nodes)
        for move in verdict.allowed:
            job = by_id[move.job]
            if move.batch is not None:
                job.batch = move.batch
            if move.target is None:
                job.place(None, "", self.now)
            elif move.kind != "tune":
                job.place(move.target, type_of(move.target, nodes), self.now)
                job.pause = self._restart_seconds(job)
            if move.kind in ("resize", "preempt"):
                before = self.moved.get(job.id, ())
                self.moved[job.id] = [*(at for at in before if self.now - HOUR < at), self.now]

    def _restart_seconds(self, job: SimulatedJob) -> Seconds:
        own = job.trace.application.restart_seconds
        return self.world.restart_seconds if own is None else own

    def _advance(self, active: Sequence[SimulatedJob], *, last: bool) -> None:
        further = False
        for job in active:
            job.advance(self.now, self.world.round_seconds, self._epoch_over)
            if job.trained:
                further = True
                job.trained = False
                if job.finished is None and job.progress > job.epoch_began:
                    self._report(job, job.epoch)
            if job.finished is not None:
                self._finish(job)
        self.now += self.world.round_seconds
        self.still = 0 if further or not last else self.still + 1
        if self.still > STUCK:
            stuck = next(job for job in active if job.finished is None)
            raise ReplayError(
                f"job {stuck.id} ({stuck.trace.name!r}) never gets any further under"
                f" {self.policy.name}: it asks for {stuck.trace.requested} GPUs and accepts"
                f" {stuck.trace.sizes}; take it out of the trace or give it a larger cluster"
            )

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
    watch: Callable[[Seconds, int], None] | None = None,
) -> Run:
    """Run the trace to its end under `policy`; `clock` counts the CPU seconds of its decisions.

    `experience` is what was learnt before, and is added to. With `truth` the policy is an oracle
    that sees true curves and true remaining work. `watch` is told the time and how many jobs have
    ended. Raises ReplayError where a job can never run.
    """
    experience = experience if experience is not None else Experience()
    sizes = [node.gpus for node in world.nodes]
    jobs = []
    shapes: dict[tuple[Sizes, frozenset[str]], tuple[Shape, ...]] = {}
    for number, trace in enumerate(workload.jobs, start=1):
        there = [
            node
            for node in world.nodes
            if trace.application.runs_on(node.gpu_type)
            and (trace.gpu_types is None or node.gpu_type in trace.gpu_types)
        ]
        key = (trace.sizes, frozenset(node.name for node in there))
        if key not in shapes:
            shapes[key] = realisable(trace.sizes, [node.gpus for node in there])
        job = SimulatedJob(
            id=JobId(number),
            trace=trace,
            shapes=shapes[key],
            nodes=key[1],
        )
        if not job.shapes:
            raise ReplayError(
                f"job {number} ({trace.name!r}) accepts {trace.sizes} GPUs, and the cluster has"
                f" {sum(sizes)} of which it can use {sum(node.gpus for node in there)}"
            )
        jobs.append(job)
    simulation = _Simulation(
        world=world,
        policy=policy,
        jobs=jobs,
        experience=experience,
        knowledge=knowledge or Knowledge(),
        truth=truth,
        clock=clock,
    )
    simulation.run(watch)
    return Run(
        policy=policy.name,
        jobs=tuple(jobs),
        decisions=tuple(simulation.decisions),
        experience=experience,
        nodes=world.nodes,
        prices=world.prices,
    )
