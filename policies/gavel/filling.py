"""Water filling: what is shared rises for all as long as it can, then for those who still can.

A tree of entities says how the level rises: below the root every child rises by its weight; inside
a `fairness` entity what it gets is split by weight among those that still rise, inside a `fifo`
entity the first that still rises gets all. How much each job has taken is then a function of one
number, the water level z, and of the limit at which each job stops (`Tree.taken`).

No mixed-integer program is needed to find who can't rise further. When z can rise no more, the
program's prices prove it. GPUs that have a price are in use by jobs that can't do without; nobody
else can have any of them without taking speed from those, at this level or above. So the others'
limit is their best speed on pools without a price, and z can rise again: at most one round a pool.
With pairs, partners' time is scarce as well, and with limits of the site what these allow; there
the rows that are worth something stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ones.policies.gavel.problem import Entity
from ones.policies.gavel.program import Bools, Program, Solution, Unsolved
from ones.policies.gavel.solving import CLOSE, REACHED, Solver, highest
from ones.policies.model import Floats

PRICED = 1e-9  # of all prices' sum; below this a pool counts as free in any case
WORTHY = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Who takes how much of the rising water; leaves are rows of a program."""

    weight: Floats  # [rows] within their parent
    entities: tuple[Entity, ...] = ()

    def top(self, limit: Floats) -> float:
        """The water level at which everybody has reached the limit."""
        if not self.entities:
            return float((limit / self.weight).max())
        return max(float(limit[list(e.members)].sum()) / e.weight for e in self.entities)

    def taken(self, z: float, limit: Floats) -> Floats:
        """How much each row has taken at water level z."""
        if not self.entities:
            return np.asarray(np.minimum(limit, self.weight * z))
        taken = np.zeros_like(limit)
        for entity in self.entities:
            self._pour(entity, entity.weight * z, limit, taken)
        return taken

    def _pour(self, entity: Entity, amount: float, limit: Floats, taken: Floats) -> None:
        if entity.jobs:
            at = np.array(entity.jobs)
            taken[at] = _split(entity.rule, amount, limit[at], self.weight[at])
            return
        holds = np.array([float(limit[list(e.members)].sum()) for e in entity.entities])
        weight = np.array([e.weight for e in entity.entities])
        for child, part in zip(
            entity.entities, _split(entity.rule, amount, holds, weight), strict=True
        ):
            self._pour(child, float(part), limit, taken)


def _split(rule: str, amount: float, limit: Floats, weight: Floats) -> Floats:
    """`amount` among children who take no more than their limit."""
    if amount >= limit.sum():
        return limit
    if rule == "fifo":
        before = np.cumsum(limit) - limit
        return np.asarray(np.clip(amount - before, 0.0, limit))
    full = limit / weight
    order = np.argsort(full)
    # With the first k children full, the others stand at the level (amount - their sum) / weights.
    filled = np.concatenate([[0.0], np.cumsum(limit[order])[:-1]])
    rising = np.cumsum(weight[order][::-1])[::-1]
    level = (amount - filled) / rising
    reached = level <= full[order]
    reached[-1] = True  # rounding aside: there is less to share than they hold
    k = int(np.argmax(reached))
    return np.asarray(np.minimum(limit, weight * level[k]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filled:
    """The speed that each row is promised, and an allocation that gives it."""

    speed: Floats  # [rows]
    solution: Solution
    rounds: int


def fill(program: Program, unit: Floats, tree: Tree, solver: Solver) -> Filled:
    """The lexicographic max-min allocation; `unit` is a row's speed for each unit taken."""
    rows = len(program.gang)
    free = program.gpus > 0
    limit = program.best(free) / unit
    held = np.zeros(rows, dtype=np.bool_)
    pools_alone = len(program.pairs) == 0 and program.caps is None
    top = tree.top(limit)
    whole, level = program, 0.0
    solution: Solution | None = None
    for rounds in range(1, rows + len(free) + 2):
        demand = partial(_demand, tree, limit, unit)
        try:
            reached = highest(program, demand, top, solver, firm=held)
        except Unsolved:
            if solution is None:
                raise
            return _so_far(whole, solution, rounds)
        if solution is None or reached.parameter > level:  # rounding aside, it never sinks
            level, solution = reached.parameter, reached.solution
        taken = tree.taken(level, limit)
        if reached.proof is None or held.all():
            return Filled(speed=unit * taken, solution=solution, rounds=rounds)
        if not pools_alone:
            worth = np.where(held, 0.0, reached.proof.worth * unit * tree.taken(top, limit))
            stopped = ~held & (worth > WORTHY * worth.sum())
            limit = np.where(stopped, taken, limit)
        else:
            closed = free & _priced(program, reached.proof)
            if not closed.any():  # rounding aside, only their own limits hold the others
                speed = demand(top)
                try:
                    given = _given(program, speed, held, solver)
                except Unsolved:
                    return _so_far(whole, solution, rounds)
                return Filled(speed=speed, solution=given, rounds=rounds)
            free &= ~closed
            left = program.best(free) / unit
            limit = np.where(held, limit, np.maximum(taken, np.minimum(limit, left)))
            stopped = ~held & (limit <= taken)
        held = held | stopped
        if held.all():
            return Filled(speed=unit * taken, solution=solution, rounds=rounds)
        top = tree.top(limit)
        if pools_alone:
            # Those who still rise can't have what has a price.
            open_columns = free[program.pool][None, :] | held[:, None]
            program = replace(program, throughput=np.where(open_columns, program.throughput, 0.0))
    raise Unsolved("water filling did not end")


def _so_far(program: Program, solution: Solution, rounds: int) -> Filled:
    """What an earlier round has reached, with what it gives the others by the way.

    For speeds that span so many decades that rounding hides how the others could still rise.
    """
    return Filled(speed=program.speeds(solution.x), solution=solution, rounds=rounds)


def _priced(program: Program, proof: Solution) -> Bools:
    """The pools that have a price. Either the price or what is idle is 0 but for rounding, so the
    larger share of the two tells."""
    gpus = np.maximum(program.gpus, 1e-300)
    price = proof.prices * program.gpus
    idle = np.maximum(program.gpus - program.used(proof.x), 0.0) / gpus
    return np.asarray(price > np.maximum(idle, PRICED) * price.sum())


def _given(program: Program, speed: Floats, held: Bools, solver: Solver) -> Solution:
    """An allocation that gives these speeds."""
    rate, floor = np.where(held, 0.0, speed), np.where(held, speed, 0.0)
    solution = solver(replace(program, rate=rate, floor=floor))
    if solution.objective < 1.0 - CLOSE:
        raise Unsolved("water filling found no pool that holds the level down")
    return solution


def _demand(tree: Tree, limit: Floats, unit: Floats, z: float) -> Floats:
    return unit * tree.taken(z, limit)


def fill_by_rounds(program: Program, unit: Floats, tree: Tree, solver: Solver) -> Filled:
    """The same by the book: one program a round, then those whose price is positive stop.

    The reference that `fill` is held against.
    """
    rows = len(program.gang)
    limit = program.best(program.gpus > 0) / unit
    amount = np.full(rows, np.inf)
    taken = np.zeros(rows)
    for rounds in range(1, 4 * rows + 2):
        rate = _rates(tree, np.isinf(amount))
        wanted = replace(program, rate=unit * rate, floor=unit * taken * (1.0 - 1e-12), reward=None)
        solution = solver(wanted)
        taken = taken + max(0.0, solution.objective) * rate
        worth = solution.worth * unit * rate
        stopped = (worth > WORTHY * worth.sum()) | (taken >= limit * (1.0 - REACHED))
        amount = np.where(np.isinf(amount) & stopped, taken, amount)
        if np.isfinite(amount).all():
            return Filled(speed=unit * taken, solution=solution, rounds=rounds)
    raise Unsolved("water filling did not end")


def _rates(tree: Tree, rising: Bools) -> Floats:
    """How fast each row takes water while just the `rising` ones can."""
    if not tree.entities:
        return np.where(rising, tree.weight, 0.0)
    rate = np.zeros(len(rising))

    def pour(entity: Entity, amount: float) -> None:
        children: Sequence[Entity | int] = entity.jobs or entity.entities
        able = [
            child
            for child in children
            if (rising[child] if isinstance(child, int) else rising[list(child.members)].any())
        ]
        if entity.rule == "fifo":
            able = able[:1]
        weights = [tree.weight[c] if isinstance(c, int) else c.weight for c in able]
        for child, weight in zip(able, weights, strict=True):
            part = amount * float(weight / sum(weights)) if entity.rule == "fairness" else amount
            if isinstance(child, int):
                rate[child] = part
            else:
                pour(child, part)

    for entity in tree.entities:
        pour(entity, entity.weight)
    return rate
