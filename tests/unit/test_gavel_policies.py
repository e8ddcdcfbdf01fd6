"""What Gavel's policies promise, over many problems."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from gavel_builders import (
    a_problem,
    excess,
    far_apart,
    idle_gpus,
    in_a_crowd,
    problems,
    throughputs,
    trees,
)
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ones.policies.gavel import POLICIES, Allocation, Entity, Pairs, Problem
from ones.policies.gavel.classes import Goal, state
from ones.policies.gavel.policies import within_makespan
from ones.policies.gavel.program import solve_with_highs
from ones.policies.model import Floats

NEAR = 1e-6
some = settings(max_examples=30, deadline=None)

SHARING_TIME = sorted(
    name
    for name in POLICIES
    if not name.startswith(("allox", "fifo", "shortest", "gandiva", "isolated"))
)


def allocate(name: str, problem: Problem) -> Allocation:
    return POLICIES[name].allocate(problem)


def level(problem: Problem, speed: Floats) -> Floats:
    return np.asarray(problem.gang * speed / (problem.weight * problem.average))


def most(problem: Problem, value: Floats, floor: Floats) -> float:
    """By HiGHS: the largest sum of value * speed in which nobody falls below the floor."""
    columns = len(problem.columns)
    goal = Goal(rate=np.zeros_like(floor), floor=floor, value=np.tile(value[:, None], (1, columns)))
    apart = np.arange(len(floor), dtype=np.float64)[:, None]
    return solve_with_highs(state(problem, goal, apart=apart)[0]).objective


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=15, deadline=None)
@given(problem=problems(most=10, paired=True))
def test_nobody_gets_more_than_there_is(name: str, problem: Problem) -> None:
    if name == "allox":
        assume(bool((problem.throughput[problem.gang <= 1][:, problem.gpus >= 1] > 0).any()))
        problem = replace(problem, gang=np.ones_like(problem.gang))
    assert excess(problem, allocate(name, problem)) < NEAR


@pytest.mark.parametrize("name", SHARING_TIME)
@settings(max_examples=10, deadline=None)
@given(problem=problems(most=10, paired=True))
def test_the_solver_by_the_book_finds_the_same_objective(name: str, problem: Problem) -> None:
    quick = allocate(name, problem).objective
    book = POLICIES[name].allocate(problem, solver=solve_with_highs).objective
    assert quick == pytest.approx(book, rel=1e-5, abs=NEAR)


@some
@given(problems())
def test_max_min_keeps_its_promise_of_the_smallest_share(problem: Problem) -> None:
    allocation = allocate("max_min_fairness_perf", problem)
    shares = level(problem, throughputs(problem, allocation))
    assert shares.min() == pytest.approx(allocation.objective, rel=NEAR)


def worth(name: str, problem: Problem, allocation: Allocation) -> float:
    """The objective by the policy's definition, of the allocation alone."""
    speed = throughputs(problem, allocation)
    with np.errstate(divide="ignore"):
        if "total_duration" in name:
            return float((problem.steps / speed).max())
        if "finish_time" in name:
            iso = np.einsum("ik,ik->i", problem.throughput, problem.equal_share)
            due = problem.isolated + problem.steps / iso
            return float(((problem.age + problem.steps / speed) / due).max())
    return float(level(problem, speed).min())


@pytest.mark.parametrize(
    "name",
    [
        "max_min_fairness_packed",
        "max_min_fairness_water_filling_packed",
        "min_total_duration_packed",
        "finish_time_fairness_packed",
    ],
)
@pytest.mark.parametrize("tiny", [1e-7, 1e-9, 1e-12])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=4)
def test_a_job_that_needs_next_to_nothing_is_not_starved(name: str, tiny: float, seed: int) -> None:
    """What it needs is less than the faults that HiGHS takes for none."""
    rng = np.random.default_rng(seed)
    speed = 10 ** rng.uniform(-1, 2, (30, 1)) * 10 ** rng.normal(0, 0.3, (30, 3))
    first, second = np.triu_indices(30, 1)
    both = np.stack([speed[first], speed[second]], axis=-1)
    together = rng.uniform(0.3, 0.9, (len(first), 3, 2)) * both
    weight, steps = np.ones(30), 10 ** rng.uniform(3, 4, 30)
    weight[3] *= tiny
    steps[3] *= tiny
    problem = Problem.of(
        speed,
        np.array([4.0, 4.0, 4.0]),
        weight=weight,
        steps=steps,
        pairs=Pairs(first=first, second=second, throughput=together),
    )
    allocation = allocate(name, problem)
    assert allocation.objective is not None
    assert 0 < allocation.objective < np.inf
    assert worth(name, problem, allocation) == pytest.approx(allocation.objective, rel=NEAR)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=46)
@example(seed=163)
@example(seed=194)
@example(seed=215)
@example(seed=301)
def test_water_rises_however_far_apart_speeds_are(seed: int) -> None:
    """The first to stop has what max-min fairness gives, and everybody what the levels say."""
    problem = far_apart(seed)
    allocation = allocate("max_min_fairness_water_filling_perf", problem)
    lowest = allocate("max_min_fairness_perf", problem).objective
    assert allocation.objective == pytest.approx(lowest, rel=NEAR)
    assert allocation.levels is not None
    assert excess(problem, allocation) < NEAR
    speed = throughputs(problem, allocation)
    assert (speed >= allocation.levels * problem.average * (1 - NEAR)).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=208)
@example(seed=515)
@example(seed=574)
def test_no_finish_time_fairness_is_better_however_far_apart_speeds_are(seed: int) -> None:
    """A millionth less can't be had: by a job's best speed, or by HiGHS for all together."""
    problem = far_apart(seed)
    found = allocate("finish_time_fairness_perf", problem)
    assert found.objective == pytest.approx(worth("finish_time", problem, found), rel=NEAR)
    iso = np.einsum("ik,ik->i", problem.throughput, problem.equal_share)
    due = problem.isolated + problem.steps / iso
    left = (1 - 2 * NEAR) * found.objective * due - problem.age
    there = problem.gpus[problem.pool] > 0
    fastest = np.where(there, problem.throughput, 0.0).max(axis=1)
    if (left <= problem.steps / fastest).any():
        return
    program = state(problem, Goal(rate=problem.steps / left, floor=np.zeros_like(left)))[0]
    assert solve_with_highs(program).objective < 1.0


@some
@given(problems())
def test_makespan_is_that_of_the_last_job(problem: Problem) -> None:
    allocation = allocate("min_total_duration_perf", problem)
    speed = throughputs(problem, allocation)
    assert (problem.steps / speed).max() == pytest.approx(allocation.objective, rel=NEAR)


@some
@given(problems())
def test_finish_time_fairness_is_that_of_the_latest_job(problem: Problem) -> None:
    allocation = allocate("finish_time_fairness_perf", problem)
    iso = np.einsum("ik,ik->i", problem.throughput, problem.equal_share)
    due = problem.isolated + problem.steps / iso
    speed = throughputs(problem, allocation)
    rho = (problem.age + problem.steps / speed) / due
    assert rho.max() == pytest.approx(allocation.objective, rel=NEAR)


@pytest.mark.parametrize("name", ["max_min_fairness_perf", "max_min_fairness_water_filling_perf"])
@some
@given(problem=problems())
def test_nobody_can_have_more_without_taking_it_from_another(name: str, problem: Problem) -> None:
    """Pareto efficiency: with everybody's speed kept, the sum of relative speeds can't grow."""
    allocation = allocate(name, problem)
    speed = throughputs(problem, allocation)
    if allocation.levels is not None:
        speed = allocation.levels * problem.average
    best = problem.throughput.max(axis=1)
    total = most(problem, 1.0 / best, speed * (1 - 1e-7))
    # Where two types are nearly the same to a job, its last digits are worth a thousand times more.
    assert total == pytest.approx(float((speed / best).sum()), rel=1e-3)


@some
@given(problems())
def test_no_gpu_idles_that_somebody_could_use(problem: Problem) -> None:
    allocation = allocate("max_min_fairness_perf", problem)
    idle = idle_gpus(problem, allocation)
    busy = allocation.shares.alone.sum(axis=1)
    for p in np.flatnonzero(idle > 1e-4):
        able = problem.throughput[:, problem.pool == p].max(axis=1) > 0
        assert busy[able].min(initial=1.0) > 1 - 1e-4


@some
@given(problems())
def test_no_job_is_below_its_isolated_share(problem: Problem) -> None:
    """Where jobs compete, that is with no more GPUs than jobs (wider shares can't be isolated)."""
    problem = replace(problem, weight=np.ones_like(problem.weight))
    if problem.gpus.sum() > len(problem.jobs):
        problem = in_a_crowd(problem)
    own = throughputs(problem, allocate("isolated", problem))
    for name in ("max_min_fairness_perf", "max_min_fairness_water_filling_perf"):
        speed = throughputs(problem, allocate(name, problem))
        assert (speed >= own * (1 - NEAR)).all()


@pytest.mark.parametrize(
    "name",
    [
        "max_min_fairness_perf",
        "max_min_fairness_water_filling_perf",
        "finish_time_fairness_perf",
        "proportional_fairness_perf",
    ],
)
@settings(max_examples=20, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_the_unit_of_a_job_s_steps_changes_nothing(name: str, problem: Problem, seed: int) -> None:
    unit = 10 ** np.random.default_rng(seed).uniform(-3, 3, len(problem.jobs))
    other = replace(
        problem, throughput=problem.throughput * unit[:, None], steps=problem.steps * unit
    )
    assert allocate(name, other).objective == pytest.approx(
        allocate(name, problem).objective, rel=NEAR, abs=NEAR
    )


@pytest.mark.parametrize("name", ["max_min_fairness_perf", "min_total_duration_perf"])
@some
@given(problem=problems())
def test_twice_the_cluster_for_twice_the_jobs_is_the_same(name: str, problem: Problem) -> None:
    twice = Problem.of(
        np.tile(problem.throughput, (2, 1)),
        2 * problem.gpus,
        gang=np.tile(problem.gang, 2),
        weight=np.tile(problem.weight, 2),
        steps=np.tile(problem.steps, 2),
    )
    assert allocate(name, twice).objective == pytest.approx(
        allocate(name, problem).objective, rel=NEAR
    )


@some
@given(problems())
def test_proportional_fairness_is_the_best_geometric_mean(problem: Problem) -> None:
    """Optimal just if no other allocation raises the weighted sum of relative gains."""
    speed = throughputs(problem, allocate("proportional_fairness_perf", problem))
    total = most(problem, problem.weight / speed, np.zeros_like(speed))
    assert total == pytest.approx(problem.weight.sum(), rel=1e-5)


def test_proportional_fairness_is_found_where_one_job_has_a_scarce_type_alone() -> None:
    """The first guess of a step led astray here, and every step after it was short."""
    speed = np.ones((12, 4))
    speed[0, 1:] = speed[6, 2] = 0.0
    gang = [1, 1, 1, 1, 1, 1, 2, 1, 2, 1, 2, 1]
    problem = Problem.of(speed, np.array([2.0, 33.0, 31.0, 8.0]), gang=np.array(gang, dtype=float))
    found = throughputs(problem, allocate("proportional_fairness_perf", problem))
    assert found == pytest.approx(np.ones(12), rel=1e-6)


@some
@given(problems())
def test_under_proportional_fairness_nobody_envies_a_job_of_the_same_gang(
    problem: Problem,
) -> None:
    """Promised while GPUs, not hours, are what is scarce: prices then buy the same for all."""
    problem = in_a_crowd(problem)
    alone = allocate("proportional_fairness_perf", problem).shares.alone
    assert alone.sum(axis=1).max() < 1
    speed = np.einsum("ik,ik->i", problem.throughput, alone)
    with_that_of = problem.throughput @ alone.T
    same = problem.gang[:, None] == problem.gang[None, :]
    assert (with_that_of <= speed[:, None] * (1 + 1e-4))[same].all()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_entities_that_compete_for_one_type_receive_by_weight(data: st.DataObject) -> None:
    jobs = data.draw(st.integers(2, 10))
    problem = a_problem([[1.0]] * jobs, [1.0])
    problem = replace(problem, entities=data.draw(trees(jobs)))
    levels = allocate("max_min_fairness_water_filling_perf", problem).levels
    assert levels is not None
    got = np.array([levels[list(e.members)].sum() for e in problem.entities])
    weight = np.array([e.weight for e in problem.entities])
    room = np.array([len(e.members) for e in problem.entities])
    level = (got / weight).max()
    assert np.minimum(weight * level, room) == pytest.approx(got, rel=1e-5)


def test_a_fifo_entity_serves_its_first_job_first() -> None:
    problem = a_problem([[1.0]] * 4, [2.0])
    entities = (
        Entity("fair", "fairness", 1.0, jobs=(2, 3)),
        Entity("line", "fifo", 1.0, jobs=(0, 1)),
    )
    levels = allocate(
        "max_min_fairness_water_filling_perf", replace(problem, entities=entities)
    ).levels
    assert levels == pytest.approx([1.0, 0.0, 0.5, 0.5], abs=NEAR)


def test_a_deadline_that_cannot_be_met_is_dropped_alone_and_named() -> None:
    problem = a_problem(
        [[1.0], [1.0], [9.0]],
        [1.0],
        steps=[50.0, 500.0, 1.0],
        deadline=[100.0, 100.0, np.inf],
        jobs=["kept", "late", "fast"],
    )
    allocation = allocate("max_sum_throughput_perf_SLOs", problem)
    assert allocation.dropped == ("late",)
    assert throughputs(problem, allocation) == pytest.approx([0.5, 0.0, 4.5], abs=1e-5)


def test_within_a_makespan_a_long_job_of_few_steps_is_not_put_off() -> None:
    problem = a_problem([[10.0], [1.0]], [1.0], steps=[100.0, 30.0])  # 40 s at the least
    apart = allocate("max_sum_throughput_perf_SLOs", problem)
    assert throughputs(problem, apart) == pytest.approx([10.0, 0.0], abs=1e-5)
    for stretch, speeds in ((1.25, [4.0, 0.6]), (1.0, [2.5, 0.75])):
        bound = within_makespan(problem, stretch)
        assert bound.deadline == pytest.approx([np.inf, 40.0 * stretch])  # 10 s fit in at any time
        allocation = allocate("max_sum_throughput_perf_SLOs", bound)
        assert throughputs(problem, allocation) == pytest.approx(speeds, abs=1e-5)
        assert allocation.dropped == ()


def test_of_deadlines_that_exclude_each_other_the_cheapest_are_kept() -> None:
    problem = a_problem(
        [[1.0]] * 3, [1.0], steps=[40.0, 80.0, 30.0], deadline=[100.0, 100.0, 100.0]
    )
    allocation = allocate("max_sum_throughput_perf_SLOs", problem)
    assert allocation.dropped == (1,)


@some
@given(problems(), st.integers(0, 2**32 - 1))
def test_deadlines_kept_are_met_and_no_dropped_one_could_be_added(
    problem: Problem, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    deadline = (
        problem.steps
        / problem.throughput.max(axis=1)
        * 10 ** rng.uniform(-0.3, 2, len(problem.jobs))
    )
    problem = replace(problem, deadline=deadline)
    allocation = allocate("max_sum_throughput_perf_SLOs", problem)
    speed, needed = throughputs(problem, allocation), problem.steps / deadline
    late = np.isin(np.arange(len(speed)), allocation.dropped)
    assert (speed >= needed * (1 - NEAR))[~late].all()
    for i in np.flatnonzero(late):
        rate = np.where(late, 0.0, needed)
        rate[i] = needed[i]
        goal = Goal(rate=rate, floor=np.zeros_like(rate))
        assert solve_with_highs(state(problem, goal)[0]).objective < 1 + NEAR


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 2), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_allox_is_the_best_of_all_orders(jobs: int, first: int, second: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    speed, steps = rng.uniform(0.5, 5.0, (jobs, 2)), rng.uniform(1.0, 9.0, jobs)
    gpus = [0] * first + [1] * second
    best = np.inf
    for order in permutations(range(jobs)):
        for places in product(range(len(gpus)), repeat=jobs):
            clock, total = [0.0] * len(gpus), 0.0
            for i, gpu in zip(order, places, strict=True):
                clock[gpu] += steps[i] / speed[i, gpus[gpu]]
                total += clock[gpu]
            best = min(best, total)
        if jobs == 5 and order[0] > 0:
            break  # any order of the rest; a full search takes too long
    problem = a_problem(speed, [float(first), float(second)], steps=steps)
    allocation = allocate("allox", problem)
    assert allocation.objective is not None
    if jobs < 5:
        assert allocation.objective == pytest.approx(best, rel=1e-9)
    assert allocation.objective <= best * (1 + 1e-9)
    assert excess(problem, allocation) < NEAR


def test_allox_refuses_gangs() -> None:
    with pytest.raises(ValueError, match="job 1: scale_factor"):
        allocate("allox", a_problem([[1.0], [1.0]], [4.0], gang=[1.0, 2.0]))


def test_first_in_first_out_lets_nobody_overtake() -> None:
    problem = a_problem([[1.0]] * 3, [4.0], gang=[3.0, 2.0, 1.0])
    assert allocate("fifo_perf", problem).shares.alone.tolist() == [[1.0], [0.0], [0.0]]


def test_first_in_first_out_takes_the_fastest_type_that_has_room() -> None:
    problem = a_problem([[1.0, 3.0], [1.0, 3.0]], [1.0, 1.0])
    assert allocate("fifo_perf", problem).shares.alone.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_shortest_job_first_serves_the_shortest() -> None:
    problem = a_problem([[1.0], [2.0]], [1.0], steps=[10.0, 12.0])
    assert allocate("shortest_job_first_perf", problem).shares.alone.tolist() == [[0.0], [1.0]]


def sharing(relative: float) -> Problem:
    """Two jobs for one GPU that both run at this part of their speed beside each other."""
    pairs = Pairs(
        first=np.array([0]), second=np.array([1]), throughput=np.full((1, 1, 2), relative)
    )
    return a_problem([[1.0], [1.0]], [1.0], pairs=pairs)


@pytest.mark.parametrize(("name", "relative"), [("fifo_packed", 0.8), ("gandiva", 0.6)])
def test_jobs_that_run_well_together_share(name: str, relative: float) -> None:
    allocation = allocate(name, sharing(relative))
    assert allocation.shares.together.tolist() == [[1.0]]
    assert allocation.shares.alone.sum() == 0.0


@pytest.mark.parametrize(("name", "relative"), [("fifo_packed", 0.7), ("gandiva", 0.4)])
def test_jobs_that_run_badly_together_do_not(name: str, relative: float) -> None:
    assert allocate(name, sharing(relative)).shares.together.sum() == 0.0


@some
@given(problems(most=8, paired=True))
def test_sharing_gpus_is_never_worse_than_taking_turns(problem: Problem) -> None:
    for name, better in (
        ("max_min_fairness", 1),
        ("min_total_duration", -1),
        ("finish_time_fairness", -1),
    ):
        packed = allocate(f"{name}_packed", problem).objective
        alone = allocate(f"{name}_perf", problem).objective
        assert packed is not None
        assert alone is not None
        assert better * packed >= better * alone - NEAR * alone
