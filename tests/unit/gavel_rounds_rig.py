"""A cluster of whole rounds for the tests of Gavel's rounds: no clock, no restart costs."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from policy_builders import PlainSpeed, a_job, an_outlook

from ones.policies.guard import History, Limits
from ones.policies.model import Job, JobId, Node, Outlook, Policy, Problem
from ones.policies.round import Decided, decide

LIMITS = Limits(grace=0.0, exempt=0.0, max_resizes_per_hour=10**6, min_gain=None, max_wait=1e12)


@dataclass
class Rig:
    """Jobs and what they have had, from round to round, under one policy."""

    policy: Policy
    nodes: list[Node]
    jobs: dict[JobId, Job] = field(default_factory=dict)
    speeds: dict[JobId, PlainSpeed] = field(default_factory=dict)
    round_seconds: float = 360.0
    now: float = 0.0
    remaining: float = 1e6  # samples that every job is believed to have left
    memory: object = None
    had: dict[JobId, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    moves: dict[JobId, int] = field(default_factory=lambda: defaultdict(int))
    decided: Decided | None = None

    def submit(
        self, id_: int, gpus: int = 1, *, slow: float = 2.0, apart: float = 0.1, **more: object
    ) -> JobId:
        """A rigid job that is `slow` times slower on a K80, and by `apart` on several nodes."""
        more = {"submitted": self.now, **more}
        job = a_job(id_, str(gpus), requested=gpus, nodes=self.nodes, **more)
        self.jobs[job.id] = job
        self.speeds[job.id] = PlainSpeed(slow=("k80", slow), between_nodes=apart)
        return job.id

    def end(self, job: JobId) -> None:
        del self.jobs[job]

    def fix(self, job: JobId, reason: str = "") -> None:
        self.jobs[job] = replace(self.jobs[job], fixed=reason)

    def outlook(self, job: JobId) -> Outlook:
        return replace(an_outlook(1e6, speed=self.speeds[job]), remaining=self.remaining)

    def plan(self) -> Decided:
        """What is decided now; carried out, in no time."""
        problem = Problem(
            now=self.now,
            nodes=tuple(self.nodes),
            jobs=tuple(self.jobs.values()),
            outlooks={id_: self.outlook(id_) for id_ in self.jobs},
        )
        decided = decide(
            problem,
            self.policy,
            json.loads(json.dumps(self.memory)),
            np.random.default_rng(0),
            history=History(),
            limits=LIMITS,
        )
        assert (decided.left_out, decided.fault) == ({}, "")
        assert not decided.verdict.refused
        for move in decided.verdict.allowed:
            job = self.jobs[move.job]
            started = self.now if move.target else None
            self.jobs[job.id] = replace(job, placement=move.target, started=started)
            self.moves[job.id] += 1
        self.memory, self.decided = decided.memory, decided
        return decided

    def run(self, rounds: int = 1) -> None:
        """So many rounds."""
        kinds = {node.name: node.gpu_type for node in self.nodes}
        for _ in range(rounds):
            self.plan()
            self.now += self.round_seconds
            for job in list(self.jobs.values()):
                if job.placement is None:
                    self.jobs[job.id] = replace(job, waited=job.waited + self.round_seconds)
                    continue
                self.jobs[job.id] = replace(job, executed=job.executed + self.round_seconds)
                kind = kinds[job.placement.nodes[0]]
                spent = self.had[job.id]
                spent[kind] = spent.get(kind, 0.0) + self.round_seconds

    def seconds(self, job: JobId, kind: str | None = None) -> float:
        """What the job has had, in all or on one type."""
        return self.had[job].get(kind, 0.0) if kind else sum(self.had[job].values())

    def running(self) -> set[int]:
        return {int(job.id) for job in self.jobs.values() if job.placement}

    def idle_gpus(self) -> int:
        held = sum(job.placement.gpus for job in self.jobs.values() if job.placement)
        return sum(node.gpus - node.taken for node in self.nodes if node.usable) - held
