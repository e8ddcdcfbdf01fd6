"""Large programs, most rows of which prices settle, against HiGHS; samples here are small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest
from gavel_builders import (
    NEAR,
    a_problem,
    check_against_highs,
    crowds,
    faults,
    program_of,
    shares_of,
    with_pools,
)
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from ones.policies.gavel import Problem, sifting
from ones.policies.gavel.choosing import Choice, Nearby, cheapest
from ones.policies.gavel.elimination import Form
from ones.policies.gavel.interior import solve_by_interior_point
from ones.policies.gavel.program import Program, Scaled, Solution, Unsolved, solve_with_highs
from ones.policies.gavel.sifting import is_worth_sifting, solve_by_sifting
from ones.policies.gavel.solving import solve
from ones.policies.model import Floats

# What gives up is drawn anew, which may happen more often than not.
some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


@contextmanager
def small_samples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sifting, "MANY", 20)
        patch.setattr(sifting, "SAMPLE", 0.6)
        yield


def sifted(program: Program) -> Solution:
    """What sifting finds; it may give up, and then says nothing."""
    solution: Solution | None = None
    with small_samples(), suppress(Unsolved):
        solution = solve_by_sifting(program)
    assume(solution is not None)
    assert solution is not None
    return solution


def relative_speeds(program: Program, solution: Solution) -> float:
    best = np.where(program.there, program.throughput, 0.0).max(axis=1)
    return float((program.speeds(solution.x) / best).sum())


def most(program: Program, floor: Floats, *, method: str = "highs") -> float:
    """By HiGHS: the largest sum of relative speeds in which nobody falls below the floor."""
    best = np.where(program.there, program.throughput, 0.0).max(axis=1)
    reward = program.throughput / best[:, None]
    wanted = replace(program, rate=np.zeros_like(floor), floor=floor, reward=reward)
    return solve_with_highs(wanted, method=method).objective


@some
@given(crowds())
def test_the_level_is_that_of_highs(problem: Problem) -> None:
    for rate in (shares_of(problem), problem.steps):
        program = program_of(problem, rate)
        solution = sifted(program)
        check_against_highs(program, solution)


@some
@given(crowds(most=60), st.floats(0.1, 0.9), st.integers(0, 2**32 - 1))
def test_the_level_above_floors_is_that_of_highs(problem: Problem, part: float, seed: int) -> None:
    program = program_of(problem, shares_of(problem))
    level = solve_with_highs(program).objective
    held = np.random.default_rng(seed).random(len(problem.jobs)) < 0.3
    program = replace(
        program,
        floor=part * level * program.rate,
        rate=np.where(held & ~held.all(), 0.0, program.rate),
    )
    solution = sifted(program)
    check_against_highs(program, solution)


@some
@given(crowds(), st.floats(0.0, 0.99))
def test_the_sum_above_floors_is_that_of_highs(problem: Problem, part: float) -> None:
    program = program_of(problem, shares_of(problem))
    level = solve_with_highs(program).objective
    floor, nothing = part * level * program.rate, np.zeros_like(program.rate)
    best = program.throughput.max(axis=1, keepdims=True)
    for reward in (program.throughput, program.throughput / best):
        wanted = replace(program, rate=nothing, floor=floor, reward=reward)
        solution = sifted(wanted)
        check_against_highs(wanted, solution)


@some
@given(crowds())
def test_what_a_level_leaves_goes_to_the_largest_sum_of_relative_speeds(problem: Problem) -> None:
    program = program_of(problem, shares_of(problem))
    solution = sifted(program)
    assume(solution.full)
    floor = solution.objective * program.rate
    # Where two types are nearly the same to a job, its last digits are worth a thousand times more.
    slack = (1 - 1e-9) * floor
    assert relative_speeds(program, solution) == pytest.approx(most(program, slack), rel=1e-5)


@some
@given(crowds())
def test_where_all_gpus_have_a_price_a_level_leaves_nothing(problem: Problem) -> None:
    program = program_of(problem, shares_of(problem))
    solution = solve_by_interior_point(program)
    assume(solution.full)
    slack = (1 - 1e-9) * solution.objective * program.rate
    assert relative_speeds(program, solution) == pytest.approx(most(program, slack), rel=1e-4)


@some
@given(crowds())
def test_prices_prove_the_level(problem: Problem) -> None:
    """No allocation is better than what the prices allow: weak duality, by hand."""
    program = program_of(problem, shares_of(problem))
    solution = sifted(program)
    assert solution.worth @ program.rate == pytest.approx(1.0, rel=NEAR)
    cost = np.where(program.there, program.gang[:, None] * solution.prices[program.pool], np.inf)
    profit = np.maximum(program.throughput * solution.worth[:, None] - cost, 0.0).max(axis=1)
    assert profit.sum() + solution.prices @ program.gpus == pytest.approx(
        solution.objective, rel=NEAR
    )
    assert profit == pytest.approx(solution.hours, abs=NEAR * solution.objective)


@some
@given(crowds(most=40), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_columns_may_draw_from_the_same_pool(problem: Problem, pools: int, seed: int) -> None:
    program = program_of(with_pools(problem, pools, seed, least=8), problem.steps)
    solution = sifted(program)
    check_against_highs(program, solution)


def chosen(form: Form, prices: Floats, level: float, error: float) -> Choice:
    return cheapest(form, prices, level, Nearby(prices=error * prices, level=error))


@some
@given(crowds(most=20), st.booleans(), st.floats(0.05, 1.0), st.integers(0, 2**32 - 1))
def test_each_row_takes_its_cheapest_way_and_what_is_clear_stays(
    problem: Problem, earning: bool, level: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    program = Scaled.of(program_of(problem, problem.throughput.max(axis=1))).program
    form = Form.of(program, None)
    if earning:
        form = replace(form, reward=form.a * rng.uniform(0.5, 2.0, form.a.shape[1]), total=0.0)
    prices = rng.uniform(0.1, 1.0, len(form.gpus))
    choice = chosen(form, prices, level, 0.02)
    wanted = np.minimum(form.rate * level, form.a.max(axis=0))
    value = form.cost(prices) - (0.0 if form.reward is None else form.reward)
    for i in range(form.a.shape[1]):
        alone = linprog(
            value[:, i],
            A_ub=np.stack([-form.a[:, i], np.ones(len(form.a))]),
            b_ub=np.array([-wanted[i], 1.0]),
        )
        assert choice.cost[i] == pytest.approx(alone.fun, abs=1e-6)
    for _ in range(5):
        off = 1.0 + 0.02 * rng.uniform(-1.0, 1.0, len(prices))
        there = chosen(form, off * prices, level * (1.0 + 0.02 * rng.uniform(-1.0, 1.0)), 0.0)
        moved = (there.left != choice.left) | (there.right != choice.right)
        # A row that is asked for its best has but one way, whatever its corners are called.
        assert not (moved & choice.clear & (wanted < 1.0 - 0.03)).any()


def a_crowd(jobs: int, gpus_per_job: float, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    speed = 10 ** rng.uniform(-1, 2, (jobs, 1)) * np.exp(rng.normal(0.0, 0.5, (jobs, 3)))
    return Problem.of(
        speed * np.array([1.0, 0.55, 0.2]),
        np.full(3, np.floor(jobs * gpus_per_job)),
        gang=rng.choice([1.0, 2.0, 4.0, 8.0], jobs, p=[0.7, 0.1, 0.15, 0.05]),
        weight=rng.choice([1.0, 2.0], jobs, p=[0.8, 0.2]),
    )


@pytest.mark.parametrize("gpus_per_job", [0.02, 0.125, 0.3, 0.45, 0.9, 3.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_thousands_of_jobs_that_differ_are_sifted(gpus_per_job: float, seed: int) -> None:
    """Scarce, ample, and where as many jobs as not are as well off idle as busy."""
    problem = a_crowd(6000, gpus_per_job, seed)
    program = program_of(problem, shares_of(problem))
    assert is_worth_sifting(program)
    solution = solve_by_sifting(program)
    whole = solve_by_interior_point(program)
    assert solution.objective == pytest.approx(whole.objective, rel=1e-8)
    assert faults(program, solution) < 1e-8
    assert solution.full
    slack = (1 - 1e-9) * whole.objective * program.rate
    assert relative_speeds(program, solution) == pytest.approx(
        most(program, slack, method="highs-ipm"), rel=NEAR
    )


def test_what_sifting_gives_up_the_interior_point_method_solves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gives_up(program: Program) -> Solution:
        raise Unsolved("no prices")

    monkeypatch.setattr("ones.policies.gavel.solving.is_worth_sifting", lambda program: True)
    monkeypatch.setattr("ones.policies.gavel.solving.solve_by_sifting", gives_up)
    problem = a_problem([[1.0, 2.0], [2.0, 1.0]], [1.0, 1.0])
    assert solve(program_of(problem, np.ones(2))).objective == pytest.approx(2.0)


def test_jobs_that_are_as_fast_on_all_types_are_left_to_the_interior_point_method() -> None:
    """Prices are then the same everywhere and settle nobody."""
    problem = a_crowd(5000, 0.2)
    need = np.random.default_rng(0).uniform(1.0, 2.0, 5000)
    program = program_of(replace(problem, throughput=np.ones_like(problem.throughput)), need)
    with pytest.raises(Unsolved, match="prices settle too few rows"):
        solve_by_sifting(program)
    level = solve_by_interior_point(program).objective
    assert solve(program).objective == pytest.approx(level, rel=NEAR)
