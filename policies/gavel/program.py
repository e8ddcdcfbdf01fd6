"""The one form that every optimising policy is stated in, and its plain solution by HiGHS.

A program shares GPU time among rows. A row is a job, or a class of interchangeable jobs whose time
adds up (`time` jobs strong). Pairs of rows may share the same GPUs. x[r, k] is the time that row or
pair r spends on column k; a column is a GPU type, or a type and a way to be placed on it, and draws
from one pool of GPUs.

    speed_i(x) = sum_k throughput[i, k] * x[i, k]  +  the same over the pairs that i is in

    maximise   level                               or   sum reward * x
    subject to speed_i(x) >= floor_i + rate_i * level
               sum_k x[i, k] + (its pairs) <= time_i
               sum over r, k of the pool p: gang_r * x[r, k] <= gpus_p,    x >= 0
               sum over r, k: takes[c, r, k] * x[r, k] <= left_c  for each limit c of the site
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Floats, Ints

Bools = NDArray[np.bool_]
NEGLIGIBLE = 1e-12  # of a row's time


class Unsolved(ValueError):
    """No allocation meets the program's constraints, or none was found."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Rows that can share GPUs, and how fast each of the two then is; both have the same gang."""

    first: Ints
    second: Ints
    throughput: Floats  # [pairs, columns, 2]

    @classmethod
    def none(cls, columns: int) -> Pairs:
        nobody = np.zeros(0, dtype=np.int64)
        return cls(first=nobody, second=nobody, throughput=np.zeros((0, columns, 2)))

    def __len__(self) -> int:
        return len(self.first)

    def only(self, chosen: Bools | Ints) -> Pairs:
        return Pairs(
            first=self.first[chosen],
            second=self.second[chosen],
            throughput=self.throughput[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Caps:
    """The site's limits on rows together: on the mean over time, as pools are."""

    takes: Floats  # [caps, rows, columns] of what it limits, while the row is on the column
    left: Floats  # [caps]

    def only(self, rows: Ints) -> Caps:
        return replace(self, takes=self.takes[:, rows])

    def of_all(self, pairs: Pairs) -> Floats:
        """`takes` of rows and pairs, [caps, rows and pairs, columns]."""
        both = self.takes[:, pairs.first] + self.takes[:, pairs.second]
        return np.concatenate([self.takes, both], axis=1)

    def excess(self, x: Floats, pairs: Pairs) -> Floats:
        """How many times what each of x may be it is, by the tightest of its limits; 1 or more."""
        takes = self.of_all(pairs)
        taken = np.einsum("crk,rk->c", takes, x)
        over = np.maximum(1.0, taken / np.maximum(self.left, 1e-300))
        return np.asarray(np.where(takes > 0, over[:, None, None], 1.0).max(axis=0, initial=1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """See the module's text; `reward` is given where there is no level to raise."""

    throughput: Floats  # [rows, columns]
    gang: Floats  # [rows] GPUs
    time: Floats  # [rows] 1 for a job, the number of jobs for a class
    gpus: Floats  # [pools]
    pool: Ints  # [columns]
    rate: Floats  # [rows]
    floor: Floats  # [rows]
    reward: Floats | None = None  # [rows and pairs, columns]
    pairs: Pairs
    caps: Caps | None = None

    def speeds(self, x: Floats) -> Floats:
        """The speed of each row under the allocation `x` of rows, then pairs."""
        rows, pairs = len(self.gang), self.pairs
        speed = np.einsum("rk,rk->r", self.throughput, x[:rows])
        if len(pairs):
            both = np.einsum("pkm,pk->pm", pairs.throughput, x[rows:])
            speed = speed + np.bincount(pairs.first, both[:, 0], rows)
            speed = speed + np.bincount(pairs.second, both[:, 1], rows)
        return np.asarray(speed, dtype=np.float64)

    def best(self, pools: Bools) -> Floats:
        """The most that each row could get on these pools, were it alone or beside one other."""
        there = pools[self.pool]
        best = np.where(there, self.throughput, 0.0).max(axis=1)
        if len(self.pairs):
            shared = np.where(there[None, :, None], self.pairs.throughput, 0.0).max(axis=1)
            np.maximum.at(best, self.pairs.first, shared[:, 0])
            np.maximum.at(best, self.pairs.second, shared[:, 1])
        return np.asarray(best * self.time)

    @property
    def there(self) -> Bools:
        """[columns] Whether there are any GPUs."""
        return np.asarray(self.gpus[self.pool] > 0)

    def level(self, speed: Floats) -> float:
        """The level at which nobody is promised more than these speeds of rows."""
        rising = self.rate > 0
        over = (speed - self.floor)[rising] / self.rate[rising]
        return float(over.min(initial=np.inf))

    def busy(self, x: Floats) -> Floats:
        """The time that each row uses."""
        rows, pairs = len(self.gang), self.pairs
        spent = x.sum(axis=1)
        busy: Floats = spent[:rows].copy()
        if len(pairs):
            busy += np.bincount(pairs.first, spent[rows:], rows)
            busy += np.bincount(pairs.second, spent[rows:], rows)
        return busy

    def used(self, x: Floats) -> Floats:
        """The GPUs in use of each pool."""
        gang = np.concatenate([self.gang, self.gang[self.pairs.first]])
        return np.asarray(np.bincount(self.pool, gang @ x, len(self.gpus)), dtype=np.float64)

    def kept(self, x: Floats, level: float = 0.0) -> Floats:
        """`x` of a solver, whose faults are small beside a row's best, with every promise kept.

        Beside the best of a row that needs a ten millionth of it such a fault is all that the row
        gets, or more. So what rows lack of floor + rate * level is added where they are fastest,
        and what then is over a limit is taken from all whom it limits, in proportion.
        """
        rows = len(self.gang)
        x = np.where(self.there, x, 0.0)
        # A pair that is hardly used isn't worth the allocation of all of its classes' pairs.
        x[rows:][x[rows:].sum(axis=1) <= NEGLIGIBLE] = 0.0
        speed, wanted = self.speeds(x), self.floor + self.rate * level
        best = np.where(self.there, self.throughput, 0.0)
        fastest = best.argmax(axis=1)
        most = best[np.arange(rows), fastest]
        short = np.flatnonzero((speed < wanted) & (most > 0))
        x[short, fastest[short]] += (wanted - speed)[short] / most[short]
        over = np.maximum(1.0, self.busy(x) / self.time)
        x[:rows] /= over[:, None]
        x[rows:] /= np.maximum(over[self.pairs.first], over[self.pairs.second])[:, None]
        x /= np.maximum(1.0, self.used(x) / np.where(self.gpus > 0, self.gpus, 1.0))[self.pool]
        if self.caps is not None:
            x /= self.caps.excess(x, self.pairs)
        return x


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """An optimal allocation with the prices that prove it: those of the program's dual."""

    x: Floats  # [rows and pairs, columns]
    objective: float
    prices: Floats  # [pools] what one more GPU would add to the objective
    worth: Floats  # [rows] what the objective would gain if the row's speed could be 1 less
    hours: Floats  # [rows] what it would gain if the row had 1 more of time
    steps: int = 0
    full: bool = False  # nobody can have more without another's having less


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scaled:
    """A program in numbers near 1, whatever its units, and the way back.

    Speeds are shares of the row's best, the level and the rewards are relative to the usual ones.
    """

    program: Program
    speed: Floats  # [rows] the unit of each row's speed
    objective: float  # the unit of the objective

    @classmethod
    def of(cls, program: Program) -> Scaled:
        pairs, reward = program.pairs, program.reward
        # Nothing runs where there are no GPUs, and a speed there is no measure of what a row gets.
        there = program.there
        throughput = np.where(there, program.throughput, 0.0)
        best = throughput.max(axis=1)
        best = np.where(best > 0, best, 1.0)
        rate, unit = program.rate / best, 1.0
        if reward is None:
            unit = float(np.max(rate / program.time, initial=0.0)) or 1.0
            rate, unit = rate / unit, 1.0 / unit
        else:
            unit = float(reward.max()) or 1.0
            reward = reward / unit
        both = np.stack([best[pairs.first], best[pairs.second]], axis=-1)
        scaled = Program(
            throughput=throughput / best[:, None],
            gang=program.gang,
            time=program.time,
            gpus=program.gpus,
            pool=program.pool,
            rate=rate,
            floor=program.floor / best,
            reward=reward,
            pairs=Pairs(
                first=pairs.first,
                second=pairs.second,
                throughput=np.where(there[:, None], pairs.throughput, 0.0) / both[:, None, :],
            ),
            caps=program.caps,
        )
        return cls(program=scaled, speed=best, objective=unit)

    def undo(self, solution: Solution) -> Solution:
        return replace(
            solution,
            objective=solution.objective * self.objective,
            prices=solution.prices * self.objective,
            worth=solution.worth * self.objective / self.speed,
            hours=solution.hours * self.objective,
        )


def solve_with_highs(program: Program, *, method: str = "highs") -> Solution:
    """The program as one sparse linear program for HiGHS: the reference, and the fallback."""
    scaled = Scaled.of(program)
    found = _solve_with_highs(scaled.program, method)
    level = found.objective if program.reward is None else 0.0
    x = scaled.program.kept(found.x, level)
    return scaled.undo(replace(found, x=x))


def _solve_with_highs(program: Program, method: str) -> Solution:
    # Their import takes ten times as long as most solves, and most have no use for them.
    from scipy.optimize import linprog  # type: ignore[import-untyped]  # noqa: PLC0415
    from scipy.sparse import csr_array  # type: ignore[import-untyped]  # noqa: PLC0415

    rows, columns = program.throughput.shape
    pairs, pools = program.pairs, len(program.gpus)
    combinations = rows + len(pairs)
    variables = combinations * columns
    levelled = program.reward is None
    x = np.arange(variables).reshape(combinations, columns)
    own, shared = x[:rows], x[rows:]
    gang = np.concatenate([program.gang, program.gang[pairs.first]])

    at: list[Ints] = []
    of: list[Ints] = []
    how: list[Floats] = []

    def put(line: Ints, variable: Ints, value: Floats) -> None:
        line, variable, value = np.broadcast_arrays(line, variable, value)
        there = value != 0  # of each cap only the rows that it counts
        at.append(line[there])
        of.append(variable[there])
        how.append(value[there])

    each = np.arange(rows)
    one = np.ones(1)
    put(each[:, None], own, -program.throughput)
    put(rows + each[:, None], own, one)
    for m, members in enumerate((pairs.first, pairs.second)):
        put(members[:, None], shared, -pairs.throughput[:, :, m])
        put(rows + members[:, None], shared, one)
    put(2 * rows + program.pool[None, :], x, gang[:, None])
    bound = [-program.floor, program.time, program.gpus]
    if program.caps is not None:
        takes = program.caps.of_all(pairs)
        line = 2 * rows + pools + np.arange(len(takes))
        put(line[:, None, None], x[None], takes)
        bound.append(program.caps.left)
    if levelled:
        put(each, np.full(rows, variables), program.rate)
    lines = csr_array(
        (np.concatenate(how), (np.concatenate(at), np.concatenate(of))),
        shape=(sum(map(len, bound)), variables + levelled),
    )
    if program.reward is None:
        cost = np.zeros(variables + 1)
        cost[-1] = -1.0
        limits = np.array([[0.0, np.inf]] * variables + [[-np.inf, np.inf]])
    else:
        cost = -program.reward.ravel()
        limits = np.array([[0.0, np.inf]] * variables)
    answer = linprog(cost, A_ub=lines, b_ub=np.concatenate(bound), bounds=limits, method=method)
    if answer.status != 0:
        raise Unsolved(str(answer.message))
    marginals = np.maximum(-np.asarray(answer.ineqlin.marginals), 0.0)
    return Solution(
        x=np.maximum(answer.x[:variables], 0.0).reshape(combinations, columns),
        objective=-float(answer.fun),
        prices=marginals[2 * rows : 2 * rows + pools],
        worth=marginals[:rows],
        hours=marginals[rows : 2 * rows],
        steps=int(answer.nit),
    )
