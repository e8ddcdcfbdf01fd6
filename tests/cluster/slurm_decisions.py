"""What the policy `slurm` would start of the jobs that really waited, instant by instant.

A whole replay hangs on every tenth of a second: a job that misses one pass changes all that
follows. Here each question is asked of the state that slurmctld had, so that one difference is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import floor

import numpy as np
from slurm_peer import NODES, SETTINGS, Ran, as_traced, beginning

from ones.daemon.replay.jobs import simulated
from ones.policies.model import Job, Placement, Problem
from ones.policies.registry import Site, make

STEP = 0.25  # seconds from one question to the next
MOMENT = 0.001
LATELY = 1.0  # what Slurm starts, the policy must have wanted to start so long before, at most
A_PASS = 0.5  # seconds: starts further apart than that are of two passes


@dataclass(frozen=True, slots=True)
class Asked:
    """One question and its answer."""

    at: float
    started: frozenset[int]  # the jobs that the policy would start, by Slurm's number


@dataclass(frozen=True, slots=True)
class Decisions:
    """Where Slurm and the policy differ."""

    jobs: int
    unasked: tuple[int, ...]  # Slurm started them and the policy would not have
    passed_over: tuple[int, ...]  # left waiting in two passes that started others

    @classmethod
    def of(cls, ran: Sequence[Ran], *, counted: float) -> Decisions:
        asked = tuple(answers(ran, counted=counted))
        return cls(
            jobs=len(ran),
            unasked=tuple(one.job for one in ran if not _wanted_lately(one, asked)),
            passed_over=tuple(one.job for one in ran if _passed_over(one, ran, asked)),
        )

    @property
    def differing(self) -> int:
        return len({*self.unasked, *self.passed_over})


def answers(ran: Sequence[Ran], *, counted: float) -> Iterator[Asked]:
    """Every so often, and just before each start; times as slurmctld logged them."""
    zero = beginning(ran, counted)
    traced = simulated(as_traced(ran, zero), NODES, [True] * len(ran), {})
    jobs = [(job.as_seen(), one) for job, one in zip(traced, ran, strict=True)]
    numbers = {job.id: one.job for job, one in jobs}
    policy = make("slurm", site=Site(slurm=replace(SETTINGS, bf_interval=MOMENT)))
    rng, memory = np.random.default_rng(0), None
    for at in _instants(ran, zero):
        there = tuple(_seen(job, one, at, zero) for job, one in jobs if _there(one, at))
        problem = Problem(now=at - zero, nodes=NODES, jobs=there, outlooks={})
        plan, memory = policy.plan(problem, memory, rng)
        new = {job.id for job in there if job.placement is None and job.id in plan.assignments}
        yield Asked(at, frozenset(numbers[job] for job in new))


def _instants(ran: Sequence[Ran], zero: float) -> list[float]:
    first, last = zero, max(one.started for one in ran)
    regular = [first + STEP * tick for tick in range(int((last - first) / STEP) + 1)]
    return sorted({*regular, *(one.started - MOMENT for one in ran)})


def _there(one: Ran, at: float) -> bool:
    return one.submitted <= at < one.ended


def _seen(job: Job, one: Ran, at: float, zero: float) -> Job:
    if at < one.started:
        return job
    per_node = one.sleep.gpus // len(one.nodes)
    placement = Placement(tuple((node, per_node) for node in one.nodes))
    return replace(job, placement=placement, started=floor(one.started) - zero)


def _wanted_lately(one: Ran, asked: Sequence[Asked]) -> bool:
    return any(
        one.job in answer.started
        for answer in asked
        if one.started - LATELY <= answer.at < one.started
    )


def _passed_over(one: Ran, ran: Sequence[Ran], asked: Sequence[Asked]) -> bool:
    waiting = [answer for answer in asked if one.submitted <= answer.at < one.started]
    for wanted, streak in groupby(waiting, key=lambda answer: one.job in answer.started):
        times = [answer.at for answer in streak]
        others = [each.started for each in ran if times[0] + A_PASS < each.started < times[-1]]
        if wanted and others and max(others) - min(others) > A_PASS:
            return True
    return False
