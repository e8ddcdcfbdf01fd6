"""The round: observe, estimate, decide, check, act, record."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ones.daemon.choice import Choice
from ones.daemon.config import Config
from ones.daemon.events import Events, unsettled
from ones.daemon.filling import Filling
from ones.daemon.histories import Histories
from ones.daemon.inbox import Inbox
from ones.daemon.learning import Learning
from ones.daemon.live_mover import LiveMover
from ones.daemon.metrics import Metrics
from ones.daemon.mover import Mover
from ones.daemon.needs import NeedsBook
from ones.daemon.operators import Operators
from ones.daemon.outages import Outages
from ones.daemon.pair_moves import parted_from_plan, waits_for
from ones.daemon.published import NOTHING, Decision, Round
from ones.daemon.records import Records
from ones.daemon.sharing import SharingBook
from ones.daemon.staging import Gated, Staging, in_use
from ones.daemon.store import Store
from ones.daemon.wire import Lease, NodeReport
from ones.estimator.assess import assess
from ones.policies.guard import Move, Verdict
from ones.policies.model import Job, JobId, Node, Plan, Problem, SharesGpus, TakesTurns
from ones.policies.reserve import reserve
from ones.policies.round import decide
from ones.slurm_ext.actuator import Actuator
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.elastic import elastic_jobs, gpu_nodes, stranded, to_release, waiting_plain_jobs
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.live_moves import LiveMove
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.satellites import attach
from ones.slurm_ext.shards import alone, half
from ones.slurm_ext.snapshot import NodeRecord, Reader, Snapshot
from ones.slurm_ext.staging import StageJobs

log = logging.getLogger(__name__)
ARRIVALS = 1200.0  # seconds over which the arrival rate is taken
UNHEALTHY = 10  # rounds without success after which Slurm must not hold jobs for us


class Controller:
    """Everything onesd knows and does; its loops call `round` and `tick` from threads."""

    def __init__(
        self,
        config: Config,
        reader: Reader,
        commands: Commands,
        store: Store,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.choice = Choice(config, store)
        self.config = self.choice.config
        self.reader = reader
        self.store = store
        self.clock = clock
        self.inbox = Inbox()
        self.metrics = Metrics()
        self.wake = asyncio.Event()
        self.events = Events(config.events, self.metrics, welcome=self._hears_events)
        self.trouble = ""
        self.published = Round(
            number=0, at=0.0, seconds=0.0, outcome="not yet run", snapshot=NOTHING
        )
        self._loop = asyncio.get_running_loop()
        self._commands = commands
        self._learning = Learning(store, self.inbox, self.metrics)
        self._records = Records(store, commands, self._learning)
        self.needs = NeedsBook(store, commands, quality=config.needs.quality())
        self.sharing = SharingBook(store, self.inbox, self.needs, config.sharing)
        self.staging = Staging(config.staging, store, StageJobs(commands))
        actuator = Actuator(commands)
        self._live = LiveMover(
            store,
            actuator,
            self.inbox,
            self._learning,
            self.metrics,
            limits=config.live_limits(),
            clock=clock,
        )
        self._mover = Mover(
            store,
            actuator,
            self.inbox,
            self._learning,
            self.metrics,
            limits=config.move_limits(),
            clock=clock,
            filling=Filling(config.needs, self.needs, store, commands),
        )
        self._outages = Outages(store)
        self._histories = Histories(self._records, self._learning, self._live)
        # A round and a tick never touch Slurm at the same time: one writer.
        self._one = threading.Lock()
        self.operators = Operators(commands, clock=clock)
        self._read_seconds = 0.0
        self._seen = NOTHING

    def round(self) -> None:
        """One round. A round that can't be finished changes nothing more, and says why."""
        begun = self.clock()
        try:
            with self._one, self.metrics.round_seconds.time():
                self._round(begun)
        except Exception as fault:
            self.trouble = str(fault) or type(fault).__name__
            self.metrics.rounds.labels(outcome="failed").inc()
            if isinstance(fault, SlurmError):
                self.metrics.slurm_errors.inc()
            raise
        self.trouble = ""
        self.metrics.rounds.labels(outcome="done").inc()
        self.metrics.last_success.set(self.clock())

    def _round(self, begun: float) -> None:
        snapshot = self._observe()
        holds = self._records.holds()
        jobs, ignored = elastic_jobs(snapshot, holds)
        jobs = self._histories.complete(jobs, snapshot, self.open_moves(), now=begun)
        nodes = self._nodes(snapshot)
        problem = assess(
            now=begun,
            nodes=reserve(nodes, jobs, waiting_plain_jobs(snapshot)),
            jobs=jobs,
            experience=self._learning.experience(),
            progress=self._learning.progress(),
            arrivals=self._records.arrivals(since=begun - ARRIVALS),
            round_seconds=self.config.round,
            priors=self.config.estimator.priors(),
            knowledge=self.config.estimator.knowledge(),
        )
        gated = self._gate(problem, snapshot)
        problem = replace(problem, jobs=gated.jobs)
        problem = self._with_pairs(problem, snapshot, now=begun)
        limits, history = self.config.guard.limits(), self._records.history(begun)
        number, policy = self.published.number + 1, self.choice.policy
        name = f"memory:{policy.name}"
        decided = decide(
            problem,
            policy,
            self.store.fact(name),
            np.random.default_rng([self.config.seed, number]),
            history=history,
            limits=limits,
        )
        if gated.waiting:
            ready = replace(problem, jobs=_started(problem.jobs, gated.waiting))
            shadow = decide(
                ready,
                policy,
                self.store.fact(name),
                np.random.default_rng([self.config.seed, number]),
                history=history,
                limits=limits,
            )
            planned = {
                move.job: move.target
                for move in shadow.verdict.allowed
                if move.kind == "start" and move.target is not None
            }
            self.staging.begin(gated.waiting, planned, ready, snapshot, now=begun)
        self.store.set_fact(name, decided.memory)
        moving = [move.job for move in self.open_moves()]
        partings = self.sharing.partings(problem, moving)
        moves = parted_from_plan(decided.verdict.allowed, partings)
        verdict = replace(decided.verdict, allowed=tuple(moves))
        decisions = self._act(decided.problem, verdict, snapshot)
        if self.acts():
            for job in to_release(snapshot, ignored, holds):
                self._mover.let_go(snapshot.jobs[job], ignored[job])
            self.staging.tidy(snapshot, now=begun)
            moving = [move.job for move in self.open_moves()]
            for job in stranded(snapshot):
                if job not in moving:  # one of `ignored` is let go as a plain job in the next round
                    self._mover.take_back(snapshot.jobs[job])
            self._live.give_up_nodes(snapshot, moving)
        if self.config.mode == "act":
            self._live.clean(snapshot)
        self._record(
            number=number,
            begun=begun,
            snapshot=snapshot,
            problem=decided.problem,
            plan=replace(decided.plan, idle={**decided.plan.idle, **gated.notes}),
            decisions=decisions,
            ignored=ignored,
        )

    def _gate(self, problem: Problem, snapshot: Snapshot) -> Gated:
        """Jobs that wait for their data are planned for later; not by one who only observes."""
        if not self.acts():
            return Gated(problem.jobs, {}, frozenset())
        return self.staging.gate(problem.jobs, snapshot, now=problem.now)

    def _observe(self) -> Snapshot:
        begun = self.clock()
        snapshot = attach(self.reader.snapshot())
        self._seen = snapshot
        self._read_seconds = self.clock() - begun
        self.inbox.forget_jobs(snapshot.jobs)
        self._learning.take(snapshot)
        self._records.take(snapshot, now=begun)
        self._outages.take(snapshot.nodes.values(), now=begun)
        self.needs.take(snapshot, self.inbox.nodes(), now=begun)
        return snapshot

    def _with_pairs(self, problem: Problem, snapshot: Snapshot, *, now: float) -> Problem:
        """With the jobs that may share a GPU, by what those that do have shown until now."""
        self.sharing.take(problem, snapshot, now=now)
        policy = self.choice.policy
        if not (isinstance(policy, SharesGpus) and policy.shares):
            return problem
        return replace(problem, pairs=self.sharing.pairs(problem, snapshot, now=now))

    def _nodes(self, snapshot: Snapshot) -> list[Node]:
        return [
            replace(
                node,
                usable=not self.unusable(snapshot.nodes[node.name]),
                links=self.inbox.links(node.name, gpus=node.gpus),
            )
            for node in gpu_nodes(snapshot)
        ]

    def unusable(self, node: NodeRecord) -> str:
        """Why nothing new is placed on a node, or ''."""
        out = node.states & {"DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "MAINTENANCE", "RESERVED"}
        if out:
            words = " ".join(sorted(out)).lower().replace("_", " ")
            return f"{words}: {node.reason}" if node.reason else words
        now = self.clock()
        return self._outages.note(node.name, now=now) or self.inbox.silence(node.name, now=now)

    def _act(self, problem: Problem, verdict: Verdict, snapshot: Snapshot) -> tuple[Decision, ...]:
        jobs = {job.id: job for job in problem.jobs}
        decisions = []
        for move in verdict.allowed:
            if self.config.mode == "observe":
                word = "observe mode: nothing is done"
            elif self.paused:
                word = "paused: nothing is begun"
            elif _is_live(move, jobs[move.job]):
                self._live.begin(move, snapshot.jobs[int(move.job)])
                word = "begun"
            elif wait := waits_for(move, snapshot, jobs, self._mover.open()):
                word = f"waits: {wait}"
            else:
                self._begin(move, jobs, snapshot)
                word = "begun"
            decisions.append(Decision.of(move, jobs[move.job], word))
        for refused in verdict.refused:
            move = refused.move
            if move.job in jobs:
                decisions.append(Decision.of(move, jobs[move.job], f"refused: {refused.reason}"))
        for decision in decisions:
            short = decision.verdict.split(":")[0]
            self.metrics.decisions.labels(kind=decision.kind, verdict=short).inc()
        if any(decision.verdict == "begun" for decision in decisions):
            self._loop.call_soon_threadsafe(self.wake.set)
        return tuple(decisions)

    def _begin(self, move: Move, jobs: Mapping[JobId, Job], snapshot: Snapshot) -> None:
        shards, beside = 0, None
        if move.beside is not None and move.target is not None and move.kind != "tune":
            node = move.target.nodes[0]
            shards = half(snapshot.nodes[node])
            beside = move.beside if move.beside in alone(snapshot.jobs).get(node, ()) else None
        record = snapshot.jobs[int(move.job)]
        self._mover.begin(move, jobs[move.job], record, shards=shards, beside=beside)

    def _record(
        self,
        *,
        number: int,
        begun: float,
        snapshot: Snapshot,
        problem: Problem,
        plan: Plan,
        decisions: tuple[Decision, ...],
        ignored: Mapping[int, str],
    ) -> None:
        self.published = Round(
            number=number,
            at=begun,
            seconds=self.clock() - begun,
            outcome=f"{len(decisions)} decisions" if decisions else "nothing to change",
            snapshot=snapshot,
            jobs=problem.jobs,
            problem=problem,
            decisions=decisions,
            notes=plan.idle,
            ignored=ignored,
            gap=plan.gap,
        )
        if unsettled(snapshot):
            self._loop.call_soon_threadsafe(self.events.happened, "completing")
        self.metrics.plan_gap.set(float("nan") if plan.gap is None else plan.gap)
        self._records.round(self.published, self.config, keep=self.config.keep_days * 86400)
        waiting = sum(1 for job in problem.jobs if job.placement is None)
        self.metrics.jobs.labels(state="waiting").set(waiting)
        self.metrics.jobs.labels(state="running").set(len(problem.jobs) - waiting)
        silent = [node for node in snapshot.nodes.values() if node.gpus and self.unusable(node)]
        self.metrics.agents_silent.set(len(silent))

    def tick(self) -> None:
        """Take the steps that are due of the moves under way."""
        if self.config.mode != "act" or not self.open_moves():
            return
        with self._one:
            snapshot = self._observe()
            self._live.tick(snapshot, self._mover.claimed(snapshot))
            self._mover.tick(snapshot, self._live.promised(snapshot))
            self._live.clean(snapshot)

    def _hears_events(self) -> bool:
        policy = self.choice.policy
        return not (isinstance(policy, TakesTurns) and policy.turns)

    def tick_interval(self) -> float:
        """Often while something moves, yet Slurm is read for a tenth of the time at most."""
        return max(1.0, 10 * self._read_seconds)

    def open_moves(self) -> list[MoveRecord | LiveMove]:
        return [*self._mover.open(), *self._live.open()]

    def hear(self, report: NodeReport) -> None:
        """Take an agent's report; a fresh checkpoint is acted on at once, a job's end soon."""
        if self.inbox.accept(report, now=self.clock()):
            self._loop.call_soon_threadsafe(self.wake.set)
        if report.ended:
            self._loop.call_soon_threadsafe(self.events.happened, "agent")

    def lease(self, job: int) -> Lease | None:
        """What the job's environment should say.

        A batch was planned for a size. Where Slurm gave the job another one (it was released by
        somebody else, say), the batch is left to the job.
        """
        row = self.store.row("SELECT * FROM leases WHERE job = ?", job)
        if row is None:
            return None
        record = self._seen.jobs.get(job)
        held = sum(record.held_on.values()) if record is not None else 0
        planned = held in (0, row["gpus"])
        return Lease(
            job=job,
            sizes=row["sizes"],
            gpus=row["gpus"] if planned else held,
            batch=row["batch"] if planned else None,
            checkpoint_signal=self.config.checkpoint_signal,
            order=self._live.order(job, record) if self.config.mode == "act" else None,
        )

    def staged(self) -> tuple[tuple[int, ...], float]:
        """The stage-in jobs whose data are still needed, and when Slurm was seen so."""
        seen = self.published.snapshot
        return in_use(seen), seen.taken

    def refresh_runs(self, jobs: Sequence[int]) -> None:
        """Read these jobs' runs from Slurm's accounting into the database."""
        self._records.refresh_runs(jobs)

    @property
    def paused(self) -> dict[str, Any] | None:
        """Who paused and why, or None."""
        said = self.store.fact("paused")
        return said if isinstance(said, dict) else None

    def pause(self, by: str, reason: str) -> None:
        self.store.set_fact("paused", {"by": by, "reason": reason or "no reason given"})
        log.warning("paused by %s: %s", by, reason)

    def resume(self, by: str) -> None:
        self.store.set_fact("paused", None)
        log.warning("resumed by %s", by)

    def choose_policy(self, by: str, name: str | None) -> None:
        """Decide by this policy from the next round on; None: by the configuration's.

        Raises ValueError, and changes nothing, where it can't be used here.
        """
        self.config = self.choice.make(by, name, now=self.clock())
        log.warning("policy %s, by %s", self.config.policy, by)

    def healthy(self) -> bool:
        """Whether rounds succeed; a first one must have."""
        age = self.clock() - self.published.at
        return self.published.number > 0 and age < UNHEALTHY * self.config.round + 60

    def holds(self) -> bool:
        """Whether Slurm may hold new jobs for us."""
        return self.acts() and self.config.admission == "hold"

    def acts(self) -> bool:
        """Whether we begin moves."""
        return self.config.mode == "act" and not self.paused


def _is_live(move: Move, job: Job) -> bool:
    """Whether a move needs no restart: what the job keeps is part of where it goes."""
    # With a new batch alone there is nobody to come or go.
    elsewhere = move.kind == "resize" and move.target != job.placement
    return elsewhere and job.goes_live(move.target)


def _started(jobs: Sequence[Job], which: frozenset[JobId]) -> tuple[Job, ...]:
    return tuple(replace(job, startable=job.startable or job.id in which) for job in jobs)
