"""What each row by itself does at given prices: the cheapest way to its speed.

The speeds and costs of a row's columns, and of idling, are points in the plane; by sharing its time
a row can have whatever lies between them. The cheapest way to a speed is on the lower edge of their
convex hull, on two neighbouring corners, which are found one by one from idling on (Jarvis 1973).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ones.policies.gavel.elimination import Form
from ones.policies.gavel.program import Bools
from ones.policies.model import Floats, Ints

FORCED = 1e-6  # a row that is asked for its best but for this part has no choice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """The two corners that each row shares its time between; both the same where it takes one."""

    left: Ints  # [rows] columns; as many as there are columns: idling
    right: Ints  # the faster of the two
    slow: Floats  # [rows] their speeds
    fast: Floats
    share: Floats  # [rows] of its time, on the right one
    worth: Floats  # [rows] what the last of its speed costs
    hours: Floats  # [rows] what more time would save
    cost: Floats  # [rows] of all of its speed
    clear: Bools  # [rows] the same is chosen at all prices and levels nearby
    single: Bools  # [rows] at all of them it is on the right one or idles, for whatever time

    @classmethod
    def joined(cls, parts: Sequence[Choice]) -> Choice:
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nearby:
    """How far prices, [pools], and the level, relatively, may be off both ways."""

    prices: Floats
    level: float


def cheapest(form: Form, prices: Floats, level: float, nearby: Nearby) -> Choice:
    """Each row's cheapest way to floor + rate * level, or beyond that where that is worth it."""
    columns, rows = form.a.shape
    best = form.a.max(axis=0)
    wanted = np.minimum(form.floor + form.rate * level, best)
    cost = form.cost(prices) if form.reward is None else form.cost(prices) - form.reward
    left, right = _corners(form.a, cost, wanted)
    each, idle = np.arange(rows), np.zeros((1, rows))
    speeds, costs = np.concatenate([form.a, idle]), np.concatenate([cost, idle])
    slow, fast, start = speeds[left, each], speeds[right, each], costs[left, each]
    alone = left == right
    run = np.where(alone, 1.0, fast - slow)
    worth = (costs[right, each] - start) / run
    hours = worth * slow - start

    # How far the other columns are above the edge, less what they and it may shift.
    shifts = np.concatenate([form.cost(nearby.prices), idle])
    begin, end = shifts[left, each], shifts[right, each]
    along = np.where(alone, 0.0, (speeds - slow) / run)
    room = costs - worth * speeds + hours - shifts
    room -= np.abs(along) * end + np.abs(1.0 - along) * begin
    room[left, each] = room[right, each] = np.inf
    room[:columns][form.a <= 0] = np.inf
    others = room[:columns].min(axis=0) >= 0
    clear = others & (room[columns] >= 0)
    # The edge is left at its end where speed is worth more than it costs, or the level changes.
    change = form.rate * (level * nearby.level)
    clear &= np.where(alone, slow, fast) - wanted >= change
    clear &= alone | (left == columns) | (wanted - slow >= change)
    if form.reward is not None:
        clear &= alone | (worth * run >= begin + end)
    return Choice(
        left=left,
        right=right,
        slow=slow,
        fast=fast,
        share=np.where(alone, 1.0, (wanted - slow) / run),
        worth=worth,
        hours=hours,
        cost=worth * wanted - hours,
        clear=clear | (wanted >= best * (1.0 - FORCED)),
        single=others & (alone | (left == columns)) & (right < columns),
    )


def _corners(a: Floats, cost: Floats, wanted: Floats) -> tuple[Ints, Ints]:
    """The corners on both sides of the speed, or the cheapest of all if that is faster."""
    columns, rows = a.shape
    left = np.full(rows, columns)
    right = left.copy()
    going = np.arange(rows)
    speed, spent = np.zeros(rows), np.zeros(rows)
    while len(going):
        rise = a - speed
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(rise > 0, (cost - spent) / rise, np.inf)
        column, here = slope.argmin(axis=0), np.arange(len(going))
        least, faster = slope[column, here], a[column, here]
        stays = np.isinf(least) | ((least >= 0) & (speed >= wanted))
        right[going] = np.where(stays, left[going], column)
        on = np.flatnonzero(~stays & ((least < 0) | (faster < wanted)))
        going, column = going[on], column[on]
        left[going] = column
        speed, spent = faster[on], cost[column, on]
        a, cost, wanted = a[:, on], cost[:, on], wanted[on]
    return left, right
