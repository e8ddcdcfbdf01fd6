"""Interior-point solution of a program without pairs, linear in the number of rows.

Only the few pools (and the level) couple the rows. Mehrotra's predictor-corrector method therefore
comes down to a 2 x 2 block per row (its speed and its time), eliminated in closed form for a block
of rows at once (`elimination.py`), and one dense system as large as there are pools. Some 10 to 30
steps, however many rows; with hundreds of pools up to a hundred.

Slacks and multipliers come in pairs whose products go to zero together:
    x with its reduced cost w,  idle time y with its price v,  excess speed z with its worth u,
    idle GPUs q with their price p.
Proportional fairness, max sum weight * log(speed), is the same system with floor = rate = 0 in
which z is the speed itself and z * u = weight instead of 0 (`logs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ones.policies.gavel.elimination import Eliminated, Form, Rows, longest
from ones.policies.gavel.program import Program, Scaled, Solution, Unsolved
from ones.policies.model import Floats

STEPS = 100
PATIENCE = 4  # steps without progress, once it is good
GAP = 1e-10  # relative; what is asked of a policy is 1e-6
OF_SUM = 1e-8  # the same where nothing is compared with the objective, as it is with a level
GOOD = 1e-7  # accepted where rounding stops the method earlier
HOPELESS = 15  # steps without progress, while it isn't
PRICED = 1e-6  # of the level; what GPUs earn that have a price beyond doubt
BOUNDARY = 1e-3  # at least this part of the way to the boundary is left


def solve_by_interior_point(program: Program, *, logs: Floats | None = None) -> Solution:
    """An optimal allocation in the middle of the optimal ones."""
    if program.reward is None and logs is None and not program.rate.any():
        raise Unsolved("no row limits the level")
    enough = GAP if program.reward is None else OF_SUM
    solution = solved_in_form(program, partial(optimum, enough=enough), logs=logs)
    # What has a price is in use by those who can't do without.
    earned = solution.prices * program.gpus
    priced = bool((earned > PRICED * solution.objective)[program.gpus > 0].all())
    return replace(solution, full=program.reward is None and logs is None and priced)


def solved_in_form(
    program: Program, solver: Callable[[Form], Solution], *, logs: Floats | None = None
) -> Solution:
    """The program as a solver of numbers near 1 finds it, with every promise kept."""
    if len(program.pairs):
        raise ValueError("pairs couple rows with each other")
    filled, there = program.gpus > 0, program.there
    kept = replace(
        program,
        throughput=program.throughput[:, there],
        gpus=program.gpus[filled],
        pool=(np.cumsum(filled) - 1)[program.pool[there]],
        reward=None if program.reward is None else program.reward[:, there],
        pairs=program.pairs.none(int(there.sum())),
    )
    scaled = Scaled.of(kept)
    answer = scaled.undo(solver(Form.of(scaled.program, logs)))
    x, prices = np.zeros_like(program.throughput), np.zeros_like(program.gpus)
    x[:, there] = np.where(kept.throughput > 0, answer.x, 0.0)
    prices[filled] = answer.prices
    x = program.kept(x, 0.0 if program.reward is not None or logs is not None else answer.objective)
    return replace(answer, x=x, prices=prices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Point:
    """All unknowns, or a step in them."""

    rows: list[Rows]  # of each block
    q: Floats
    level: float
    p: Floats

    @classmethod
    def start(cls, form: Form) -> _Point:
        """Nine tenths of the GPUs in use, the level low enough: feasible but for floors."""
        rows = form.a.shape[1]
        per_column = (form.gpus / np.bincount(form.pool, minlength=len(form.gpus)))[form.pool]
        part = 0.9 * min(1.0, float(form.gpus.sum() / form.s.sum())) / per_column.sum()
        x = np.repeat((part * per_column)[:, None], rows, axis=1)
        y, q = 1.0 - x.sum(axis=0), form.gpus - form.used(x)
        speed = form.speed(x)
        level, u = 0.0, np.ones(rows)
        z = np.maximum(speed - form.floor, 0.1)
        if form.total:
            rising = form.rate > 0
            over = speed - form.floor
            level = float(((over - 0.5 * speed)[rising] / form.rate[rising]).min())
            z[rising] = (over - form.rate * level)[rising]
            u = form.total / float((form.rate / z).sum()) / z
        elif form.logs is not None:
            z = speed
            u = form.logs / z
        even = float(z @ u) / rows
        p = even / q
        pull = u * form.a - form.cost(p)
        if form.reward is not None:
            pull += form.reward
        v = np.maximum(even / y, pull.max(axis=0) + even)
        whole = Rows(x=x, y=y, z=z, w=v - pull, v=v, u=u)
        return cls(rows=[whole.part(block) for block in form.blocks()], q=q, level=level, p=p)

    def moved(self, by: _Point, forward: float, back: float) -> _Point:
        return _Point(
            rows=[
                rows.moved(step, forward, back)
                for rows, step in zip(self.rows, by.rows, strict=True)
            ],
            q=self.q + forward * by.q,
            level=self.level + forward * by.level,
            p=self.p + back * by.p,
        )

    def room(self, by: _Point) -> tuple[float, float]:
        """How far allocation and prices can move before something turns negative."""
        rooms = [rows.room(step) for rows, step in zip(self.rows, by.rows, strict=True)]
        forward, back = (min(room) for room in zip(*rooms, strict=True))
        return min(forward, longest((self.q, by.q))), min(back, longest((self.p, by.p)))

    def times(self, other: _Point, *, logs: bool) -> float:
        """The sum of products, one's allocation by the other's prices; of itself: the gap."""
        both = zip(self.rows, other.rows, strict=True)
        return float(self.q @ other.p) + sum(one.times(two, logs=logs) for one, two in both)


class _Newton:
    """Newton's equations at a point: the blocks', and what couples them."""

    def __init__(self, form: Form, parts: list[Form], at: _Point) -> None:
        self.at = at
        self.blocks = [
            Eliminated(part, rows, at.level, at.p)
            for part, rows in zip(parts, at.rows, strict=True)
        ]
        pools = len(form.gpus)
        self.idle = form.gpus - at.q
        self.unpaid = form.total
        self.matrix = np.zeros((pools + 1, pools + 1))
        for part, block in zip(parts, self.blocks, strict=True):
            self.idle -= part.used(block.at.x)
            self.unpaid -= float(part.rate @ block.at.u)
            self.matrix += block.matrix
        self.matrix[np.arange(pools), np.arange(pools)] += at.q / at.p
        if not form.total:
            self.matrix[pools, pools] = 1.0

    def fault(self, form: Form) -> float:
        """What the equations of the point still miss, at most."""
        pools = float((np.abs(self.idle) / np.maximum(form.gpus, 1.0)).max())
        level = abs(self.unpaid) * 1e-2  # a fault of prices, as well
        return max(pools, level, *(block.fault() for block in self.blocks))

    def step(self, aim: float, guess: _Point | None = None, bend: float = 0.0) -> _Point:
        """The step after which the products are `aim`, to first order and what the guess adds."""
        at = self.at
        right = np.zeros(len(self.matrix))
        for i, block in enumerate(self.blocks):
            right += block.right(aim, None if guess is None else guess.rows[i], bend)
        rq = aim - at.q * at.p
        if guess is not None:
            rq -= bend * guess.q * guess.p
        right[:-1] += rq / at.p - self.idle
        right[-1] -= self.unpaid
        answer = np.asarray(np.linalg.solve(self.matrix, right), dtype=np.float64)
        p, level = answer[:-1], float(answer[-1])
        return _Point(
            rows=[block.step(p, level) for block in self.blocks],
            q=(rq - at.q * p) / at.p,
            level=level,
            p=p,
        )


def optimum(form: Form, enough: float) -> Solution:
    rows, logs = form.a.shape[1], form.logs is not None
    count = form.a.size + rows + len(form.gpus) + (0 if logs else rows)
    parts = [form.part(block) for block in form.blocks()]
    at = _Point.start(form)
    best, error, found = at, np.inf, 0
    for step in range(STEPS):
        newton = _Newton(form, parts, at)
        gap = at.times(at, logs=logs)
        sums = sum(part.value(one.x) for part, one in zip(parts, at.rows, strict=True))
        value = form.total * at.level + sums
        size = float(form.logs.sum()) if form.logs is not None else max(abs(value), 1e-6 * rows)
        now = max(gap / size, newton.fault(form))
        if now < error:
            best, error, found = at, now, step
        stuck = step - found >= (PATIENCE if error < GOOD else HOPELESS)
        if error < enough or stuck or not np.isfinite(now):
            break
        try:
            guess = newton.step(0.0)
        except np.linalg.LinAlgError:
            break
        forward, back = at.room(guess)
        after = gap + forward * guess.times(at, logs=logs) + back * at.times(guess, logs=logs)
        after += forward * back * guess.times(guess, logs=logs)
        # Aim at an even product, small if the guess could go far, but no smaller than of use. And
        # make good what the guess bends away, as far as it holds (Colombo, Gondzio 2008).
        mean = gap / count
        aim = max(0.3 * enough * size / count, mean * min(1.0, after / gap) ** 3)
        move = newton.step(aim, guess, min(forward, back))
        near = min(max(0.9, 1.0 - 10 * mean), 1.0 - BOUNDARY)
        forward, back = (min(1.0, near * room) for room in at.room(move))
        if logs:  # z * u stays on its target only if both move alike
            forward = back = min(forward, back)
        at = at.moved(move, forward, back)
    if error > max(GOOD, 10 * enough):
        raise Unsolved("the interior-point method made no more progress")
    unit = form.total or 1.0
    x = np.concatenate([one.x.T for one in best.rows])
    objective = best.level if form.total else form.value(np.ascontiguousarray(x.T))
    return Solution(
        x=x * form.time[:, None],
        objective=objective,
        prices=best.p / unit,
        worth=np.concatenate([one.u for one in best.rows]) / form.time / unit,
        hours=np.concatenate([one.v for one in best.rows]) / form.time / unit,
        steps=step,
    )
