"""Programs with pairs: of many pairs only those that are worth something enter.

Under the prices of an optimum over some pairs every other pair has a profit: what its speeds are
worth, less the price of its members' time and of its GPUs. While some pair has a profit above 0 the
best for each row join; when none has, the optimum is that over all pairs (column generation).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ones.policies.gavel.interior import solve_by_interior_point
from ones.policies.gavel.program import Pairs, Program, Solution, Unsolved, solve_with_highs
from ones.policies.model import Floats, Ints

FEW = 3000  # pairs that HiGHS takes at once
AT_FIRST, EACH_TIME = 2, 2  # pairs for each row
PROFIT = 1e-10  # relative to the objective; below it a pair counts as worth nothing
ROUNDS = 100


def solve_by_generating_pairs(program: Program) -> Solution:
    """An optimal vertex over all pairs."""
    pairs, rows = program.pairs, len(program.gang)
    if len(pairs) <= FEW:
        return solve_with_highs(program)
    solution = _without(program)
    inside = np.zeros(len(pairs), dtype=np.bool_)
    chosen = np.flatnonzero(inside)
    for attempt in range(ROUNDS):
        profit = _profit(program, solution)
        profit[inside] = 0.0
        if attempt and profit.max() <= PROFIT * max(abs(solution.objective), 1e-300):
            x = np.zeros((rows + len(pairs), program.throughput.shape[1]))
            x[:rows], x[rows + chosen] = solution.x[:rows], solution.x[rows:]
            return replace(solution, x=x)
        inside[_best_of_each(pairs, profit, AT_FIRST if not attempt else EACH_TIME)] = True
        chosen = np.flatnonzero(inside)
        solution = solve_with_highs(_with(program, chosen), method="highs-ipm")
    raise Unsolved("pairs kept being found that are worth more")


def _profit(program: Program, solution: Solution) -> Floats:
    """The best profit of each pair over the columns."""
    pairs = program.pairs
    i, j = pairs.first, pairs.second
    gain = pairs.throughput[:, :, 0] * solution.worth[i, None]
    gain += pairs.throughput[:, :, 1] * solution.worth[j, None]
    if program.reward is not None:
        gain += program.reward[len(program.gang) :]
    gain -= program.gang[i, None] * solution.prices[program.pool]
    return np.asarray(gain.max(axis=1) - solution.hours[i] - solution.hours[j])


def _best_of_each(pairs: Pairs, profit: Floats, count: int) -> Ints:
    """The `count` most profitable pairs of every row."""
    able = np.flatnonzero(profit > 0)
    able = able[np.argsort(-profit[able], kind="stable")]
    chosen = []
    for member in (pairs.first, pairs.second):
        of = member[able]
        order = np.argsort(of, kind="stable")
        start = np.searchsorted(of[order], of[order])
        chosen.append(able[order[np.arange(len(order)) - start < count]])
    return np.unique(np.concatenate(chosen))


def _with(program: Program, chosen: Ints) -> Program:
    rows = len(program.gang)
    reward = program.reward
    if reward is not None:
        reward = np.concatenate([reward[:rows], reward[rows + chosen]])
    return replace(program, pairs=program.pairs.only(chosen), reward=reward)


def _without(program: Program) -> Solution:
    alone = _with(program, np.zeros(0, dtype=np.int64))
    try:
        return solve_by_interior_point(alone)
    except Unsolved:
        return solve_with_highs(alone)
