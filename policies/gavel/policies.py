"""Gavel's policies by name: each states a goal, none solves anything itself (OSDI20 §4).

A policy comes in up to three forms: agnostic (it believes every type to be equally fast), `_perf`
(it knows the throughputs) and `_packed` (and lets pairs of jobs share GPUs). Names are Gavel's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ones.policies.gavel.assigning import (
    allox,
    earliest_first,
    gandiva,
    in_order,
    isolated,
    shortest_first,
)
from ones.policies.gavel.classes import Goal, Shares, spread, state
from ones.policies.gavel.filling import Tree, fill, fill_by_rounds
from ones.policies.gavel.interior import solve_by_interior_point
from ones.policies.gavel.problem import BadProblem, JobName, Problem
from ones.policies.gavel.program import Bools, Program, Solution, Unsolved, solve_with_highs
from ones.policies.gavel.solving import REACHED, Solver, highest, solve
from ones.policies.model import Floats

REFERENCE = "v100"  # the type whose throughputs stand for all in time-based agnostic policies
PRESSING = 0.5  # of the time that is left
KEPT = 1e-7  # how much of the optimum the second stage may give up, relatively


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocation:
    """What a policy gives each job, and how good that is by the policy's own measure."""

    jobs: tuple[JobName, ...]
    columns: tuple[str, ...]
    shares: Shares
    objective: float | None = None
    levels: Floats | None = None  # [jobs] throughput over p, of water filling
    dropped: tuple[JobName, ...] = ()  # whose deadline no allocation can meet beside the others


@dataclass(frozen=True, slots=True)
class Means:
    """How a policy's programs are solved, whether what an optimum leaves idle is given away, and
    chance, for the policy that draws (Gandiva's)."""

    solver: Solver = solve
    use_idle: bool = True
    rng: np.random.Generator | None = None


Way = Callable[[Problem, Means], Allocation]


@dataclass(frozen=True, slots=True)
class GavelPolicy:
    """One policy in one form."""

    name: str
    way: Way
    packed: bool

    def allocate(
        self,
        problem: Problem,
        *,
        solver: Solver = solve,
        use_idle: bool = True,
        rng: np.random.Generator | None = None,
    ) -> Allocation:
        """The shares of all jobs."""
        if not problem.jobs:
            return Allocation(
                jobs=(), columns=problem.columns, shares=Shares.of_jobs(problem.throughput)
            )
        seen = problem if self.packed else problem.without_pairs()
        return self.way(seen, Means(solver, use_idle, rng))


def max_min_fairness(problem: Problem, means: Means) -> Allocation:
    """max min_i s_i * thr_i / (w_i * p_i): nobody's share of the average GPU is smaller (§4.1)."""
    rate = problem.weight * problem.average / problem.gang
    level, shares = _raise(problem, rate, means)
    return _allocation(problem, shares, level)


def makespan(problem: Problem, means: Means) -> Allocation:
    """min T with thr_i >= n_i / T: the level is 1/T, so one program does (§4.2)."""
    if not problem.steps.any():
        return _allocation(problem, Shares.of_jobs(problem.equal_share), 0.0)
    level, shares = _raise(problem, problem.steps, means)
    if level <= 0:
        raise Unsolved("a job with steps left can have no time")
    return _allocation(problem, shares, 1.0 / level)


def within_makespan(problem: Problem, stretch: float) -> Problem:
    """The problem with a deadline for long jobs, at `stretch` times the least makespan of all.

    Long are those that need more than PRESSING of that time on their fastest type. The others can
    be served later; held to it as well, all jobs would take as long as the last one.
    """
    least = makespan(problem, Means(use_idle=False)).objective
    if not least:
        return problem
    end = stretch * least
    long = problem.steps > PRESSING * end * _fastest(problem)
    return replace(
        problem, deadline=np.where(long, np.minimum(problem.deadline, end), problem.deadline)
    )


def finish_time_fairness(problem: Problem, means: Means) -> Allocation:
    """min rho with t_i + n_i / thr_i <= rho * D_i, D_i = C_i + n_i / iso_i (Themis; §4.2).

    The demand thr_i >= n_i / (rho * D_i - t_i) rises with 1/rho.
    """
    iso = np.einsum("ik,ik->i", problem.throughput, problem.equal_share)
    due = problem.isolated + problem.steps / iso
    if not (due > 0).all():
        job = problem.jobs[int((due <= 0).argmax())]
        raise BadProblem(f"job {job}", "steps_remaining", "is 0, and it has run no time")
    program, classes = state(
        problem,
        Goal(rate=problem.steps, floor=np.zeros_like(iso)),
        apart=np.column_stack([due, problem.age]),
    )
    at, count = classes.example, classes.count
    steps, due, age = problem.steps[at], due[at], problem.age[at]
    fastest = _fastest(problem)[at]

    def demand(inverse: float) -> Floats:
        left = np.maximum(due - age * inverse, 1e-300)
        return np.asarray(count * np.minimum(steps * inverse / left, fastest))

    best = (age + steps / fastest) / due
    reached = highest(program, demand, float(1.0 / best.max()), means.solver)
    solution = _use_idle(program, demand(reached.parameter), reached.solution, means)
    left = steps > 0
    speed = program.speeds(solution.x)[left] / count[left]
    if not speed.all():
        raise Unsolved("a job with steps left can have no time")
    # A job whose work is done is as late as it is.
    late = np.append(steps[left] / speed + age[left], age[~left]) / np.append(due[left], due[~left])
    return _allocation(problem, spread(program, classes, solution.x), float(late.max()))


def max_sum_throughput(problem: Problem, means: Means) -> Allocation:
    """max sum of thr_i; jobs with many steps a second win."""
    return _sum(problem, np.ones(len(problem.columns)), means.solver)


def max_sum_per_cost(problem: Problem, means: Means) -> Allocation:
    """max sum of T * x / cost, the cost being the type's price (§4.2)."""
    return _sum(problem, 1.0 / _costs(problem), means.solver)


def max_sum_with_deadlines(problem: Problem, means: Means) -> Allocation:
    """max sum of thr_i with thr_i >= n_i / (time to the deadline)."""
    return _sum_with_deadlines(problem, np.ones(len(problem.columns)), means.solver)


def max_sum_per_cost_with_deadlines(problem: Problem, means: Means) -> Allocation:
    """max sum of T * x / cost with thr_i >= n_i / (time to the deadline)."""
    return _sum_with_deadlines(problem, 1.0 / _costs(problem), means.solver)


def water_filling(problem: Problem, means: Means) -> Allocation:
    """Lexicographic max-min fairness, of jobs or of entities of any depth (§4.3)."""
    unit = problem.average / problem.gang
    none = np.zeros_like(unit)
    alone = np.arange(len(unit), dtype=np.float64)
    apart = alone if problem.entities else problem.weight
    program, classes = state(problem, Goal(rate=unit, floor=none), apart=apart[:, None])
    at = classes.example
    # With entities rows are jobs, in the entities' own numbering.
    tree = Tree(problem.weight[at], problem.entities)
    try:
        filled = fill(program, program.rate, tree, means.solver)
    except Unsolved:
        filled = fill_by_rounds(program, program.rate, tree, solve_with_highs)
    given = np.minimum(filled.speed, program.speeds(filled.solution.x))
    speed = (given / classes.count)[classes.of]
    levels = speed / problem.average
    return Allocation(
        jobs=problem.jobs,
        columns=problem.columns,
        shares=spread(program, classes, filled.solution.x),
        objective=float((problem.gang * levels / problem.weight).min()),
        levels=levels,
    )


def proportional_fairness(problem: Problem, _: Means) -> Allocation:
    """max sum of w_i * log(thr_i / p_i): the weighted geometric mean."""
    none = np.zeros_like(problem.weight)
    program, classes = state(problem, Goal(rate=none, floor=none), apart=problem.weight[:, None])
    at = classes.example
    weight = classes.count * problem.weight[at]
    x = solve_by_interior_point(program, logs=weight).x
    speed = program.speeds(x) / classes.count / problem.average[at]
    return _allocation(problem, spread(program, classes, x), float(weight @ np.log(speed)))


def _allocation(
    problem: Problem,
    shares: Shares,
    objective: float | None = None,
    dropped: tuple[JobName, ...] = (),
) -> Allocation:
    return Allocation(
        jobs=problem.jobs,
        columns=problem.columns,
        shares=shares,
        objective=objective,
        dropped=dropped,
    )


def _fastest(problem: Problem) -> Floats:
    """The most a job could get with the cluster to itself, or beside one other."""
    nothing = np.zeros_like(problem.gang)
    program, classes = state(problem, Goal(rate=nothing, floor=nothing))
    return np.asarray((program.best(program.gpus > 0) / classes.count)[classes.of])


def _raise(problem: Problem, rate: Floats, means: Means) -> tuple[float, Shares]:
    """The highest level at which every job's speed is rate * level, and who gets what."""
    program, classes = state(problem, Goal(rate=rate, floor=np.zeros_like(rate)))
    solution = means.solver(program)
    solution = _use_idle(program, solution.objective * program.rate, solution, means)
    # What the allocation gives, whatever the solver took it for.
    level = program.level(program.speeds(solution.x))
    return level, spread(program, classes, solution.x)


def _use_idle(program: Program, speed: Floats, solution: Solution, means: Means) -> Solution:
    """The largest sum of relative speeds in which nobody falls below `speed`.

    An optimal level leaves open what those get who could have more; a vertex may then leave GPUs
    idle that somebody could use.
    """
    if not means.use_idle or solution.full:
        return solution
    pairs = program.pairs
    best = np.where(program.there, program.throughput, 0.0).max(axis=1)
    best = np.where(best > 0, best, 1.0)[:, None]
    reward = np.concatenate(
        [
            program.throughput / best,
            pairs.throughput[:, :, 0] / best[pairs.first]
            + pairs.throughput[:, :, 1] / best[pairs.second],
        ]
    )
    floor, nothing = speed * (1.0 - KEPT), np.zeros_like(speed)
    try:
        return means.solver(replace(program, rate=nothing, floor=floor, reward=reward))
    except Unsolved:
        return solution


def _costs(problem: Problem) -> Floats:
    if problem.costs is None:
        raise BadProblem("cluster", "instance_costs", "are missing, and the policy needs them")
    return problem.costs


def _sum(problem: Problem, value: Floats, solver: Solver) -> Allocation:
    nothing = np.zeros_like(problem.gang)
    return _sum_above(problem, value, nothing, solver)


def _sum_above(problem: Problem, value: Floats, floor: Floats, solver: Solver) -> Allocation:
    goal = Goal(
        rate=np.zeros_like(floor), floor=floor, value=np.tile(value, (len(problem.jobs), 1))
    )
    program, classes = state(problem, goal)
    solution = solver(program)
    return _allocation(problem, spread(program, classes, solution.x), solution.objective)


def _sum_with_deadlines(problem: Problem, value: Floats, solver: Solver) -> Allocation:
    floor = problem.steps / problem.deadline
    kept = _feasible(problem, floor, solver)
    allocation = _sum_above(problem, value, np.where(kept, floor, 0.0) * (1.0 - KEPT), solver)
    late = np.flatnonzero((floor > 0) & ~kept).tolist()
    return replace(allocation, dropped=tuple(problem.jobs[i] for i in late))


def _feasible(problem: Problem, floor: Floats, solver: Solver) -> Bools:
    """A set of deadlines that can be met together and to which none can be added.

    Deadlines are kept in the order of the GPUs that they need at least, so that few are dropped.
    """

    def together(jobs: Bools) -> bool:
        rate = np.where(jobs, floor, 0.0)
        if not rate.any():
            return True
        program, _ = state(problem, Goal(rate=rate, floor=np.zeros_like(rate)))
        return solver(program).objective >= 1.0 - REACHED

    fastest = _fastest(problem)
    need = problem.gang * floor / fastest
    candidates = np.flatnonzero((floor > 0) & (floor <= fastest))
    order = candidates[np.argsort(need[candidates], kind="stable")]
    kept = np.zeros(len(floor), dtype=np.bool_)

    def with_first(count: int) -> Bools:
        more = kept.copy()
        more[order[:count]] = True
        return more

    while len(order):
        if together(with_first(len(order))):
            return with_first(len(order))
        good, bad = 0, len(order)  # the longest beginning that can be kept
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if together(with_first(middle)) else (good, middle)
        kept = with_first(good)
        order = order[good + 1 :]
    return kept


def _agnostic(way: Way) -> Way:
    """The policy as one that believes every type to run every job equally fast."""

    def allocate(problem: Problem, means: Means) -> Allocation:
        return way(problem.with_speeds(np.ones_like(problem.throughput)), means)

    return allocate


def _agnostic_of_time(way: Way) -> Way:
    """The policy as one that takes the reference type's throughput for that of all types."""

    def allocate(problem: Problem, means: Means) -> Allocation:
        if REFERENCE in problem.columns:
            believed = problem.throughput[:, problem.columns.index(REFERENCE)]
        else:
            believed = problem.throughput[:, int(problem.throughput.sum(axis=0).argmax())]
        # A job that can't run on it is believed to be as fast as it is at best.
        believed = np.where(believed > 0, believed, problem.throughput.max(axis=1, initial=0.0))
        speeds = np.tile(believed[:, None], (1, len(problem.columns)))
        return way(problem.with_speeds(speeds), means)

    return allocate


def _allox(problem: Problem, _: Means) -> Allocation:
    shares, total = allox(problem)
    return _allocation(problem, shares, total)


def _gandiva(problem: Problem, means: Means) -> Allocation:
    return _allocation(problem, gandiva(problem, means.rng))


def _isolated(problem: Problem, _: Means) -> Allocation:
    return _allocation(problem, isolated(problem))


def _fifo(problem: Problem, _: Means) -> Allocation:
    sharing = len(problem.pairs) > 0
    return _allocation(problem, in_order(problem, earliest_first(problem), sharing=sharing))


def _shortest_job_first(problem: Problem, _: Means) -> Allocation:
    return _allocation(problem, in_order(problem, shortest_first(problem)))


def _forms(
    name: str, way: Way, agnostic: Callable[[Way], Way], *, packed: bool = True
) -> list[GavelPolicy]:
    forms = [
        GavelPolicy(name, agnostic(way), packed=False),
        GavelPolicy(f"{name}_perf", way, packed=False),
    ]
    return [*forms, GavelPolicy(f"{name}_packed", way, packed=True)] if packed else forms


POLICIES: Mapping[str, GavelPolicy] = {
    policy.name: policy
    for policy in [
        *_forms("max_min_fairness", max_min_fairness, _agnostic),
        *_forms("max_min_fairness_water_filling", water_filling, _agnostic),
        *_forms("min_total_duration", makespan, _agnostic_of_time),
        *_forms("finish_time_fairness", finish_time_fairness, _agnostic_of_time),
        *_forms("max_sum_throughput", max_sum_throughput, _agnostic),
        *_forms("max_sum_throughput_normalized_by_cost", max_sum_per_cost, _agnostic),
        *_forms("proportional_fairness", proportional_fairness, _agnostic, packed=False),
        *_forms("fifo", _fifo, _agnostic),
        *_forms("shortest_job_first", _shortest_job_first, _agnostic_of_time, packed=False),
        GavelPolicy("max_sum_throughput_perf_SLOs", max_sum_with_deadlines, packed=False),
        GavelPolicy("max_sum_throughput_packed_SLOs", max_sum_with_deadlines, packed=True),
        GavelPolicy(
            "max_sum_throughput_normalized_by_cost_perf_SLOs",
            max_sum_per_cost_with_deadlines,
            packed=False,
        ),
        GavelPolicy(
            "max_sum_throughput_normalized_by_cost_packed_SLOs",
            max_sum_per_cost_with_deadlines,
            packed=True,
        ),
        GavelPolicy("allox", _allox, packed=False),
        GavelPolicy("gandiva", _gandiva, packed=True),
        GavelPolicy("isolated", _isolated, packed=False),
    ]
}
