"""A small cluster with plain and elastic jobs: Slurm starts the plain ones, onesd's round the rest.

The same jobs can be run with every elastic job rigid, at its own request, on Slurm alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
from policy_builders import a_job, an_outlook

from ones.daemon.onesd.deciding import Question, answer
from ones.policies.forecast import seconds_left_on
from ones.policies.guard import History, Limits
from ones.policies.model import Job, JobId, Node, Placement, Policy, Problem, Shape
from ones.policies.rigid import PlainJob, Rigid

ROUND = 10.0
LIMITS = Limits(grace=0.0, exempt=0.0, max_resizes_per_hour=10**6, min_gain=None, max_wait=inf)


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A job that did not opt in."""

    id: int
    submitted: float
    nodes: int
    per_node: int
    seconds: float  # that it runs
    limit: float  # that it asks for
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """A job that did."""

    id: int
    submitted: float
    requested: int
    sizes: str
    work: float  # seconds on one GPU, about
    priority: int = 0
    limit: float = 1e6


@dataclass
class Running:
    placement: Placement
    started: float
    pause: float = 0.0


@dataclass
class Mixed:
    """One run of a mix of jobs."""

    nodes: list[Node]
    jobs: Sequence[Plain | Elastic]
    policy: Policy | None = None  # None: everybody is rigid
    now: float = 0.0
    running: dict[int, Running] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)  # share of its work
    waited: Counter[int] = field(default_factory=Counter)
    started: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    queued: set[int] = field(default_factory=set)  # elastic jobs in Slurm's own queue
    rigid: Rigid | None = None
    memory: object = None
    due: dict[int, float] = field(default_factory=dict)  # plain job -> when it is to have started
    kept: Counter[int] = field(default_factory=Counter)
    """Seconds for which it waited after that, although it would have fitted beside plain jobs, and
    elastic ones that run where they would be running if they were rigid, too."""

    def run(self, most: float = 1e5) -> Mixed:
        rng = np.random.default_rng(0)
        while len(self.ended) < len(self.jobs) and self.now < most:
            if self.policy is not None:
                self._round(self.policy, rng)
            self._slurm()
            self._watch()
            self._advance()
        assert len(self.ended) == len(self.jobs), "somebody never ends"
        return self

    def _watch(self) -> None:
        by_id = {job.id: job for job in self.jobs}
        claims = self.rigid.claims if self.rigid else {}
        plain = [
            (self.now, self.now + 1.0, one.placement)
            for id_, one in self.running.items()
            if not isinstance(job := by_id[id_], Elastic)
            or (JobId(id_) in claims and one.placement.gpus <= job.requested)
        ]
        for id_, at in self.due.items():
            waits = id_ not in self.running and id_ not in self.ended
            if at <= self.now and waits and self._fit(by_id[id_], self.now, self.now + 1.0, plain):
                self.kept[id_] += int(ROUND)

    def _alive(self) -> list[Plain | Elastic]:
        there = (job for job in self.jobs if job.submitted <= self.now)
        return [job for job in there if job.id not in self.ended]

    def _slurm(self) -> None:
        """In order of priority; behind one that waits only who delays nobody by all limits."""
        queue = [
            job
            for job in self._alive()
            if job.id not in self.running
            and (self.policy is None or isinstance(job, Plain) or job.id in self.queued)
        ]
        queue.sort(key=lambda job: (-job.priority, job.submitted, job.id))
        by_id = {job.id: job for job in self.jobs}
        uses = [
            (self.now, max(self.now + 1, one.started + by_id[id_].limit), one.placement)
            for id_, one in self.running.items()
        ]
        for job in queue:
            times = sorted({self.now, *(end for _, end, _ in uses if end > self.now)})
            for at in times:
                placement = self._fit(job, at, at + job.limit, uses)
                if placement is None:
                    continue
                uses.append((at, at + job.limit, placement))
                if at == self.now:
                    self.running[job.id] = Running(placement, self.now)
                    self.queued.discard(job.id)
                    self.started.setdefault(job.id, self.now)
                break

    def _fit(
        self,
        job: Plain | Elastic,
        begin: float,
        end: float,
        uses: Iterable[tuple[float, float, Placement]],
    ) -> Placement | None:
        shape = shape_of(job, self.nodes)
        beside = [use for use in uses if use[0] < end and begin < use[1]]
        marks = {begin, *(use[0] for use in beside if begin < use[0])}
        least = {node.name: node.gpus for node in self.nodes}
        for mark in marks:
            free = {node.name: node.gpus for node in self.nodes}
            for since, until, placement in beside:
                if since <= mark < until:
                    for name, gpus in placement.gpus_on:
                        free[name] -= gpus
            least = {name: min(least[name], gpus) for name, gpus in free.items()}
        enough = sorted(
            (name for name, gpus in least.items() if gpus >= shape.gpus_per_node),
            key=lambda name: (least[name], name),
        )
        chosen = enough[: shape.nodes]
        return (
            Placement.of(dict.fromkeys(chosen, shape.gpus_per_node))
            if len(chosen) == shape.nodes
            else None
        )

    def _round(self, policy: Policy, rng: np.random.Generator) -> None:
        problem = self.problem()
        plain = [self._seen(job) for job in self._alive() if isinstance(job, Plain)]
        question = Question(
            problem=problem, history=History(), limits=LIMITS, plain=plain, rigid=self.rigid
        )
        found = answer(question, policy, self.memory, rng)
        assert not found.fault, found.fault
        self.memory, self.rigid = found.memory, found.rigid
        self.queued -= {int(job) for job in found.from_slurm}
        self.queued |= {int(job) for job in found.to_slurm}
        for move in found.moves:
            number = int(move.job)
            self.queued.discard(number)
            if move.target is None:
                del self.running[number]
            else:
                self.running[number] = Running(move.target, self.now, pause=1.0)
                self.started.setdefault(number, self.now)

    def problem(self) -> Problem:
        elastic = [job for job in self._alive() if isinstance(job, Elastic)]
        taken = Counter[str]()
        for job in self._alive():
            if isinstance(job, Plain) and job.id in self.running:
                taken.update(dict(self.running[job.id].placement.gpus_on))
        return Problem(
            now=self.now,
            nodes=tuple(replace(node, taken=taken[node.name]) for node in self.nodes),
            jobs=tuple(self.as_job(job) for job in elastic),
            outlooks={JobId(job.id): self._outlook(job) for job in elastic},
            round_seconds=ROUND,
        )

    def as_job(self, job: Elastic) -> Job:
        here = self.running.get(job.id)
        return a_job(
            job.id,
            job.sizes,
            requested=job.requested,
            nodes=self.nodes,
            submitted=job.submitted,
            priority=job.priority,
            queued=job.id in self.queued,
            placement=here.placement if here else None,
            started=here.started if here else None,
            waited=float(self.waited[job.id]),
            time_limit=job.limit,
        )

    def _outlook(self, job: Elastic):  # type: ignore[no-untyped-def]
        left = self.left.get(job.id, 1.0)
        processed = job.work * (1.0 - left)
        return replace(
            an_outlook(max(job.work * left, 1e-6), processed=max(processed, 1e-6)),
            processed=processed,
            restart_cost=1.0,
        )

    def _seen(self, job: Plain) -> PlainJob:
        here = self.running.get(job.id)
        return PlainJob(
            id=JobId(job.id),
            submitted=job.submitted,
            gpus=job.nodes * job.per_node,
            nodes=frozenset(node.name for node in self.nodes),
            priority=job.priority,
            shapes=(Shape(job.nodes, job.per_node),),
            least_nodes=job.nodes,
            limit=job.limit,
            started=here.started if here else None,
            placement=here.placement if here else None,
        )

    def _advance(self) -> None:
        for job in self._alive():
            here = self.running.get(job.id)
            if here is None:
                self.waited[job.id] += int(ROUND)
                continue
            seconds = ROUND - min(here.pause, ROUND)
            here.pause = max(0.0, here.pause - ROUND)
            left = self.left.get(job.id, 1.0) - seconds / self._whole(job, here.placement)
            self.left[job.id] = left
            if left <= 1e-9:
                self.ended[job.id] = self.now + ROUND
                del self.running[job.id]
        self.now += ROUND

    def _whole(self, job: Plain | Elastic, placement: Placement) -> float:
        """Seconds from its beginning to its end there."""
        if isinstance(job, Plain):
            return job.seconds
        seen = self.as_job(job)
        whole = Problem(
            now=self.now,
            nodes=tuple(self.nodes),
            jobs=(seen,),
            outlooks={seen.id: an_outlook(job.work)},
        )
        return seconds_left_on(whole, seen, placement)


def shape_of(job: Plain | Elastic, nodes: Sequence[Node]) -> Shape:
    if isinstance(job, Plain):
        return Shape(job.nodes, job.per_node)
    size = job.requested
    most = nodes[0].gpus
    return Shape(1, size) if size <= most else Shape(size // most, most)


def kept_waiting(
    nodes: list[Node], jobs: Sequence[Plain | Elastic], policy: Policy, *, notice: float
) -> dict[int, int]:
    """Plain jobs that elastic ones keep waiting, for how long after they would have started had
    all been rigid, and some time for notice.

    One that waits for plain jobs which started sooner than that isn't kept by an elastic one.
    """
    rigid = Mixed(nodes, jobs).run()
    due = {job.id: rigid.started[job.id] + notice for job in jobs if isinstance(job, Plain)}
    return dict(Mixed(nodes, jobs, policy, due=due).run().kept)
