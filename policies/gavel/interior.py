"""Interior-point solution of a program without pairs, linear in the number of rows.

Only the few pools (and the level) couple the rows. Mehrotra's predictor-corrector method therefore
comes down to a 2 x 2 block per row (its speed and its time), eliminated in closed form for all rows
at once, and one dense system as large as there are pools. Some 10 to 30 steps, however
many rows; with hundreds of pools up to a hundred.

Slacks and multipliers come in pairs whose products go to zero together:
    x with its reduced cost w,  idle time y with its price v,  excess speed z with its worth u,
    idle GPUs q with their price p.
Proportional fairness, max sum weight * log(speed), is the same system with floor = rate = 0 in
which z is the speed itself and z * u = weight instead of 0 (`logs`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ones.policies.gavel.program import Program, Scaled, Solution, Unsolved
from ones.policies.model import Floats, Ints

STEPS = 100
PATIENCE = 4  # steps without progress, once it is good
GAP = 1e-10  # relative; what is asked of a policy is 1e-6
GOOD = 1e-7  # accepted where rounding stops the method earlier
HOPELESS = 15  # steps without progress, while it isn't
BOUNDARY = 1e-3  # at least this part of the way to the boundary is left


def solve_by_interior_point(program: Program, *, logs: Floats | None = None) -> Solution:
    """An optimal allocation in the middle of the optimal ones."""
    if len(program.pairs):
        raise ValueError("pairs couple rows with each other")
    if program.reward is None and logs is None and not program.rate.any():
        raise Unsolved("no row limits the level")
    filled = program.gpus > 0
    there = filled[program.pool]
    kept = replace(
        program,
        throughput=program.throughput[:, there],
        gpus=program.gpus[filled],
        pool=(np.cumsum(filled) - 1)[program.pool[there]],
        reward=None if program.reward is None else program.reward[:, there],
        pairs=program.pairs.none(int(there.sum())),
    )
    scaled = Scaled.of(kept)
    answer = scaled.undo(_solve(_Form.of(scaled.program, logs)))
    x, prices = np.zeros_like(program.throughput), np.zeros_like(program.gpus)
    x[:, there] = np.where(kept.throughput > 0, answer.x, 0.0)
    prices[filled] = answer.prices
    x = program.kept(x, 0.0 if program.reward is not None or logs is not None else answer.objective)
    return replace(answer, x=x, prices=prices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Form:
    """A program's numbers, [columns, rows]; a class of jobs is one row that has a time of 1."""

    a: Floats  # speeds
    s: Floats  # GPUs of the whole class
    pool: Ints  # [columns]
    member: Floats | None  # [columns, pools] 1 where the column draws from the pool; None: 1 to 1
    gpus: Floats
    floor: Floats
    rate: Floats
    reward: Floats
    total: float  # the level's coefficient in the objective; 0 where there is no level
    time: Floats
    logs: Floats | None

    @classmethod
    def of(cls, program: Program, logs: Floats | None) -> _Form:
        n = program.time
        pools = np.arange(len(program.gpus))
        levelled = program.reward is None and logs is None
        reward = np.zeros((1, 1)) if program.reward is None else (program.reward * n[:, None]).T
        return cls(
            a=np.ascontiguousarray(program.throughput.T),
            s=program.gang * n,
            pool=program.pool,
            member=None
            if np.array_equal(program.pool, pools)
            else (program.pool[:, None] == pools).astype(np.float64),
            gpus=program.gpus,
            floor=program.floor / n,
            rate=program.rate / n,
            reward=np.ascontiguousarray(reward),
            total=float(len(n)) if levelled else 0.0,  # so that the rows' worth is near 1
            time=n,
            logs=logs,
        )

    def pooled(self, of: Floats) -> Floats:
        """Columns summed up by pool, [pools, rows]."""
        return of if self.member is None else np.asarray(self.member.T @ of)

    def spread(self, of: Floats) -> Floats:
        """Each column's pool's part, [columns, rows]."""
        return of if self.member is None else of[self.pool]

    def speed(self, x: Floats) -> Floats:
        return np.asarray(np.einsum("kr,kr->r", self.a, x))

    def used(self, x: Floats) -> Floats:
        return np.asarray(np.bincount(self.pool, x @ self.s, len(self.gpus)), dtype=np.float64)

    def cost(self, p: Floats) -> Floats:
        """What a row pays for all of its time on each column."""
        return np.asarray(p[self.pool][:, None] * self.s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Point:
    """All unknowns, or a step in them."""

    x: Floats  # [columns, rows]
    y: Floats
    z: Floats
    q: Floats
    level: float
    w: Floats  # [columns, rows]
    v: Floats
    u: Floats
    p: Floats

    @classmethod
    def start(cls, form: _Form) -> _Point:
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
        pull = form.reward + u * form.a - form.cost(p)
        v = np.maximum(even / y, pull.max(axis=0) + even)
        return cls(x=x, y=y, z=z, q=q, level=level, w=v - pull, v=v, u=u, p=p)

    def moved(self, by: _Point, forward: float, back: float) -> _Point:
        return _Point(
            x=self.x + forward * by.x,
            y=self.y + forward * by.y,
            z=self.z + forward * by.z,
            q=self.q + forward * by.q,
            level=self.level + forward * by.level,
            w=self.w + back * by.w,
            v=self.v + back * by.v,
            u=self.u + back * by.u,
            p=self.p + back * by.p,
        )

    def room(self, by: _Point) -> tuple[float, float]:
        """How far allocation and prices can move before something turns negative."""
        return (
            _longest((self.x, by.x), (self.y, by.y), (self.z, by.z), (self.q, by.q)),
            _longest((self.w, by.w), (self.v, by.v), (self.u, by.u), (self.p, by.p)),
        )

    def products(self, *, logs: bool) -> float:
        """The sum of the products that go to zero: the duality gap."""
        gap = float(np.vdot(self.x, self.w) + self.y @ self.v + self.q @ self.p)
        return gap if logs else gap + float(self.z @ self.u)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Residual:
    """What the equations of a point still miss."""

    speed: Floats
    time: Floats
    gpus: Floats
    price: Floats  # [columns, rows]
    level: float

    @classmethod
    def at(cls, form: _Form, at: _Point) -> _Residual:
        return cls(
            speed=form.floor + form.rate * at.level + at.z - form.speed(at.x),
            time=1.0 - at.x.sum(axis=0) - at.y,
            gpus=form.gpus - form.used(at.x) - at.q,
            price=at.w + form.reward + at.u * form.a - at.v - form.cost(at.p),
            level=form.total - float(form.rate @ at.u),
        )

    def error(self, form: _Form, at: _Point, relative_gap: float) -> float:
        """The largest fault of the point."""
        faults = [
            relative_gap,
            float(np.abs(self.speed).max()),
            float(np.abs(self.time).max()),
            float((np.abs(self.gpus) / np.maximum(form.gpus, 1.0)).max()),
            # A fault of prices shifts the proof, not the allocation.
            float(np.abs(self.price).max()) * 1e-2,
            abs(self.level) * 1e-2,
        ]
        if form.logs is not None:
            faults.append(float(np.abs(at.z * at.u / form.logs - 1.0).max()))
        return max(faults)


class _Newton:
    """Newton's equations at a point, with all rows eliminated.

    With d = x/w, a row's speed and time are [[A, -B], [B, -C]] (du, dv) = (f, g) where
    A = sum d a^2 + z/u, B = sum d a, C = sum d + y/v. Near the optimum d spans twenty orders of
    magnitude. So nothing here is a difference of large numbers: speeds are taken relative to their
    mean under d, and what a row answers to a pool's price is summed apart for the pool itself and
    for the others. Time and memory grow with rows times columns, and only a product of matrices,
    [pools, rows] by [rows, pools], with the square of the pools.
    """

    def __init__(self, form: _Form, at: _Point, missing: _Residual) -> None:
        self.form, self.at, self.missing = form, at, missing
        a, s, pools = form.a, form.s, len(form.gpus)
        self.d = d = at.x / at.w
        self.sum = d.sum(axis=0)
        self.mean = np.einsum("kr,kr->r", d, a) / self.sum
        self.apart = a - self.mean
        zs, self.ys = at.z / at.u, at.y / at.v
        leaning = d * self.apart
        bent = leaning * self.apart
        self.slack = bent.sum(axis=0) + zs
        over = self.ys * self.mean
        self.det = (self.sum + self.ys) * self.slack + over * self.sum * self.mean
        # How rows answer to a pool's price and to the level. In a column of another pool that
        # leaves vs' - apart * us of the pool's GPUs in use, in its own `near`.
        e, f = form.pooled(d), form.pooled(leaning)
        per = s / self.det
        self.us = ((self.sum + self.ys) * f + over * e) * per
        self.vs = -(over * f + (self.slack + over * self.mean) * e) * per
        self.near = s + form.spread(self.vs) - self.apart * form.spread(self.us)
        self.most = e.argmax(axis=0)
        us, vs = self.us, self.vs
        self.matrix = np.zeros((pools + 1, pools + 1))
        self.matrix[:pools, :pools] = vs @ (s * e).T - us @ (s * f).T
        own = form.pooled(d * self.near**2).sum(axis=1)
        own += (us**2 @ zs) + ((vs + self.mean * us) ** 2 @ self.ys)
        own += np.einsum("pr,pr->p", us**2, self.others(form.pooled(bent)))
        own += np.einsum("pr,pr->p", vs**2, self.others(e))
        own -= 2 * np.einsum("pr,pr,pr->p", us, vs, self.others(f))
        self.matrix[np.arange(pools), np.arange(pools)] = own + at.q / at.p
        if form.total:
            self.ul, self.vl = self._rows(form.rate, np.zeros_like(s), None)
            self.matrix[:pools, pools] = self.matrix[pools, :pools] = -(us @ form.rate)
            self.matrix[pools, pools] = -float(form.rate @ self.ul)
        else:
            self.matrix[pools, pools] = 1.0

    def others(self, of: Floats) -> Floats:
        """For each pool the sum of `of` over the other ones, [pools, rows]."""
        at = self.most[None]
        rest = of.copy()
        np.put_along_axis(rest, at, 0.0, axis=0)
        rest = rest.sum(axis=0)
        sums = (rest + np.take_along_axis(of, at, axis=0)[0]) - of
        np.put_along_axis(sums, at, rest[None], axis=0)
        return np.asarray(sums)

    def step(self, rx: Floats, ry: Floats, rz: Floats, rq: Floats) -> _Point:
        """The step after which the products have changed by these amounts, to first order."""
        form, at, missing = self.form, self.at, self.missing
        pools = len(form.gpus)
        e = rx / at.w + self.d * missing.price
        f, g = missing.speed + rz / at.u, missing.time - ry / at.v
        right = np.zeros(pools + 1)
        right[:pools] = (
            form.pooled(self.near * e).sum(axis=1)
            + np.einsum("pr,pr->p", self.vs, self.others(form.pooled(e)))
            - np.einsum("pr,pr->p", self.us, self.others(form.pooled(self.apart * e)))
            + self.us @ (f - self.mean * g)
            - self.vs @ g
            + rq / at.p
            - missing.gpus
        )
        if form.total:
            unmet = float(np.vdot(self.vl - form.a * self.ul, e))
            right[pools] = float(self.ul @ f) - float(self.vl @ g) + unmet - missing.level
        answer = np.asarray(np.linalg.solve(self.matrix, right), dtype=np.float64)
        p, level = answer[:pools], float(answer[pools])
        cost = form.cost(p)
        # From the whole right-hand side: a sum of its parts would lose what a tight row needs.
        u, v = self._rows(f + level * form.rate, g, e - self.d * cost)
        w = -missing.price - form.a * u + v + cost
        return _Point(
            x=(rx - at.x * w) / at.w,
            y=(ry - at.y * v) / at.v,
            z=(rz - at.z * u) / at.u,
            q=(rq - at.q * p) / at.p,
            level=level,
            w=w,
            v=v,
            u=u,
            p=p,
        )

    def _rows(self, f: Floats, g: Floats, e: Floats | None) -> tuple[Floats, Floats]:
        """(du, dv) of every row for the right-hand sides f - sum a e and g - sum e."""
        apart = f - self.mean * g
        if e is not None:
            g = g - e.sum(axis=0)
            apart = apart - np.einsum("kr,kr->r", self.apart, e)
        u = (self.sum * apart + self.ys * (apart + self.mean * g)) / self.det
        v = (self.sum * self.mean * apart - self.slack * g) / self.det
        return u, v


def _solve(form: _Form) -> Solution:
    rows, logs = form.a.shape[1], form.logs is not None
    wanted = np.zeros(rows) if form.logs is None else form.logs
    count = form.a.size + rows + len(form.gpus) + (0 if logs else rows)
    at = _Point.start(form)
    best, error, found = at, np.inf, 0
    for step in range(STEPS):
        missing = _Residual.at(form, at)
        gap = at.products(logs=logs)
        value = form.total * at.level + float((form.reward * at.x).sum())
        size = float(wanted.sum()) if logs else max(abs(value), 1e-6 * rows)
        now = missing.error(form, at, gap / size)
        if now < error:
            best, error, found = at, now, step
        stuck = step - found >= (PATIENCE if error < GOOD else HOPELESS)
        if error < GAP or stuck or not np.isfinite(now):
            break
        newton = _Newton(form, at, missing)
        try:
            guess = newton.step(-at.x * at.w, -at.y * at.v, wanted - at.z * at.u, -at.q * at.p)
        except np.linalg.LinAlgError:
            break
        forward, back = at.room(guess)
        after = at.moved(guess, forward, back).products(logs=logs)
        # Aim at an even product, small if the guess could go far, but no smaller than of use.
        mean = gap / count
        aim = max(0.3 * GAP * size / count, mean * min(1.0, after / gap) ** 3)
        # What the guess bends away, as far as it holds (Colombo, Gondzio 2008).
        bend = min(forward, back)
        move = newton.step(
            aim - at.x * at.w - bend * guess.x * guess.w,
            aim - at.y * at.v - bend * guess.y * guess.v,
            (wanted if logs else aim) - at.z * at.u - bend * guess.z * guess.u,
            aim - at.q * at.p - bend * guess.q * guess.p,
        )
        near = min(max(0.9, 1.0 - 10 * mean), 1.0 - BOUNDARY)
        forward, back = (min(1.0, near * room) for room in at.room(move))
        if logs:  # z * u stays on its target only if both move alike
            forward = back = min(forward, back)
        at = at.moved(move, forward, back)
    if error > GOOD:
        raise Unsolved("the interior-point method made no more progress")
    unit = form.total or 1.0
    return Solution(
        x=best.x.T * form.time[:, None],
        objective=best.level if form.total else float((form.reward * best.x).sum()),
        prices=best.p / unit,
        worth=best.u / form.time / unit,
        hours=best.v / form.time / unit,
        steps=step,
    )


def _longest(*moves: tuple[Floats, Floats]) -> float:
    """The longest step, 1 at most, at which nothing turns negative."""
    least = min(float((move / at).min()) for at, move in moves)
    return min(1.0, -1.0 / least) if least < 0 else 1.0
