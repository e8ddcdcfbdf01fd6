"""Large programs without pairs: prices settle most rows, and only the others are solved for.

At given prices each row's cheapest way is its own matter (`choosing.py`), and some hundred rows
tell the prices of all within some percent. Rows whose choice is the same at all prices nearby are
settled. Of the others a sample stands for all, which tells the prices better, until so few are
unsettled that all of them are in the small program (sifting; Bixby et al. 1992). At last its prices
are tried on all rows: what each would pay at its cheapest proves the level, or the sum.

Where a level leaves GPUs without a price, prices don't settle the rows that need no others. They
share these by the largest sum of relative speeds, a program of the same kind. So nothing is left
idle that somebody could use.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ones.policies.gavel.choosing import Choice, Nearby, cheapest
from ones.policies.gavel.elimination import Form
from ones.policies.gavel.interior import GAP, OF_SUM, optimum, solved_in_form
from ones.policies.gavel.program import Bools, Program, Solution, Unsolved
from ones.policies.model import Floats, Ints

MANY = 4096  # rows from which it is worth while, where columns are few
SAMPLE = 2.0  # rows of a sample for each column, times the root of all rows
ROUNDS = 8
ROUGH = 1e-5  # the gap to which the program of a sample is solved
LEAST = 10 * ROUGH  # relatively; by so much its prices may be off in any case
FIRST, SAFE = 2.0, 5.0  # of a sample's standard errors: by so many its prices may be off
WIDER = 3.0  # times as much, where that was too little
UNPRICED = 0.1  # of the mean price: a pool without a price is as uncertain as one with this
PROVEN = 10.0  # times the gap that is asked of the small program is no gap
ROOM = 1e-10  # relatively; promises are met and GPUs there but for this
IN_USE = 1e-6  # of a row's time; less is rounding


def is_worth_sifting(program: Program) -> bool:
    """Whether a sample says enough of the rows, and is few of them.

    Little is left of a level above floors, and a sample's error is that of all that rows need.
    """
    rows, columns = program.throughput.shape
    if program.reward is None and program.floor.any():
        return False
    return bool(rows >= max(MANY, (4 * SAMPLE * columns) ** 2))


def solve_by_sifting(program: Program) -> Solution:
    """An optimum; of a level the one with the largest sum of relative speeds in what it leaves."""
    return solved_in_form(program, sift)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Small:
    """The program of the rows that aren't settled, or of a sample of them.

    Its rows are the picked ones, then a sample of the pending ones, then bundles of rows.
    """

    form: Form
    picked: Ints  # rows of the large program
    whole: bool  # these are all that are unsettled
    pending: Ints  # rows that need only what has no price; how much of which is found at the end
    bundled: Ints  # rows that differ only in size, and in which row of the small program each is
    bundle: Ints
    choice: Choice | None  # by which the others are settled

    @property
    def error(self) -> float:
        """The standard error, relatively, of what the picked rows use for those they stand for."""
        s = self.form.s[: len(self.picked)]
        return float(np.linalg.norm(s) / s.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    """The prices and the level of a small program."""

    answer: Solution
    top: float  # the level that every row could reach by itself
    level: float
    prices: Floats  # [pools]
    usual: float  # a pool without a price is as uncertain as one with this

    @classmethod
    def of(cls, form: Form, small: _Small, top: float) -> _Found:
        if (small.form.gpus < 0).any():
            raise Unsolved("settled rows use more than there is")
        if form.total and not small.form.rate.any():
            raise Unsolved("no row of the sample limits the level")
        enough = ROUGH if not small.whole else GAP if form.total else OF_SUM
        answer = optimum(small.form, enough) if small.form.a.size else _nothing(form)
        level = min(answer.objective, top) if form.total else 0.0
        value = level if form.reward is None else float(form.reward.max(axis=0).sum())
        # A pool has a price or idle GPUs; but for rounding, so the larger share of the two tells.
        used = small.form.used(np.ascontiguousarray(answer.x.T))
        idle = np.maximum(small.form.gpus - used, 0.0) / form.gpus
        earned = answer.prices * form.gpus
        least = PROVEN * enough
        priced = earned > np.maximum(idle * earned.sum(), least * value)
        priced &= level < top * (1.0 - least)  # else a row's own time is all that limits the level
        return cls(
            answer=answer,
            top=top,
            level=level,
            prices=np.where(priced, answer.prices, 0.0),
            usual=UNPRICED * value / float(form.gpus.sum()),
        )

    def nearby(self, error: float) -> Nearby:
        return Nearby(prices=error * (self.prices + self.usual), level=error)

    def is_near(self, other: _Found, error: float) -> bool:
        off = np.abs(self.prices - other.prices)
        near = bool((off <= other.nearby(error).prices).all())
        return near and abs(self.level - other.level) <= error * other.level


def sift(form: Form) -> Solution:
    """The same of a program's numbers."""
    columns, rows = form.a.shape
    parts = [form.part(block) for block in form.blocks()]
    top = _top(form)
    few = int(SAMPLE * columns * rows**0.5)
    small = _first(form, few)
    at, error = None, FIRST * small.error
    unsettled, steps = 2 * rows, 0
    for _ in range(ROUNDS):
        found = None
        with suppress(Unsolved):
            found = _Found.of(form, small, top)
            steps += found.answer.steps
        # Further off than what is nearby, rows need not be settled as they are.
        near = found is not None and (at is None or found.is_near(at, error))
        if near:
            if at is not None and not small.whole:
                error = max(LEAST, SAFE * error * small.error)
            at = found
        else:
            error *= WIDER
            few = max(few, min(2 * few, rows // 4))
        if at is None:
            raise Unsolved("the program of a sample was not solved")
        nearby = at.nearby(error)
        choice = Choice.joined([cheapest(part, at.prices, at.level, nearby) for part in parts])
        if near and small.whole and (choice.cost[small.pending] <= 0).all():
            x = _allocation(form, small, at)
            if x is not None and _is_proven(form, x, at, choice):
                return replace(_solution(form, small, at, x, choice), steps=steps)
        rest = _Rest.of(form, choice)
        # Where many are as well off with either of two columns, closer prices settle no more.
        stuck = near and len(rest.others) > unsettled / 2
        if stuck and len(rest.others) > rows / 4:
            raise Unsolved("prices settle too few rows")
        unsettled = len(rest.others)
        small = _next(form, choice, rest, unsettled if stuck else few)
    raise Unsolved("prices kept being found at which other rows are unsettled")


def _top(form: Form) -> float:
    """The level that every row could reach by itself."""
    best, rising = form.a.max(axis=0), form.rate > 0
    if (form.floor > best * (1.0 + ROOM)).any():
        raise Unsolved("a row is promised more than its best")
    return float(((best - form.floor)[rising] / form.rate[rising]).min(initial=np.inf))


def _nothing(form: Form) -> Solution:
    """The solution where all rows are settled."""
    none = np.zeros(0)
    return Solution(
        x=np.zeros((0, len(form.a))),
        objective=0.0,
        prices=np.zeros_like(form.gpus),
        worth=none,
        hours=none,
    )


def _every(rows: Ints, count: int) -> tuple[Ints, Floats]:
    """About so many of the rows in even steps, and how many each of them stands for."""
    chosen = rows[:: max(1, -(-len(rows) // max(1, count)))]
    return chosen, np.full(len(chosen), len(rows) / max(1, len(chosen)))


def _of_rows(form: Form, rows: Ints, weight: Floats) -> Form:
    """The rows alone, each as many of them as its weight says."""
    return replace(
        form,
        a=np.ascontiguousarray(form.a[:, rows]),
        s=form.s[rows] * weight,
        floor=form.floor[rows],
        rate=form.rate[rows],
        reward=None if form.reward is None else form.reward[:, rows] * weight,
        time=np.ones(len(rows)),
        total=float(len(rows)) if form.total else 0.0,
    )


def _first(form: Form, few: int) -> _Small:
    """A sample of all rows."""
    picked, weight = _every(np.arange(form.a.shape[1]), few)
    none = picked[:0]
    return _Small(
        form=_of_rows(form, picked, weight),
        picked=picked,
        whole=False,
        pending=none,
        bundled=none,
        bundle=none,
        choice=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rest:
    """What is left to be decided once rows are settled; all but the last are rows."""

    others: Ints  # unsettled
    pending: Ints
    bundled: Ints
    bundle: Ints  # in which bundle each of these is, from 0 on

    @classmethod
    def of(cls, form: Form, choice: Choice) -> _Rest:
        gratis = _gratis(form, choice)
        bundled, bundle = _bundles(form, choice)
        open_ = ~choice.clear
        open_[bundled] = False
        return cls(
            others=np.flatnonzero(open_ & ~gratis),
            pending=np.flatnonzero(open_ & gratis),
            bundled=bundled,
            bundle=bundle,
        )


def _gratis(form: Form, choice: Choice) -> Bools:
    """The rows to which a level costs nothing."""
    return np.asarray((choice.cost <= 0) & (form.reward is None))


def _bundles(form: Form, choice: Choice) -> tuple[Ints, Ints]:
    """Rows that differ only in size, and in which bundle each of them is.

    With a level these are settled rows that share their time between the same two columns: what
    they use rises evenly with it. With a sum these are rows that are on the same column or idle,
    and earn the same with a GPU: at one price all of them are as well off with either.
    """
    columns = len(form.a)
    if form.reward is None:
        rows = np.flatnonzero(choice.clear & (choice.right < columns))
        kind = choice.left[rows] * columns + choice.right[rows]
        return rows, np.unique(kind, return_inverse=True)[1]
    rows = np.flatnonzero(~choice.clear & choice.single)
    column = choice.right[rows]
    earned = form.reward[column, rows] / form.s[rows]
    kind = np.unique(earned, return_inverse=True)[1] * columns + column
    _, bundle, count = np.unique(kind, return_inverse=True, return_counts=True)
    several = count[bundle] > 1
    return rows[several], np.unique(bundle[several], return_inverse=True)[1]


def _next(form: Form, choice: Choice, rest: _Rest, few: int) -> _Small:
    """The program of what the choice leaves open: of all of it, or of a sample if that is much."""
    whole = len(rest.others) <= 2 * few
    picked, weight = _every(rest.others, len(rest.others) if whole else few)
    some, standing = _every(rest.pending, few)
    small = _of_rows(form, np.concatenate([picked, some]), np.concatenate([weight, standing]))
    if form.reward is not None:
        small = replace(small, gpus=form.gpus * (1.0 + ROOM) - _settled(form, choice))
    return _Small(
        form=_with_bundles(form, small, choice, rest) if len(rest.bundled) else small,
        picked=picked,
        whole=whole,
        pending=rest.pending,
        bundled=rest.bundled,
        bundle=len(small.s) + rest.bundle,
        choice=choice,
    )


def _settled(form: Form, choice: Choice) -> Floats:
    """What settled rows use of each pool, [pools]."""
    columns = len(form.a)
    at = np.flatnonzero(choice.clear)
    s, share = form.s[at], choice.share[at]
    used = np.bincount(choice.left[at], s * (1.0 - share), columns + 1)
    used += np.bincount(choice.right[at], s * share, columns + 1)
    return np.asarray(np.bincount(form.pool, used[:columns], len(form.gpus)))


def _with_bundles(form: Form, small: Form, choice: Choice, rest: _Rest) -> Form:
    """With each bundle as a row whose speed is 1 on the right column and less on the left one.

    Its floor and rate are such that it spends on both what its rows do together, and the speed on
    the left one is so high that it is worth while as it is for them.
    """
    columns, bundled, bundle = len(form.a), rest.bundled, rest.bundle
    s, right, fast = form.s[bundled], choice.right[bundled], choice.fast[bundled]
    if form.reward is None:
        left, slow = choice.left[bundled], choice.slow[bundled]
    else:
        left, slow = np.full(len(bundled), columns), np.zeros(len(bundled))
    size = np.bincount(bundle, s)
    per = s / (fast - slow)
    begins = np.bincount(bundle, per * (form.floor[bundled] - slow)) / size
    rises = np.bincount(bundle, per * form.rate[bundled]) / size
    ratio = np.bincount(bundle, s * slow / fast) / size
    a = np.zeros((columns + 1, len(size)))
    a[left, bundle] = ratio[bundle]
    a[right, bundle] = 1.0
    reward = small.reward
    if form.reward is not None and reward is not None:
        earned = np.zeros((columns, len(size)))
        np.add.at(earned, (right, bundle), form.reward[right, bundled])
        reward = np.concatenate([reward, earned], axis=1)
    count = len(small.s) + len(size)
    return replace(
        small,
        a=np.concatenate([small.a, a[:columns]], axis=1),
        s=np.concatenate([small.s, size]),
        floor=np.concatenate([small.floor, ratio + (1.0 - ratio) * begins]),
        rate=np.concatenate([small.rate, (1.0 - ratio) * rises]),
        reward=reward,
        time=np.ones(count),
        total=float(count) if form.total else 0.0,
    )


def _allocation(form: Form, small: _Small, at: _Found) -> Floats | None:
    """What all rows but the pending ones get, [columns, rows]; None where some can't be settled so.

    With a level settled rows follow it; with a sum rows of a bundle get what they are promised and
    the same part of what they could have more.
    """
    choice, answer = small.choice, at.answer
    if choice is None:
        return None
    columns, rows = form.a.shape
    left, right, share = choice.left, choice.right, choice.share
    if form.reward is None:
        run = np.where(left == right, 1.0, choice.fast - choice.slow)
        wanted = (form.floor + form.rate * at.level - choice.slow) / run
        share = np.where(left == right, 1.0, wanted)
        share[small.picked] = share[small.pending] = 1.0
        if share.min() < -ROOM or share.max() > 1.0 + ROOM:
            return None
    else:
        left, share = left.copy(), share.copy()
        bundled, bundle = small.bundled, small.bundle
        left[bundled] = columns
        least = small.form.floor[bundle]
        more = (answer.x[bundle, right[bundled]] - least) / np.maximum(1.0 - least, 1e-300)
        promised = form.floor[bundled] / choice.fast[bundled]
        share[bundled] = promised + more * (1.0 - promised)
    share = np.clip(share, 0.0, 1.0)
    each = np.arange(rows)
    x = np.zeros((columns + 1, rows))
    x[left, each] = 1.0 - share
    x[right, each] += share
    x[:columns, small.pending] = 0.0
    x[:columns, small.picked] = answer.x[: len(small.picked)].T
    return x[:columns]


def _is_proven(form: Form, x: Floats, at: _Found, choice: Choice) -> bool:
    """Whether there are the GPUs, and all pay together at their cheapest what these cost."""
    if (form.used(x) > form.gpus * (1.0 + PROVEN * ROOM)).any():
        return False
    unpaid = float(at.prices @ form.gpus) - float(choice.cost.sum())
    if form.reward is not None:
        return unpaid - form.value(x) <= PROVEN * OF_SUM * unpaid
    over, rises = at.top - at.level, float(choice.worth @ form.rate)
    if rises > 0:
        over = min(over, unpaid / rises)
    return over <= PROVEN * GAP * at.level


def _solution(form: Form, small: _Small, at: _Found, x: Floats, choice: Choice) -> Solution:
    worth, hours = choice.worth.copy(), choice.hours.copy()
    own = slice(len(small.picked))
    worth[small.picked], hours[small.picked] = at.answer.worth[own], at.answer.hours[own]
    full = True
    if form.total:
        full = _is_determined(form, x, at, small.picked)
        x = _with_rest(form, x, at, _gratis(form, choice))
        if not at.prices.any():
            _limit(form, worth, hours)
    return Solution(
        x=x.T * form.time[:, None],
        objective=at.level if form.total else form.value(x),
        prices=at.prices,
        worth=worth / form.time,
        hours=hours / form.time,
        full=full,
    )


def _limit(form: Form, worth: Floats, hours: Floats) -> None:
    """Give the level's worth to the row that limits it by its own time."""
    best, rising = form.a.max(axis=0), np.flatnonzero(form.rate > 0)
    row = rising[((best - form.floor)[rising] / form.rate[rising]).argmin()]
    worth[:], hours[:] = 0.0, 0.0
    worth[row] = 1.0 / form.rate[row]
    hours[row] = best[row] * worth[row]


def _is_determined(form: Form, x: Floats, at: _Found, rows: Ints) -> bool:
    """Whether rows that pay could not take more or less of what has no price, for others' good.

    Speed and time determine two numbers of a row, and each pool with a price one more in all.
    """
    own = x[:, rows]
    own = own[:, (own[(at.prices == 0)[form.pool]] > IN_USE).any(axis=0)]
    taken = (own > IN_USE).sum(axis=0) + (own.sum(axis=0) < 1.0 - IN_USE)
    return int(np.maximum(taken - 2, 0).sum()) <= int((at.prices > 0).sum())


def _with_rest(form: Form, x: Floats, at: _Found, gratis: Bools) -> Floats:
    """With the pools that have no price given to the rows that need no others."""
    unpriced = at.prices == 0
    free, columns = np.flatnonzero(unpriced), np.flatnonzero(unpriced[form.pool])
    x[:, gratis] = 0.0
    rows = np.flatnonzero(gratis & (form.a[columns] > 0).any(axis=0))
    if not len(rows):
        return x
    a = form.a[np.ix_(columns, rows)]
    rest = replace(
        form,
        a=a,
        s=form.s[rows],
        pool=np.searchsorted(free, form.pool[columns]),
        member=None if form.member is None else form.member[np.ix_(columns, free)],
        gpus=(form.gpus * (1.0 + ROOM) - form.used(x))[free],
        floor=(form.floor + form.rate * at.level)[rows] * (1.0 - ROOM),
        rate=np.zeros(len(rows)),
        reward=a * form.time[rows],
        time=np.ones(len(rows)),
        total=0.0,
    )
    x[np.ix_(columns, rows)] = (sift(rest) if len(rows) >= MANY else optimum(rest, OF_SUM)).x.T
    return x
