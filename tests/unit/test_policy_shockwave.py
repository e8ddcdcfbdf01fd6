"""Shockwave's windows against their definition, and its rounds one after the other."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from policy_builders import a_cluster, a_job, a_problem, an_outlook

from ones.policies.invariants import validate
from ones.policies.model import Job, JobId, Plan, Problem
from ones.policies.shockwave import Shockwave
from ones.policies.shockwave_window import (
    PROGRESS,
    Demand,
    rounds_for,
    weights_of,
    window_of,
)

SECONDS, ROUNDS = 120.0, 4


def demand(id_: int, *, gpus: int = 1, age: float = 0.0, done: float = 0.0, left: float) -> Demand:
    return Demand(id=JobId(id_), gpus=gpus, age=age, done=done, left=left)


def drawn(seed: int) -> tuple[list[Demand], int]:
    rng = np.random.default_rng(seed)
    demands = [
        demand(
            at,
            gpus=int(rng.choice([1, 2, 4])),
            age=float(rng.uniform(0, 2000)),
            done=float(rng.choice([0.0, rng.uniform(0, 1000)])),
            left=float(rng.uniform(50, 1500)),
        )
        for at in range(4)
    ]
    return demands, int(rng.integers(4, 7))


def score(
    demands: list[Demand],
    weights: np.ndarray,
    given: tuple[int, ...],
    *,
    gpus: int,
    regularizer: float,
) -> float:
    """The objective as it is written in the paper (Shockwave §6.3)."""
    whole = np.array([one.done + one.left for one in demands])
    spent = np.array(given) * SECONDS
    progress = np.clip((np.array([one.done for one in demands]) + spent) / whole, 1e-6, 1.0)
    logs = np.interp(progress, PROGRESS, np.log(PROGRESS))
    left = np.array([one.left for one in demands]) - spent
    size = np.array([one.gpus for one in demands])
    makespan = max(0.0, left.max(), float(size @ left) / gpus)
    return float(weights @ logs) / (len(demands) * ROUNDS) - regularizer * makespan


@pytest.mark.parametrize("regularizer", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize("seed", range(5))
def test_the_rounds_are_the_best_there_are(seed: int, regularizer: float) -> None:
    demands, gpus = drawn(seed)
    weights = weights_of(demands, gpus=gpus, power=2.0)
    found = rounds_for(
        demands, weights, gpus=gpus, rounds=ROUNDS, seconds=SECONDS, regularizer=regularizer
    )
    size = np.array([one.gpus for one in demands])
    most = [min(ROUNDS, int(np.ceil(one.left / SECONDS))) for one in demands]
    able = [
        given
        for given in product(*(range(each + 1) for each in most))
        if size @ np.array(given) <= gpus * ROUNDS
    ]
    best = max(score(demands, weights, given, gpus=gpus, regularizer=regularizer) for given in able)
    assert tuple(found) in able
    here = score(demands, weights, tuple(found), gpus=gpus, regularizer=regularizer)
    assert here >= best - 2e-3 * abs(best) - 1e-9


def test_who_is_behind_a_fair_share_counts_more() -> None:
    demands = [demand(1, age=100.0, done=100.0, left=400.0), demand(2, age=4000.0, left=400.0)]
    first, second = weights_of(demands, gpus=1, power=5.0)
    assert second > first


def test_a_long_job_runs_throughout_where_the_makespan_counts() -> None:
    demands = [demand(1, left=100 * SECONDS), *(demand(at, left=SECONDS) for at in range(2, 8))]
    weights = np.array([1e-3, *np.ones(6)])
    some, all_ = (
        rounds_for(
            demands, weights, gpus=2, rounds=ROUNDS, seconds=SECONDS, regularizer=regularizer
        )
        for regularizer in (0.0, 1.0)
    )
    assert some[0] < ROUNDS
    assert all_[0] == ROUNDS


@pytest.mark.parametrize("seed", range(10))
def test_no_round_has_more_than_the_gpus_and_no_job_more_than_its_rounds(seed: int) -> None:
    demands, gpus = drawn(seed)
    given = np.random.default_rng(seed).integers(0, ROUNDS + 1, len(demands))
    slots = window_of(demands, np.ones(len(demands)), given, gpus=gpus, rounds=ROUNDS)
    assert len(slots) == ROUNDS
    for slot in slots:
        assert len(set(slot)) == len(slot)
        assert sum(demands[id_].gpus for id_ in slot) <= gpus
    for one, rounds in zip(demands, given, strict=True):
        assert sum(one.id in slot for slot in slots) <= rounds


def test_jobs_of_one_gpu_get_all_the_rounds_that_they_were_given() -> None:
    demands = [demand(at, left=1000.0) for at in range(3)]
    given = np.array([4, 2, 2])
    slots = window_of(demands, np.array([1.0, 9.0, 5.0]), given, gpus=2, rounds=ROUNDS)
    assert [sum(at in slot for slot in slots) for at in range(3)] == list(given)
    assert slots[0] == [0, 1]  # the one that can't wait, and of the others the heavier


def a_round(jobs: list[Job], now: float, memory: object = None) -> tuple[Plan, object]:
    problem: Problem = replace(
        a_problem(jobs, a_cluster(1, gpus=4), now=now),
        outlooks={job.id: an_outlook(4000.0) for job in jobs},
    )
    found, kept = Shockwave().plan(problem, memory, np.random.default_rng(0))
    validate(problem, found)
    return found, json.loads(json.dumps(kept))


def test_nobody_makes_way_within_a_round_and_everybody_runs_within_a_window() -> None:
    jobs = [a_job(at, "4", requested=4, submitted=0.0) for at in (1, 2, 3)]
    ran: list[set[int]] = []
    memory: object = None
    for now in np.arange(0.0, 20 * 120.0, 30.0):
        found, memory = a_round(jobs, float(now), memory)
        ran.append({int(id_) for id_ in found.assignments})
        jobs = [
            replace(
                job,
                placement=given.placement if (given := found.assignments.get(job.id)) else None,
            )
            for job in jobs
        ]
    assert all(ran[at] == ran[at - at % 4] for at in range(len(ran)))
    assert set().union(*ran) == {1, 2, 3}


def test_a_job_that_comes_has_the_window_planned_anew() -> None:
    jobs = [a_job(1, "4", requested=4)]
    _, memory = a_round(jobs, 0.0)
    _, later = a_round([*jobs, a_job(2, "4", requested=4)], 30.0, memory)
    assert isinstance(memory, dict) and isinstance(later, dict)
    assert memory["begun"] == 0.0 and later["begun"] == 30.0
