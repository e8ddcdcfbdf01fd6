"""Newton's equations of a block of rows, eliminated: what is left couples the pools and the level.

Blocks are small enough for what belongs to their rows to stay in the processor's cache while the
many sums over it are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ones.policies.gavel.program import Program
from ones.policies.model import Floats, Ints

CACHED = 16_384  # numbers of an array that is gone through at once
LEAST = 1024  # rows, so that products of matrices are worth their start
FEW = 32  # pools up to which a product of matrices sums them up sooner than a loop


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """A program's numbers, [columns, rows]; a class of jobs is one row that has a time of 1."""

    a: Floats  # speeds
    s: Floats  # GPUs of the whole class
    pool: Ints  # [columns]
    member: Floats | None  # [columns, pools] 1 where the column draws from the pool; None: 1 to 1
    gpus: Floats
    floor: Floats
    rate: Floats
    reward: Floats | None  # [columns, rows]
    total: float  # the level's coefficient in the objective; 0 where there is no level
    time: Floats
    logs: Floats | None

    @classmethod
    def of(cls, program: Program, logs: Floats | None) -> Form:
        n = program.time
        pools = np.arange(len(program.gpus))
        levelled = program.reward is None and logs is None
        reward = program.reward
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
            reward=None if reward is None else np.ascontiguousarray((reward * n[:, None]).T),
            total=float(len(n)) if levelled else 0.0,  # so that the rows' worth is near 1
            time=n,
            logs=logs,
        )

    def blocks(self) -> Iterator[slice]:
        columns, rows = self.a.shape
        size = max(LEAST, CACHED // columns)
        return (slice(begin, begin + size) for begin in range(0, rows, size))

    def part(self, of: slice) -> Form:
        """The rows of a block alone."""
        return replace(
            self,
            a=np.ascontiguousarray(self.a[:, of]),
            s=self.s[of],
            floor=self.floor[of],
            rate=self.rate[of],
            reward=None if self.reward is None else np.ascontiguousarray(self.reward[:, of]),
            time=self.time[of],
            logs=None if self.logs is None else self.logs[of],
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

    def value(self, x: Floats) -> float:
        return 0.0 if self.reward is None else float(np.vdot(self.reward, x))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The unknowns of a block of rows, or a step in them."""

    x: Floats  # [columns, rows]
    y: Floats
    z: Floats
    w: Floats  # [columns, rows]
    v: Floats
    u: Floats

    def part(self, of: slice) -> Rows:
        return Rows(
            x=np.ascontiguousarray(self.x[:, of]),
            y=self.y[of],
            z=self.z[of],
            w=np.ascontiguousarray(self.w[:, of]),
            v=self.v[of],
            u=self.u[of],
        )

    def moved(self, by: Rows, forward: float, back: float) -> Rows:
        return Rows(
            x=self.x + forward * by.x,
            y=self.y + forward * by.y,
            z=self.z + forward * by.z,
            w=self.w + back * by.w,
            v=self.v + back * by.v,
            u=self.u + back * by.u,
        )

    def room(self, by: Rows) -> tuple[float, float]:
        """How far allocation and prices can move before something turns negative."""
        return (
            longest((self.x, by.x), (self.y, by.y), (self.z, by.z)),
            longest((self.w, by.w), (self.v, by.v), (self.u, by.u)),
        )

    def times(self, other: Rows, *, logs: bool) -> float:
        """The sum of this one's allocation times the other's prices; of itself: of its gap."""
        sum_ = float(np.vdot(self.x, other.w) + np.vdot(self.y, other.v))
        return sum_ if logs else sum_ + float(np.vdot(self.z, other.u))


class Eliminated:
    """Newton's equations of a block at a point, with its rows eliminated.

    With d = x/w, a row's speed and time are [[A, -B], [B, -C]] (du, dv) = (f, g) where
    A = sum d a^2 + z/u, B = sum d a, C = sum d + y/v. Near the optimum d spans twenty orders of
    magnitude. So nothing here is a difference of large numbers: speeds are taken relative to their
    mean under d, and what a row answers to a pool's price is summed apart for the pool itself and
    for the others. Time and memory grow with rows times columns, and only a product of matrices,
    [pools, rows] by [rows, pools], with the square of the pools.
    """

    def __init__(self, form: Form, at: Rows, level: float, p: Floats) -> None:
        self.form, self.at = form, at
        a, s, pools = form.a, form.s, len(form.gpus)
        # What the equations of the point still miss.
        self.speed = form.floor + form.rate * level + at.z - form.speed(at.x)
        self.time = 1.0 - at.x.sum(axis=0) - at.y
        self.price = at.w + at.u * a - at.v - form.cost(p)
        if form.reward is not None:
            self.price += form.reward

        self.per_w, self.per_v, self.per_u = 1.0 / at.w, 1.0 / at.v, 1.0 / at.u
        self.d = d = at.x * self.per_w
        self.sum = d.sum(axis=0)
        self.mean = np.einsum("kr,kr->r", d, a) / self.sum
        self.apart = a - self.mean
        zs, self.ys = at.z * self.per_u, at.y * self.per_v
        leaning = d * self.apart
        bent = leaning * self.apart
        self.slack = bent.sum(axis=0) + zs
        over = self.ys * self.mean
        self.det = (self.sum + self.ys) * self.slack + over * self.sum * self.mean
        # How rows answer to a pool's price and to the level. In a column of another pool that
        # leaves vs - apart * us of the pool's GPUs in use, in its own `near`.
        e, f = form.pooled(d), form.pooled(leaning)
        per = s / self.det
        self.us = us = ((self.sum + self.ys) * f + over * e) * per
        self.vs = vs = -(over * f + (self.slack + over * self.mean) * e) * per
        self.near = s + form.spread(vs) - self.apart * form.spread(us)
        self.matrix = np.zeros((pools + 1, pools + 1))
        self.matrix[:pools, :pools] = vs @ (s * e).T - us @ (s * f).T
        own = form.pooled(d * self.near**2)
        own += us**2 * (others(form.pooled(bent)) + zs)
        own += vs**2 * others(e) + (vs + self.mean * us) ** 2 * self.ys
        own -= 2.0 * us * vs * others(f)
        self.matrix[np.arange(pools), np.arange(pools)] = own.sum(axis=1)
        if form.total:
            self.ul, self.vl = self._rows(form.rate, np.zeros_like(s), None)
            self.matrix[:pools, pools] = self.matrix[pools, :pools] = -(us @ form.rate)
            self.matrix[pools, pools] = -float(form.rate @ self.ul)

    def fault(self) -> float:
        """The largest."""
        faults = [
            float(np.abs(self.speed).max()),
            float(np.abs(self.time).max()),
            # A fault of prices shifts the proof, not the allocation.
            float(np.abs(self.price).max()) * 1e-2,
        ]
        if self.form.logs is not None:
            faults.append(float(np.abs(self.at.z * self.at.u / self.form.logs - 1.0).max()))
        return max(faults)

    def right(self, aim: float, guess: Rows | None, bend: float) -> Floats:
        """The block's part of the right-hand side, [pools and the level].

        Products are to become `aim`, if `bend` of what the guess bends away is made good.
        """
        form, at = self.form, self.at
        goal = aim if form.logs is None else form.logs
        self.rx, self.ry, self.rz = (
            aim * self.per_w - at.x,
            aim * self.per_v - at.y,
            goal * self.per_u - at.z,
        )
        if guess is not None:
            self.rx -= (bend * self.per_w) * guess.x * guess.w
            self.ry -= (bend * self.per_v) * guess.y * guess.v
            self.rz -= (bend * self.per_u) * guess.z * guess.u
        self.e = e = self.rx + self.d * self.price
        self.f, self.g = f, g = self.speed + self.rz, self.time - self.ry
        right = form.pooled(self.near * e)
        right += self.vs * others(form.pooled(e)) - self.us * others(form.pooled(self.apart * e))
        right += self.us * (f - self.mean * g) - self.vs * g
        level = 0.0
        if form.total:
            level = float(self.ul @ f) - float(self.vl @ g)
            level += float(np.vdot(self.vl - form.a * self.ul, e))
        return np.append(right.sum(axis=1), level)

    def step(self, p: Floats, level: float) -> Rows:
        """The step that goes with the pools' prices and the level."""
        form = self.form
        cost = form.cost(p)
        # From the whole right-hand side: a sum of its parts would lose what a tight row needs.
        u, v = self._rows(self.f + level * form.rate, self.g, self.e - self.d * cost)
        w = cost - self.price
        w += v - form.a * u
        return Rows(
            x=self.rx - self.d * w,
            y=self.ry - self.ys * v,
            z=self.rz - self.at.z * self.per_u * u,
            w=w,
            v=v,
            u=u,
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


def others(of: Floats) -> Floats:
    """For each pool the sum of `of` over the other ones, [pools, rows], without a difference."""
    if len(of) <= FEW:
        return np.asarray((1.0 - np.eye(len(of))) @ of)
    sums, before, after = np.empty_like(of), np.zeros(of.shape[1]), np.zeros(of.shape[1])
    for i in range(len(of)):
        sums[i] = before
        before += of[i]
    for i in reversed(range(len(of))):
        sums[i] += after
        after += of[i]
    return sums


def longest(*moves: tuple[Floats, Floats]) -> float:
    """The longest step, 1 at most, at which nothing turns negative."""
    least = min(float((move / at).min()) for at, move in moves)
    return min(1.0, -1.0 / least) if least < 0 else 1.0
