"""Who must begin in time for all to end soon."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem
from scipy.optimize import linprog

from ones.policies.model import Floats, Problem
from ones.policies.ones_options import build
from ones.policies.ones_settings import Settings
from ones.policies.ones_slack import least_makespan
from ones.policies.registry import make

EIGHT = a_cluster(2)  # nodes of four GPUs


def slacks(problem: Problem) -> list[float]:
    options = build(problem, problem.jobs, {}, Settings(makespan=1.0))
    return [float(one) for one in options.slack]


def a_long_one_and_others() -> Problem:
    """On eight GPUs a job that takes as long as all together can at least, and six short ones."""
    jobs = [a_job(number, sizes="4", requested=4, nodes=EIGHT) for number in range(1, 8)]
    left = {1: 4000.0} | dict.fromkeys(range(2, 8), 400.0)
    return a_problem(jobs, EIGHT, left=left)


def test_a_job_that_takes_as_long_as_all_at_least_has_no_slack_and_short_ones_need_none() -> None:
    found = slacks(a_long_one_and_others())
    assert found[0] == pytest.approx(0.0, abs=1e-6)
    assert found[1:] == [1.0] * 6


def test_who_can_catch_up_by_growing_needs_not_hurry() -> None:
    problem = a_long_one_and_others()
    first = a_job(1, sizes="4-8", requested=4, nodes=EIGHT)
    assert slacks(replace(problem, jobs=(first, *problem.jobs[1:]))) == [1.0] * 7


def test_as_long_as_jobs_come_there_is_no_end_of_all() -> None:
    assert slacks(replace(a_long_one_and_others(), arrival_rate=0.001)) == [1.0] * 7


def test_a_guess_at_a_length_hurries_nobody() -> None:
    problem = a_long_one_and_others()
    guessed = {id_: replace(one, guessed=True) for id_, one in problem.outlooks.items()}
    assert slacks(replace(problem, outlooks=guessed)) == [1.0] * 7


def test_a_job_that_can_run_nowhere_disturbs_nobody() -> None:
    problem = a_long_one_and_others()
    nowhere = a_job(9, sizes="16", requested=16, nodes=EIGHT)
    outlooks = {**problem.outlooks, nowhere.id: problem.outlooks[problem.jobs[0].id]}
    found = slacks(replace(problem, jobs=(*problem.jobs, nowhere), outlooks=outlooks))
    assert found[:7] == slacks(problem)
    assert found[7] == 1.0


@pytest.mark.parametrize(("makespan", "begins"), [(1, True), (0, False)])
def test_the_long_job_begins_at_once_instead_of_last(makespan: float, begins: bool) -> None:
    policy = make(f"ones:makespan={makespan}")
    plan, _ = policy.plan(a_long_one_and_others(), None, np.random.default_rng(1))
    assert len(plan.assignments) == 2
    assert (1 in plan.assignments) == begins


def exact(spent: Floats, gpus: Floats) -> float:
    """By linear programming: all work divided over the types so that the last one ends first."""
    jobs, types = spent.shape
    able = np.isfinite(spent)
    cost = np.where(able, spent, 0.0)
    loads = [[*np.where(np.arange(types) == t, cost, 0.0).ravel(), -gpus[t]] for t in range(types)]
    whole = [[*np.repeat(np.arange(jobs) == j, types).astype(float), 0.0] for j in range(jobs)]
    bounds = [(0.0, 1.0 if one else 0.0) for one in able.ravel()] + [(0.0, None)]
    aim = [0.0] * (jobs * types) + [1.0]
    found = linprog(
        aim, A_ub=loads, b_ub=[0.0] * types, A_eq=whole, b_eq=[1.0] * jobs, bounds=bounds
    )
    return float(found.fun)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_no_schedule_is_shorter_and_the_bound_is_near(jobs: int, types: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spent = np.exp(rng.normal(5.0, 1.5, (jobs, types)))
    spent[rng.random(spent.shape) < 0.2] = np.inf
    spent[np.arange(jobs), rng.integers(types, size=jobs)] = 100.0
    gpus = rng.integers(1, 33, types).astype(np.float64)
    bound, best = least_makespan(spent, gpus), exact(spent, gpus)
    assert bound <= best * (1 + 1e-9)
    assert bound >= 0.8 * best


def test_nothing_to_do_is_done_at_once() -> None:
    assert least_makespan(np.zeros((0, 2)), np.ones(2)) == 0.0
    assert least_makespan(np.array([[5.0, np.inf]]), np.array([0.0, 4.0])) == 0.0
