"""The round in six steps: observe, estimate, decide, check, act, record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np

from ones.daemon import site
from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.books.stages import ends
from ones.daemon.onesd.collecting import Collecting
from ones.daemon.onesd.deciding import Answer, Question, answer
from ones.daemon.onesd.forecast.present import Diary, Present
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves.under_way import IN_A_ROUND, MovesUnderWay
from ones.daemon.onesd.observing import Observer, Seen
from ones.daemon.onesd.outcome import NOTHING, Decision, Round
from ones.daemon.onesd.policy_in_force import PolicyInForce
from ones.daemon.onesd.steering import Steering
from ones.daemon.wire import Report
from ones.estimator.assess import assess
from ones.estimator.experience import Experience
from ones.policies.model import Job, JobId, Pairs, Problem, SharesGpus
from ones.policies.moves import Move
from ones.policies.pace import Ends
from ones.policies.prospects import Prospects
from ones.policies.registry import resizes
from ones.policies.rigid import Rigid
from ones.policies.words import counted
from ones.slurm_ext.elastic import plain_jobs, running_plain_jobs, waiting_without_gpus
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.shards import gpus_held
from ones.slurm_ext.snapshot import NOT_DONE, Snapshot

log = logging.getLogger(__name__)
TELLS = 5.0  # seconds for which a round is waited for by who asks what is known
ARRIVALS = 1200.0  # seconds over which the arrival rate is taken


class Rounds:
    """One round after the other, and between them the steps of the moves under way.

    `rng` gives the generator of a round, by its number. `begun` is called after a round in which
    moves were begun: a tick should come soon.
    """

    def __init__(
        self,
        *,
        observer: Observer,
        books: Books,
        moves: MovesUnderWay,
        policy: PolicyInForce,
        steering: Steering,
        metrics: Metrics,
        clock: Callable[[], float],
        rng: Callable[[int], np.random.Generator],
        begun: Callable[[], None],
    ) -> None:
        self.published = Round(
            number=0, at=0.0, seconds=0.0, outcome="not yet run", snapshot=NOTHING
        )
        self.present: Present | None = None  # what the last one went by
        self._diary = Diary()
        self.trouble = ""  # what the last round failed on
        self._observer = observer
        self._books = books
        self._moves = moves
        self._policy = policy
        self._steering = steering
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._begun = begun
        self._rigid: Rigid | None = None  # lost with us: then who runs counts as having started
        self._collecting = Collecting(clock)
        # A round and a tick never touch Slurm at the same time: one writer.
        self._one = threading.Lock()

    def round(self) -> None:
        """One round. A round that can't be finished changes nothing more, and says why."""
        try:
            with self._one, self._metrics.round_seconds.time(), self._collecting.paused():
                self._round()
        except Exception as fault:
            self.trouble = str(fault) or type(fault).__name__
            self._metrics.rounds.labels(outcome="failed").inc()
            if isinstance(fault, SlurmError):
                self._metrics.slurm_errors.inc()
            raise
        self.trouble = ""
        self._metrics.rounds.labels(outcome="done").inc()
        self._metrics.last_success.set(self._clock())

    def _round(self) -> None:
        # 1. Observe: what Slurm, the agents and the books say.
        with self._step("observe"):
            seen = self._observer.see()
        # 2. Estimate: how fast each job would be at each size, and how much it has to do.
        with self._step("estimate"):
            problem = self._estimate(seen)
        # 3. Decide: who gets what, and which moves lead there. Pure, the guard included.
        with self._step("decide"):
            question, memory = self._question(problem, seen), self._policy.memory()
            decided = self._decide(question, memory)
        # 4. Check: what may be begun now, and what has to wait.
        with self._step("check"):
            verdicts = self._check(decided, seen)
        # 5. Act: begin moves, see to jobs that nobody else sees to.
        with self._step("act"):
            decisions = self._act(decided, verdicts, seen)
        # 6. Record: for those who ask, and for the next round.
        with self._step("record"):
            self._record(decided, decisions, seen)
        self.present = Present(
            round=self.published.number,
            question=question,
            memory=memory,
            config=self._policy.config,
            snapshot=seen.snapshot,
            limits=seen.limits,
            order=seen.order,
            lately=self._diary.take(question),
        )

    def told_of(self, family: str) -> Experience:
        """What is known of jobs of this family, apart from what later rounds add to it.

        It waits for a round that is under way, and holds the next one up for some milliseconds.
        Raises TimeoutError where the round takes too long.
        """
        if not self._one.acquire(timeout=TELLS):
            raise TimeoutError
        try:
            return deepcopy(self._books.reports.experience().of_one(family))
        finally:
            self._one.release()

    def tick(self) -> bool:
        """Take the steps that are due of the moves under way; whether the last has ended with it.

        Then a round may plan for all jobs again, and for GPUs that were left over.
        """
        if self._steering.mode != "act" or self._moves.idle:
            return False
        with self._one, self._collecting.paused():
            before = self._moves.jobs()
            snapshot = self._observer.look()
            # Where thousands of jobs start at once their steps take minutes, for which no round
            # would come, and all would go by what Slurm said before.
            most = self.tick_interval()
            self._moves.advance(snapshot, most=most)
            moving = self._moves.jobs()
            if self._steering.acts():
                self._moves.queueing.go_on(snapshot, moving, most=most)
            return bool(before) and not moving

    def tick_interval(self) -> float:
        """Often while something moves, yet Slurm is read for a tenth of the time at most.

        Not more rarely than rounds, which read it, too.
        """
        return min(max(1.0, 10 * self._observer.read_seconds), self._policy.config.round)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began = self._clock()
        yield
        self._metrics.step_seconds.labels(step=name).set(self._clock() - began)

    def _estimate(self, seen: Seen) -> Problem:
        config, books = self._policy.config, self._books
        problem = assess(
            now=seen.at,
            nodes=seen.nodes,
            jobs=seen.jobs,
            experience=books.reports.experience(),
            progress=books.reports.progress(),
            arrivals=books.jobs.arrivals(since=seen.at - ARRIVALS),
            round_seconds=config.round,
            priors=site.priors(config.estimator),
            knowledge=site.knowledge(config.estimator),
        )
        books.pairs.take(problem, seen.snapshot, now=seen.at)
        return replace(problem, caps=seen.caps)

    def _question(self, problem: Problem, seen: Seen) -> Question:
        config, books, now = self._policy.config, self._books, seen.at
        gates = (
            books.stages.gates(seen.jobs, seen.snapshot, now=now) if self._steering.acts() else {}
        )
        return Question(
            problem=problem,
            history=books.journal.history(now),
            limits=site.guard_limits(config.guard),
            strictness=config.order.strictness,
            plain=plain_jobs(seen.snapshot, seen.jobs, seen.order, seen.stopped),
            without_gpus=waiting_without_gpus(seen.snapshot, seen.order, seen.stopped),
            rigid=self._rigid,
            failed=frozenset(
                JobId(job.id)
                for job in seen.snapshot.jobs.values()
                if job.state in NOT_DONE and job.marked
            ),
            gates=gates,
            staged=books.stages.staged(),
            ends=ends(seen.snapshot),
            lead=config.staging.lead,
            pairs=self._pairs(problem, seen),
            together=books.pairs.together(),
            moving=self._moves.jobs(),
        )

    def _decide(self, question: Question, memory: object) -> Answer:
        rng = self._rng(self.published.number + 1)
        decided = answer(question, self._policy.policy, memory, rng)
        self._policy.remember(decided.memory)
        self._rigid = decided.rigid
        return decided

    def _contradictions(self) -> dict[JobId, str]:
        """Jobs that report what can't be, with what."""
        return {JobId(job): why for job, why in self._books.reports.contradictions.items()}

    def _pairs(self, problem: Problem, seen: Seen) -> Pairs:
        """Who may share a GPU, where the policy would have them."""
        policy = self._policy.policy
        if not (isinstance(policy, SharesGpus) and policy.shares):
            return {}
        return self._books.pairs.pairs(problem, seen.snapshot, now=seen.at)

    def _prospects(self, problem: Problem, snapshot: Snapshot) -> Prospects:
        """Worked out only where somebody asks."""
        ours = {int(job.id) for job in problem.jobs}
        others = partial(running_plain_jobs, snapshot, ours)
        return Prospects(problem, others, resizes=resizes(self._policy.config.policy))

    def _check(self, decided: Answer, seen: Seen) -> list[str]:
        """For each move, why it isn't begun, or ''."""
        if obstacle := self._steering.obstacle():
            return [obstacle] * len(decided.moves)
        jobs = {job.id: job for job in decided.problem.jobs}
        waits = (self._moves.obstacle(move, jobs, seen.snapshot) for move in decided.moves)
        return [f"waits: {why}" if why else "" for why in waits]

    def _act(self, decided: Answer, verdicts: list[str], seen: Seen) -> tuple[Decision, ...]:
        jobs = {job.id: job for job in decided.problem.jobs}
        # All that is begun is in the journal, and on disk, before any of it touches Slurm.
        with self._books.store.transaction():
            decisions = [
                Decision.of(move, jobs[move.job], verdict or self._begin(move, jobs, seen))
                for move, verdict in zip(decided.moves, verdicts, strict=True)
            ]
        for refused in decided.refused:
            if refused.move.job in jobs:
                job, why = jobs[refused.move.job], f"refused: {refused.reason}"
                decisions.append(Decision.of(refused.move, job, why))
        queueing, acts = self._moves.queueing, self._steering.acts()
        queued = [job for job in decided.from_slurm & jobs.keys() if jobs[job].queued]
        queueing.decide(
            seen.snapshot, into=decided.to_slurm if acts else (), out=queued if acts else ()
        )
        if acts:
            self._books.stages.begin(decided.stage_ins, seen.snapshot, now=seen.at)
            queueing.go_on(seen.snapshot, self._moves.jobs(), most=IN_A_ROUND)
            self._moves.tidy(seen.snapshot, seen.ignored, seen.holds)
            self._books.stages.tidy(seen.snapshot, now=seen.at)
            self._tell(decisions, decided.problem.jobs, seen)
        if self._steering.mode == "act":
            self._moves.live.clean(seen.snapshot)
        if any(decision.verdict == "begun" for decision in decisions):
            self._begun()
        return tuple(decisions)

    def _begin(self, move: Move, jobs: Mapping[JobId, Job], seen: Seen) -> str:
        """What became of a move that may be begun."""
        try:
            # What was begun just now may stand in its way.
            if wait := self._moves.obstacle(move, jobs, seen.snapshot):
                return f"waits: {wait}"
            self._moves.begin(move, jobs, seen.snapshot, by=self._policy.config.policy)
        except ValueError as fault:
            log.error("job %d: a %s can't be begun: %s", move.job, move.kind, fault)
            return f"refused: {fault}"
        return "begun"

    def _tell(self, decisions: Sequence[Decision], jobs: Sequence[Job], seen: Seen) -> None:
        """In the jobs' comments, where the site wants that."""
        if self._policy.config.slurm.comment_every is None:
            return
        refused = ("refused", "left")
        following = {
            int(one.job): one.gpus_after for one in decisions if not one.verdict.startswith(refused)
        }
        told = self._books.heard.reports()
        words = {job: one.received.message for job, one in told.items()}
        reports = {job: word for job, word in words.items() if isinstance(word, Report)}
        self._moves.comment(jobs, following, reports, seen.snapshot)

    def _record(self, decided: Answer, decisions: tuple[Decision, ...], seen: Seen) -> None:
        config = self._policy.config
        self.published = Round(
            number=self.published.number + 1,
            at=seen.at,
            seconds=self._clock() - seen.at,
            outcome=counted(len(decisions), "decision") if decisions else "nothing to change",
            snapshot=seen.snapshot,
            jobs=decided.problem.jobs,
            problem=decided.problem,
            decisions=decisions,
            notes={
                **decided.capped,
                **decided.plan.idle,
                **decided.problem.unestimated,
                **self._contradictions(),
            },
            prospects=self._prospects(decided.problem, seen.snapshot),
            ends=Ends(decided.problem, decided.rigid),
            ignored=seen.ignored,
            disorder=seen.disorder,
            doubts=seen.doubts,
            unlimited=seen.unlimited,
            left_out=decided.left_out,
            fault=decided.fault,
            rigid=decided.rigid,
            gap=decided.plan.gap,
        )
        before = self._books.rounds.keep(
            self.published,
            policy=config.policy,
            mode=config.mode,
            keep_seconds=config.keep_days * 86400,
            keep_bytes=config.keep_mib * 2**20,
        )
        if before is not None:
            self._books.reports.forget(before)
        nodes = [node for node in seen.snapshot.nodes.values() if node.gpus]
        ours = [job for job in seen.snapshot.jobs.values() if job.marked or job.is_satellite]
        self._metrics.round(
            self.published,
            silent=sum(self._observer.silent(node) for node in nodes),
            unusable=sum(bool(self._observer.unusable(node)) for node in nodes),
            elastic=gpus_held(ours),
        )
