"""Where programs are solved: the fast way that fits, with HiGHS behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ones.policies.gavel.interior import solve_by_interior_point
from ones.policies.gavel.packing import solve_by_generating_pairs
from ones.policies.gavel.program import Bools, Program, Solution, Unsolved, solve_with_highs
from ones.policies.gavel.sifting import is_worth_sifting, solve_by_sifting
from ones.policies.model import Floats

REACHED = 1e-9  # a demand counts as met when this little of it is missing, relatively
CLOSE = 1e-7  # or where the next step would be this short
NEARLY, LAST = 1e-5, 0.01  # from where only the last part of the way is asked for in fractions
LOOSER = (0.0, 1e-9, 1e-8, 1e-7)  # of floors, one after another
CUTS = 100
MANY = 10_000  # rows times columns from which HiGHS's simplex method takes too long
Solver = Callable[[Program], Solution]
Demand = Callable[[float], Floats]


def solve(program: Program) -> Solution:
    """An optimal allocation; programs that can't be solved raise `Unsolved`."""
    if program.caps is not None:
        return solve_with_highs(program)
    if len(program.pairs):
        return solve_by_generating_pairs(program)
    if is_worth_sifting(program):
        with suppress(Unsolved):
            return solve_by_sifting(program)
    try:
        return solve_by_interior_point(program)
    except Unsolved:
        many = program.throughput.size > MANY
        return solve_with_highs(program, method="highs-ipm" if many else "highs")


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """The highest parameter at which a demand can be met, and what proves that."""

    parameter: float
    solution: Solution
    proof: Solution | None  # its prices forbid more; None where `top` itself can be met


def highest(
    program: Program,
    demand: Demand,
    top: float,
    solver: Solver,
    *,
    firm: Bools | None = None,
) -> Reached:
    """The largest parameter up to `top` for which the speeds `demand(parameter)` can be given.

    `demand` is any function that does not fall; in `firm` rows it doesn't rise any more. Each
    program asks for the largest fraction of the demand. Its prices say that sum worth * speed can
    never exceed a certain sum; the next parameter is the one at which the demand is worth just
    that. This is Newton's method, from above, where the cost of speed is convex.

    Near the end rows that can't have more, but are not in the way of others, would blur that
    fraction. There only what the last part of the way adds to the demand is asked for in fractions,
    and what was wanted before in full.
    """
    held = np.zeros(len(program.gang), dtype=np.bool_) if firm is None else firm
    at, part, proof = top, 1.0, None
    for _ in range(CUTS):
        wanted = demand(at)
        before = np.where(held, wanted, demand((1.0 - part) * at) if part < 1 else 0.0)
        rate = wanted - before
        floor = before if part == 1 else before * (1.0 - REACHED)
        if not rate.any():
            break
        solution = _above(replace(program, rate=rate, floor=floor, reward=None), solver)
        if solution.objective >= 1.0 - REACHED:
            return Reached(at, solution, proof)
        if part == 1 and solution.objective > 1.0 - NEARLY:
            part = LAST
            continue
        proof = solution
        worth = np.where(held, 0.0, solution.worth)
        most = float(worth @ (floor + solution.objective * rate))
        lower = _root(worth, demand, most, at)
        # A demand may rise so steeply that a parameter hardly below asks for far less.
        met = solution.objective >= 1.0 - CLOSE
        if lower >= at or (met and lower >= at * (1.0 - CLOSE)):
            return Reached(at, solution, proof)
        at = lower
    if proof is not None and not rate.any():
        return Reached(at, solution, proof)
    raise Unsolved("the demand could not be met")


def _above(program: Program, solver: Solver) -> Solution:
    """The highest level above floors that are optimal themselves, so that nothing is inside.

    Where speeds span many decades rounding may leave no allocation at all, or none that is found.
    Then the floors give way by less than is asked of any objective.
    """
    for part in LOOSER:
        with suppress(Unsolved):
            return solver(replace(program, floor=program.floor * (1.0 - part)))
    raise Unsolved("what was reached before can't be given any more")


def _root(worth: Floats, demand: Demand, most: float, high: float) -> float:
    """Up to where, below `high`, the demand is worth no more than `most`."""
    low = 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if float(worth @ demand(middle)) > most:
            high = middle
        else:
            low = middle
    return low
