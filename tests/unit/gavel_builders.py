"""Problems for the tests of Gavel's policies."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ones.policies.gavel import Allocation, Entity, Pairs, Problem
from ones.policies.gavel.classes import Goal, state
from ones.policies.gavel.program import Program, Solution, solve_with_highs
from ones.policies.model import Floats

NEAR = 1e-6


def a_problem(throughput: Any, gpus: Any, **fields: Any) -> Problem:
    """Jobs 0, 1, ... whose fields are 1 where not given."""
    given = {
        name: np.asarray(value, dtype=np.float64) if isinstance(value, list) else value
        for name, value in fields.items()
        if name not in ("jobs", "columns")
    }
    named = {name: fields[name] for name in ("jobs", "columns") if name in fields}
    return Problem.of(np.array(throughput, dtype=float), np.array(gpus), **given, **named)


@st.composite
def problems(draw: st.DrawFn, most: int = 12, *, paired: bool = False) -> Problem:
    """Jobs of all sorts: ties, types that some can't run on, pools without GPUs, wide spreads."""
    jobs = draw(st.integers(1, most))
    types = draw(st.integers(1, 4))
    manner = draw(st.sampled_from(["unlike", "table", "equal"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    speed = 10 ** rng.uniform(-1, 2, (jobs, 1)) * 10 ** rng.normal(0, 0.3, (jobs, types))
    if manner == "table":
        speed = speed[rng.integers(0, max(1, jobs // 3), jobs)]
    if manner == "equal":
        speed = np.ones_like(speed)
    gpus = rng.integers(0, draw(st.sampled_from([4, 12, 40])) + 1, types).astype(float)
    gpus[0] = max(gpus[0], 2.0)
    speed[:, 1:] = np.where(rng.random((jobs, types - 1)) < 0.15, 0.0, speed[:, 1:])
    fields: dict[str, Any] = {}
    if paired:
        first, second = np.triu_indices(jobs, 1)
        shared = rng.uniform(0.2, 0.9, (len(first), types, 2))
        both = np.stack([speed[first], speed[second]], axis=-1)
        shared[rng.random(len(first)) < 0.2] = 0.0
        fields["pairs"] = Pairs(first=first, second=second, throughput=shared * both)
    return Problem.of(
        speed,
        gpus,
        gang=rng.choice([1.0, 2.0], jobs, p=[0.7, 0.3]),
        weight=rng.choice([1.0, 5.0], jobs) if draw(st.booleans()) else None,
        steps=10 ** rng.uniform(1, 6, jobs),
        age=rng.uniform(0, 1e4, jobs) * (rng.random(jobs) < 0.6),
        isolated=rng.uniform(0, 1e4, jobs) * (rng.random(jobs) < 0.6),
        costs=rng.uniform(0.1, 3.0, types),
        **fields,
    )


def far_apart(seed: int) -> Problem:
    """Up to 39 jobs whose speeds, and where it so falls out whose steps, span twelve decades."""
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(1, 40)), int(rng.integers(1, 6))
    across = [(jobs, types), (jobs, 1), (1, types)][rng.integers(3)]
    near = 1.0 if across == (jobs, types) else 10 ** rng.normal(0, 0.3, (jobs, types))
    speed = 10 ** rng.uniform(-6, 6, across) * near
    gpus = rng.integers(0, 13, types).astype(float)
    gpus[0] = max(gpus[0], 2.0)
    speed[:, 1:] = np.where(rng.random((jobs, types - 1)) < 0.15, 0.0, speed[:, 1:])
    return Problem.of(
        speed,
        gpus,
        gang=rng.choice([1.0, 2.0], jobs, p=[0.7, 0.3]),
        weight=rng.choice([1.0, 5.0], jobs),
        steps=10 ** rng.uniform(0, 6, jobs) * 10 ** rng.uniform(rng.choice([-6, 0]), 0, jobs),
        age=rng.uniform(0, 1e4, jobs) * (rng.random(jobs) < 0.6),
        isolated=rng.uniform(0, 1e4, jobs) * (rng.random(jobs) < 0.6),
    )


@st.composite
def crowds(draw: st.DrawFn, most: int = 150) -> Problem:
    """Many jobs for few types: scarce or ample, alike or not, weights over up to four decades."""
    jobs, types = draw(st.integers(20, most)), draw(st.integers(1, 5))
    manner = draw(st.sampled_from(["unlike", "table", "some can't", "powers of two", "equal"]))
    load = draw(st.sampled_from([0.05, 0.3, 0.6, 0.9, 1.2, 3.0]))
    decades = draw(st.sampled_from([0.0, 0.5, 4.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    apart = np.exp(rng.normal(0.0, rng.choice([0.1, 0.5, 1.5]), (jobs, types)))
    speed = 10 ** rng.uniform(-1, 2, (jobs, 1)) * rng.uniform(0.1, 1.0, types) * apart
    if manner == "table":
        speed = speed[rng.integers(0, 10, jobs)]
    if manner == "some can't":
        speed[:, 1:] = np.where(rng.random((jobs, types - 1)) < 0.3, 0.0, speed[:, 1:])
    if manner == "powers of two":
        speed = np.exp2(np.round(np.log2(speed)))
    if manner == "equal":
        speed = np.ones_like(speed)
    gang = rng.choice([1.0, 2.0, 4.0, 8.0], jobs, p=[0.7, 0.1, 0.15, 0.05])
    gpus = np.round(rng.dirichlet(np.full(types, 2.0)) * load * gang.sum())
    gpus[0] = max(gpus[0], 8.0)
    return Problem.of(
        speed,
        gpus,
        gang=gang,
        weight=10 ** rng.uniform(-decades, 0.0, jobs),
        steps=speed.max(axis=1) * 10 ** rng.uniform(3, 4, jobs),
    )


def with_pools(problem: Problem, pools: int, seed: int, *, least: int) -> Problem:
    """Its columns draw from so many pools at most, each of `least` GPUs or more."""
    rng = np.random.default_rng(seed)
    columns = len(problem.gpus)
    pools = min(pools, columns)
    pool = np.concatenate([np.arange(pools), rng.integers(0, pools, columns - pools)])
    gpus = np.maximum(problem.gpus, least)[:pools]
    return replace(problem, pool=rng.permutation(pool), gpus=gpus)


def check_against_highs(program: Program, solution: Solution) -> None:
    """The objective is that of HiGHS, and everything that was promised is kept."""
    assert solution.objective == pytest.approx(solve_with_highs(program).objective, rel=NEAR)
    assert faults(program, solution) < NEAR


def in_a_crowd(problem: Problem) -> Problem:
    """The same jobs, each so many times that no copy of it can be busy all the time.

    All GPUs together are fewer than the copies, and equal jobs have equal shares.
    """
    copies = int(problem.gpus.sum()) + 1
    return Problem.of(
        np.repeat(problem.throughput, copies, axis=0),
        problem.gpus,
        gang=np.repeat(problem.gang, copies),
    )


@st.composite
def trees(draw: st.DrawFn, jobs: int) -> tuple[Entity, ...]:
    """Entities up to three deep over rows 0 ... jobs - 1."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def split(rows: tuple[int, ...], depth: int) -> Entity:
        rule, weight = str(rng.choice(["fairness", "fifo"])), float(rng.integers(1, 4))
        name = f"e{rows[0]}-{depth}"
        if depth == 2 or len(rows) < 3 or rng.random() < 0.4:
            return Entity(name, rule, weight, jobs=rows)
        cut = int(rng.integers(1, len(rows)))
        parts = (split(rows[:cut], depth + 1), split(rows[cut:], depth + 1))
        return Entity(name, rule, weight, entities=parts)

    cuts = sorted(set(rng.integers(1, jobs, 2).tolist())) if jobs > 1 else []
    edges = [0, *cuts, jobs]
    return tuple(split(tuple(range(a, b)), 0) for a, b in pairwise(edges))


def throughputs(problem: Problem, allocation: Allocation) -> Floats:
    """The steps a second that each job gets."""
    shares, kind = allocation.shares, problem.kind
    speed = np.einsum("ik,ik->i", problem.throughput, shares.alone)
    table = {
        (int(a), int(b)): both
        for a, b, both in zip(
            problem.pairs.first, problem.pairs.second, problem.pairs.throughput, strict=True
        )
    }
    for i, j, x in zip(shares.first, shares.second, shares.together, strict=True):
        pair = int(kind[i]), int(kind[j])
        both = table[pair] if pair in table else table[pair[::-1]][:, ::-1]
        speed[i] += both[:, 0] @ x
        speed[j] += both[:, 1] @ x
    return np.asarray(speed)


def excess(problem: Problem, allocation: Allocation) -> float:
    """By how much the worst limit is exceeded."""
    shares = allocation.shares
    spent = shares.together.sum(axis=1)
    busy = shares.alone.sum(axis=1)
    np.add.at(busy, shares.first, spent)
    np.add.at(busy, shares.second, spent)
    used = problem.gang @ shares.alone + problem.gang[shares.first] @ shares.together
    used = np.bincount(problem.pool, used, len(problem.gpus))
    return max(
        float(busy.max() - 1.0),
        float(((used - problem.gpus) / np.maximum(problem.gpus, 1.0)).max()),
        -float(shares.alone.min()),
        -float(shares.together.min(initial=0.0)),
    )


def idle_gpus(problem: Problem, allocation: Allocation) -> Floats:
    """The GPUs of each pool that nobody uses."""
    shares = allocation.shares
    used = problem.gang @ shares.alone + problem.gang[shares.first] @ shares.together
    return np.asarray(problem.gpus - np.bincount(problem.pool, used, len(problem.gpus)))


def program_of(problem: Problem, rate: Floats) -> Program:
    """Each job its own row."""
    goal = Goal(rate=rate, floor=np.zeros_like(rate))
    alone = np.arange(len(rate), dtype=np.float64)[:, None]
    return state(problem, goal, apart=alone)[0]


def shares_of(problem: Problem) -> Floats:
    return problem.weight * problem.average / problem.gang


def faults(program: Program, solution: Solution) -> float:
    """By how much the worst constraint is missed, relatively."""
    x, level = solution.x, solution.objective if program.reward is None else 0.0
    wanted = program.floor + program.rate * level
    return max(
        float(-x.min()),
        float((program.busy(x) / program.time).max() - 1.0),
        float(((program.used(x) - program.gpus) / np.maximum(program.gpus, 1.0)).max()),
        float(((wanted - program.speeds(x)) / np.maximum(wanted, 1e-12)).max()),
    )
