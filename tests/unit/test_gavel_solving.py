"""Each fast way of solving against HiGHS on the same program."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from gavel_builders import (
    NEAR,
    a_problem,
    check_against_highs,
    faults,
    problems,
    program_of,
    shares_of,
    trees,
    with_pools,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.policies.gavel import POLICIES, packing
from ones.policies.gavel.classes import Classes, Goal, spread, state
from ones.policies.gavel.filling import Tree, fill, fill_by_rounds
from ones.policies.gavel.interior import solve_by_interior_point
from ones.policies.gavel.packing import solve_by_generating_pairs
from ones.policies.gavel.problem import Problem
from ones.policies.gavel.program import Pairs, Program, Solution, Unsolved, solve_with_highs
from ones.policies.gavel.solving import highest, solve
from ones.policies.model import Floats

some = settings(max_examples=60, deadline=None)


@some
@given(problems(most=30))
def test_the_interior_point_level_is_that_of_highs(problem: Problem) -> None:
    for rate in (shares_of(problem), problem.steps):
        program = program_of(problem, rate)
        solution = solve_by_interior_point(program)
        check_against_highs(program, solution)


@some
@given(problems(most=30), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_columns_may_draw_from_the_same_pool(problem: Problem, pools: int, seed: int) -> None:
    problem = with_pools(problem, pools, seed, least=2)
    program = program_of(problem, shares_of(problem))
    solution = solve_by_interior_point(program)
    check_against_highs(program, solution)


def test_hundreds_of_types_take_no_room_for_each_two_of_them() -> None:
    rng = np.random.default_rng(0)
    problem = Problem.of(
        10 ** rng.uniform(-1, 1, (200, 1)) * 10 ** rng.normal(0, 0.3, (200, 200)),
        rng.integers(1, 3, 200).astype(float),
    )
    program = program_of(problem, shares_of(problem))
    tracemalloc.start()
    try:
        solution = solve_by_interior_point(program)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 200 x 200 x 200 numbers would be 64 MB.
    assert most < 30_000_000
    whole = solve_with_highs(program, method="highs-ipm")
    assert solution.objective == pytest.approx(whole.objective, rel=NEAR)


@some
@given(problems(most=30), st.floats(0.0, 0.99))
def test_the_interior_point_sum_above_floors_is_that_of_highs(
    problem: Problem, part: float
) -> None:
    program = program_of(problem, shares_of(problem))
    level = solve_with_highs(program).objective
    program = replace(
        program,
        rate=np.zeros_like(program.rate),
        floor=part * level * program.rate,
        reward=program.throughput,
    )
    solution = solve(program)
    check_against_highs(program, solution)


@some
@given(problems(most=20))
def test_prices_prove_the_level(problem: Problem) -> None:
    """No allocation is better than what the prices allow: weak duality, by hand."""
    program = program_of(problem, shares_of(problem))
    solution = solve_by_interior_point(program)
    assert solution.worth @ program.rate == pytest.approx(1.0, rel=NEAR)
    gain = program.throughput * solution.worth[:, None]
    cost = program.gang[:, None] * solution.prices[program.pool]
    cost = np.where(program.gpus[program.pool] > 0, cost, np.inf)
    bound = np.maximum(gain - cost, 0.0).max(axis=1).sum() + solution.prices @ program.gpus
    assert bound == pytest.approx(solution.objective, rel=NEAR)


@some
@given(problems(most=20, paired=True), st.floats(-12.0, 0.0), st.integers(0, 2**32 - 1))
def test_prices_prove_the_level_that_pairs_give_whatever_a_job_needs(
    problem: Problem, decades: float, seed: int
) -> None:
    """The level of the allocation itself, which the solver's word may exceed."""
    rng = np.random.default_rng(seed)
    tiny = 10 ** (decades * rng.uniform(0.5, 1.0, len(problem.jobs)))
    less = np.where(rng.random(len(problem.jobs)) < 0.3, tiny, 1.0)
    program = program_of(problem, less * shares_of(problem))
    solution = solve_with_highs(program)
    pairs, prices, worth = program.pairs, solution.prices, solution.worth
    there = program.gpus[program.pool] > 0
    cost = np.where(there, prices[program.pool], np.inf)
    hours = (program.throughput * worth[:, None] - program.gang[:, None] * cost).max(axis=1)
    hours = np.maximum(hours, solution.hours)
    if len(pairs):
        i, j = pairs.first, pairs.second
        gain = (
            pairs.throughput[:, :, 0] * worth[i, None] + pairs.throughput[:, :, 1] * worth[j, None]
        )
        unpaid = (gain - program.gang[i, None] * cost).max(axis=1) - hours[i] - hours[j]
        np.maximum.at(hours, i, hours[i] + np.maximum(unpaid, 0.0))
    bound = (prices @ program.gpus + hours.sum()) / (worth @ program.rate)
    found = program.level(program.speeds(solution.x))
    assert found == pytest.approx(bound, rel=NEAR)
    assert faults(program, replace(solution, objective=found)) < NEAR


@some
@given(problems(most=20))
def test_classes_lose_nothing(problem: Problem) -> None:
    rate = shares_of(problem)
    program, classes = state(problem, Goal(rate=rate, floor=np.zeros_like(rate)))
    each = program_of(problem, rate)
    level = solve_with_highs(each).objective
    solution = solve(program)
    assert solution.objective == pytest.approx(level, rel=NEAR)
    x = spread(program, classes, solution.x).alone
    assert faults(each, replace(solution, x=x)) < NEAR


def test_equal_jobs_are_one_class_and_unequal_ones_are_not() -> None:
    features = np.array([[1.0, 2.0]] * 5 + [[2.0, 1.0]] * 5)
    classes = Classes.told_apart_by(features)
    assert sorted(classes.count.tolist()) == [5, 5]
    assert len(set(classes.of[:5])) == len(set(classes.of[5:])) == 1


@some
@given(problems(most=7, paired=True), st.integers(1, 3))
def test_classes_of_pairs_lose_nothing(problem: Problem, copies: int) -> None:
    """Jobs listed several times as one kind each, against every pair of them spelt out."""
    kinds = len(problem.jobs)
    kind = np.repeat(np.arange(kinds), copies)
    pairs = problem.pairs
    own = np.arange(kinds)
    both = np.stack([problem.throughput, problem.throughput], axis=-1)
    listed = Pairs(
        first=np.concatenate([pairs.first, own]),
        second=np.concatenate([pairs.second, own]),
        throughput=np.concatenate([pairs.throughput, 0.7 * both]),
    )
    by_kind = Problem.of(
        problem.throughput[kind],
        problem.gpus,
        gang=problem.gang[kind],
        kind=kind,
        pairs=listed,
    )
    table = {
        (a, b): both
        for a, b, both in zip(listed.first, listed.second, listed.throughput, strict=True)
    }
    i, j = np.triu_indices(len(kind), 1)
    spelt = Pairs(
        first=i,
        second=j,
        throughput=np.array([table[kind[a], kind[b]] for a, b in zip(i, j, strict=True)]).reshape(
            len(i), len(problem.columns), 2
        ),
    )
    one_by_one = replace(by_kind, kind=np.arange(len(kind)), pairs=spelt)
    rate = shares_of(by_kind)
    program, classes = state(by_kind, Goal(rate=rate, floor=np.zeros_like(rate)))
    full = program_of(one_by_one, rate)
    solution = solve_with_highs(program)
    assert solution.objective == pytest.approx(solve_with_highs(full).objective, rel=NEAR)
    shares = spread(program, classes, solution.x)
    busy = shares.alone.sum(axis=1)
    np.add.at(busy, shares.first, shares.together.sum(axis=1))
    np.add.at(busy, shares.second, shares.together.sum(axis=1))
    assert busy.max() < 1.0 + NEAR


def test_a_pair_is_used_where_one_of_it_gets_nothing_and_the_other_is_quicker() -> None:
    problem = Problem.of(
        np.array([[1.0, 0.0], [1.0, 1.0]]),
        np.array([1.0, 1.0]),
        pairs=Pairs(
            first=np.array([0]),
            second=np.array([1]),
            throughput=np.array([[[0.0, 0.0], [0.0, 3.0]]]),
        ),
    )
    found = POLICIES["max_min_fairness_packed"].allocate(problem)
    assert found.objective == pytest.approx(1.5)


@settings(max_examples=25, deadline=None)
@given(problem=problems(most=14, paired=True))
def test_pairs_that_enter_by_price_reach_the_optimum_over_all(problem: Problem) -> None:
    program = program_of(problem, shares_of(problem))
    whole = solve_with_highs(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "FEW", 0)
        patch.setattr(packing, "AT_FIRST", 1)
        patch.setattr(packing, "EACH_TIME", 1)
        solution = solve_by_generating_pairs(program)
    assert solution.objective == pytest.approx(whole.objective, rel=NEAR)
    assert faults(program, solution) < NEAR


@some
@given(problems(most=15))
def test_the_highest_demand_is_reached_and_no_more(problem: Problem) -> None:
    """A demand that bends, against bisection with HiGHS."""
    program = program_of(problem, problem.steps)
    best = program.throughput[:, problem.gpus[problem.pool] > 0].max(axis=1)

    def demand(z: float) -> Floats:
        return np.asarray(problem.steps * z**1.5 * (1 + z))

    top = 1.0 + 2.0 * float((best / problem.steps).max()) ** (2 / 3)
    reached = highest(program, demand, top, solve)

    def possible(z: float) -> bool:
        return solve_with_highs(replace(program, rate=demand(z))).objective >= 1 - 1e-7

    assert possible(reached.parameter * (1 - 1e-5))
    assert reached.parameter < top
    assert not possible(reached.parameter * (1 + 1e-5))


def assert_levels_of_the_book(problem: Problem, tree: Tree) -> None:
    unit = problem.average / problem.gang
    program = program_of(problem, unit)
    levels = fill(program, unit, tree, solve).speed / unit
    book = fill_by_rounds(program, unit, tree, solve_with_highs).speed / unit
    assert levels == pytest.approx(book, rel=1e-5, abs=NEAR)


@settings(max_examples=50, deadline=None)
@given(problems(most=12))
def test_water_levels_are_those_of_the_book(problem: Problem) -> None:
    assert_levels_of_the_book(problem, Tree(problem.weight))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_water_levels_in_entities_are_those_of_the_book(data: st.DataObject) -> None:
    problem = data.draw(problems(most=10))
    assert_levels_of_the_book(problem, Tree(problem.weight, data.draw(trees(len(problem.jobs)))))


@settings(max_examples=25, deadline=None)
@given(problems(most=7, paired=True))
def test_packed_water_levels_are_those_of_the_book(problem: Problem) -> None:
    assert_levels_of_the_book(problem, Tree(problem.weight))


def test_floors_that_cannot_be_met_are_no_solution() -> None:
    problem = a_problem([[1.0], [1.0]], [1.0])
    program = replace(
        program_of(problem, np.zeros(2)), floor=np.array([0.6, 0.6]), reward=np.ones((2, 1))
    )
    with pytest.raises(Unsolved):
        solve(program)


def test_what_the_fast_way_gives_up_highs_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(program: Program) -> Solution:
        raise Unsolved("no progress")

    monkeypatch.setattr("ones.policies.gavel.solving.solve_by_interior_point", gives_up)
    problem = a_problem([[1.0, 2.0], [2.0, 1.0]], [1.0, 1.0])
    assert solve(program_of(problem, np.ones(2))).objective == pytest.approx(2.0)
