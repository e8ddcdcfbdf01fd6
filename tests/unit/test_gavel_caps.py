"""Limits of the site are rows of Gavel's programs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem

from ones.policies.gavel.policies import POLICIES
from ones.policies.gavel.problem import Problem
from ones.policies.gavel.program import Caps, Unsolved
from ones.policies.invariants import validate
from ones.policies.model import Cap, JobId, Take
from ones.policies.registry import make

LINEAR = (
    "max_min_fairness_perf",
    "max_min_fairness_water_filling_perf",
    "finish_time_fairness_perf",
    "max_sum_throughput_perf",
    "min_total_duration_perf",
)


def capped(jobs: int, types: int, counted: list[int], left: float) -> Problem:
    speeds = 1.0 + np.arange(jobs * types, dtype=np.float64).reshape(jobs, types) / 10
    takes = np.zeros((1, jobs, types))
    takes[0, counted] = 1.0
    problem = Problem.of(speeds, np.full(types, 2.0))
    return replace(problem, caps=Caps(takes=takes, left=np.array([left])))


@pytest.mark.parametrize("name", LINEAR)
@settings(max_examples=10, deadline=None)
@given(
    jobs=st.integers(2, 5),
    types=st.integers(1, 2),
    left=st.floats(0.1, 3.0),
    data=st.data(),
)
def test_what_is_shared_out_is_within_a_cap(
    name: str, jobs: int, types: int, left: float, data: st.DataObject
) -> None:
    counted = sorted(data.draw(st.sets(st.integers(0, jobs - 1), min_size=1)))
    problem = capped(jobs, types, counted, left)
    shares = POLICIES[name].allocate(problem).shares.alone
    assert shares[counted].sum() <= left + 1e-6
    assert (shares.sum(axis=1) <= 1 + 1e-6).all()
    assert (shares.sum(axis=0) <= 2 + 1e-6).all()


@pytest.mark.parametrize("name", ["min_total_duration_perf", "finish_time_fairness_perf"])
def test_no_time_for_a_job_with_steps_left_is_no_answer(name: str) -> None:
    with pytest.raises(Unsolved):
        POLICIES[name].allocate(capped(3, 1, [1], 0.0))


def test_water_rises_on_for_those_whom_no_cap_holds() -> None:
    """Three jobs share 0.6 of a GPU by their cap; the fourth has its time to itself."""
    problem = capped(4, 1, [0, 1, 2], 0.6)
    shares = POLICIES["max_min_fairness_water_filling"].allocate(problem).shares.alone
    assert shares[3].sum() == pytest.approx(1.0, abs=1e-5)
    assert shares[:3].sum() == pytest.approx(0.6, abs=1e-5)
    assert shares[:3].min() == pytest.approx(0.2, abs=1e-3)


def test_rounds_aim_at_shares_within_the_caps_and_outlive_a_restart() -> None:
    nodes = a_cluster(2, 4)
    jobs = [a_job(i, "2", requested=2, nodes=nodes) for i in range(1, 6)]
    cap = Cap(words="a cap", left=2.0, takes={JobId(i): Take(gpu=1.0) for i in (1, 2, 3)})
    problem = a_problem(jobs, nodes, caps=(cap,))
    policy = make("gavel:max_min_fairness_water_filling_perf")
    _, memory = policy.plan(problem, None, np.random.default_rng(0))
    kept = json.loads(json.dumps(memory))
    due = {int(id_): sum(one[4].values()) for id_, one in kept["target"]["jobs"].items()}
    assert due[1] + due[2] + due[3] == pytest.approx(1.0, abs=1e-4)
    assert min(due[4], due[5]) == pytest.approx(1.0, abs=1e-4)
    again, _ = policy.plan(replace(problem, now=1060.0), kept, np.random.default_rng(0))
    validate(replace(problem, caps=()), again)
