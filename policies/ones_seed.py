"""The best sizes if GPUs of a type were all alike: a multiple-choice knapsack over the options.

Its optimum seeds the search and bounds every plan, because on real nodes nothing is better than on
interchangeable GPUs. Small clusters are solved exactly by dynamic programming. Large ones by
prices: the Lagrangian dual gives the bound, and what it leaves free is filled up greedily, which
is as good as exact where no single job is a large part of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog  # type: ignore[import-untyped]

from ones.policies.model import Floats, Ints

EXACT_CELLS = 1_000_000_000  # of the table times choices, about a second
CUTS = 60  # prices tried for the bound
NEAR = 1e-4  # relative distance to the best possible bound at which that ends
HALVES = 40  # of a price
SWEEPS = 2  # over the prices, where there are several types
ROUNDED = 1e-11  # of what is added up: no more is lost by rounding


@dataclass(frozen=True, slots=True)
class Knapsack:
    """The best choice found, and what no choice can exceed."""

    chosen: Ints  # [J, 3]: type, size and batch index of each job
    bound: float


def best_sizes(worth: Floats, sizes: Ints, capacity: Ints) -> Knapsack:
    """The choice of largest total worth; `worth` is [J, T, K, L], sizes [J, K], capacity [T]."""
    jobs, types, count, _ = worth.shape
    level = worth.argmax(axis=3)
    best = np.take_along_axis(worth, level[..., None], axis=3)[..., 0]
    if not jobs:
        return Knapsack(np.zeros((0, 3), dtype=np.int64), 0.0)
    cells = float(np.prod(capacity + 1.0)) * jobs * types * count
    if cells <= EXACT_CELLS:
        kind, size, bound = _exact(best, sizes, capacity)
    else:
        kind, size, bound = _priced(best, sizes, capacity)
    chosen = np.stack([kind, size, level[np.arange(jobs), kind, size]], axis=1)
    chosen[size == 0] = 0
    return Knapsack(chosen, bound)


def _exact(best: Floats, sizes: Ints, capacity: Ints) -> tuple[Ints, Ints, float]:
    """By dynamic programming over the options that can be part of the best choice."""
    jobs, _, count = best.shape
    kept = _contenders(best, sizes, capacity)
    total = np.zeros(tuple(capacity + 1))
    picked: list[NDArray[np.int16] | int] = []  # t * K + k, for each number of GPUs that is left
    for j in range(jobs):
        options = np.flatnonzero(kept[j]).tolist()
        if len(options) == 1:
            t, k = divmod(options[0], count)
            total = _shifted(total, t, int(sizes[j, k]) if k else 0, float(best[j, t, k]))
            picked.append(options[0])
            continue
        after = total + best[j, 0, 0] if kept[j, 0] else np.full_like(total, -np.inf)
        choice = np.zeros(total.shape, dtype=np.int16)
        for option in options:
            t, k = divmod(option, count)
            if not k:
                continue
            gpus = int(sizes[j, k])
            into = (*[slice(None)] * t, slice(gpus, None))
            out_of = (*[slice(None)] * t, slice(None, total.shape[t] - gpus))
            candidate = total[out_of] + best[j, t, k]
            better = candidate > after[into] + 1e-12
            np.copyto(after[into], candidate, where=better)
            np.copyto(choice[into], option, where=better)
        total = after
        picked.append(choice)
    kind, size = np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
    left = [int(gpus) for gpus in capacity]
    for j in reversed(range(jobs)):
        choice_of = picked[j]
        t, k = divmod(choice_of if isinstance(choice_of, int) else int(choice_of[*left]), count)
        if k:
            left[t] -= int(sizes[j, k])
            kind[j], size[j] = t, k
    return kind, size, float(total[tuple(capacity)])


def _shifted(total: Floats, t: int, gpus: int, worth: float) -> Floats:
    """The table once a job has so many GPUs of a type for certain; -inf where it can't have."""
    if not gpus:
        return total + worth
    after = np.full_like(total, -np.inf)
    into = (*[slice(None)] * t, slice(gpus, None))
    out_of = (*[slice(None)] * t, slice(None, total.shape[t] - gpus))
    after[into] = total[out_of] + worth
    return after


def _contenders(best: Floats, sizes: Ints, capacity: Ints) -> NDArray[np.bool_]:
    """[J, T * K] the options that some best choice may have; the others are in none.

    At any prices of GPUs the Lagrangian bounds every choice, and one with an option that is not its
    job's best at these prices by that much less. Where that is below what a choice is known to
    reach, the option can be left out (reduced costs; Martello and Toth, Knapsack Problems, 1990,
    section 2.2).
    """
    jobs, types, count = best.shape
    offered = np.isfinite(best) & (sizes[:, None, :] <= capacity[:, None])
    offered[:, :, 0] = False
    offered[:, 0, 0] = True
    flat = np.where(offered, best, -np.inf).reshape(jobs, -1)
    need = np.where(offered, sizes[:, None, :], 0).reshape(jobs, -1).astype(np.float64)
    of_type = np.repeat(np.arange(types), count)
    prices, start = _prices(flat, need, of_type, capacity)
    reduced = flat - prices[of_type] * need
    top = reduced.max(axis=1)
    bound = float(top.sum() + prices @ capacity)
    rows = np.arange(jobs)
    reached = float(flat[rows, _filled(start, flat, need, of_type, capacity)].sum())
    # What is near is kept, however the sums were rounded.
    near = ROUNDED * (1.0 + float(np.abs(top).sum()) + float(prices @ capacity))
    return np.asarray(
        offered.reshape(jobs, -1) & (bound - (top[:, None] - reduced) >= reached - near)
    )


def _prices(flat: Floats, need: Floats, of_type: Ints, capacity: Ints) -> tuple[Floats, Ints]:
    """A price of each type's GPUs at which no more are asked for than there are; what is asked for.

    Type by type the lowest such price, by halves; of one type that is the best bound there is.
    """
    types, rows = len(capacity), np.arange(len(flat))
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = (flat - flat[:, :1]) / need
    highest = np.array(
        [
            float(np.max(rate, where=np.isfinite(rate) & (of_type == t), initial=0.0))
            for t in range(types)
        ]
    )
    prices = highest.copy()

    def asked() -> Ints:
        # Of what is worth the same the fewest GPUs: at the highest price nobody needs any.
        reduced = flat - prices[of_type] * need
        least = np.where(reduced >= reduced.max(axis=1, keepdims=True), need, np.inf)
        return np.asarray(least.argmin(axis=1), dtype=np.int64)

    found = np.zeros(len(flat), dtype=np.int64)
    for _ in range(1 if types == 1 else SWEEPS):
        for t in range(types):
            low, high = 0.0, highest[t]
            for _ in range(HALVES):
                prices[t] = (low + high) / 2
                pick = asked()
                held = np.bincount(of_type[pick], weights=need[rows, pick], minlength=types)
                if (held <= capacity).all():
                    high, found = prices[t], pick
                else:
                    low = prices[t]
            prices[t] = high
    return prices, found


def _priced(best: Floats, sizes: Ints, capacity: Ints) -> tuple[Ints, Ints, float]:
    """Cutting planes on the dual: min over prices p >= 0 of p.C + sum_j max (worth - p.GPUs)."""
    jobs, types, _ = best.shape
    best = np.where(sizes[:, None, :] <= capacity[:, None], best, -np.inf)
    gpus = np.where(np.isfinite(best), sizes[:, None, :], 0).astype(np.float64)
    flat, need = best.reshape(jobs, -1), gpus.reshape(jobs, -1)
    of_type = np.repeat(np.arange(types), best.shape[2])
    rows = np.arange(jobs)

    def ask(prices: Floats) -> tuple[float, Floats, Ints]:
        pick = np.asarray((flat - prices[of_type] * need).argmax(axis=1), dtype=np.int64)
        used = np.bincount(of_type[pick], weights=need[rows, pick], minlength=types)
        value = float(flat[rows, pick].sum() - prices @ used + prices @ capacity)
        return value, np.asarray(capacity - used, dtype=np.float64), pick

    with np.errstate(invalid="ignore", divide="ignore"):
        rate = (best - best[:, :1, :1]) / gpus
    most = float(np.max(rate, where=np.isfinite(rate) & (gpus > 0), initial=0.0))
    prices = np.zeros(types)
    bound, cuts, limits = np.inf, [], []
    picks: list[Ints] = []
    shares = np.ones(1)
    for _ in range(CUTS):
        value, slope, pick = ask(prices)
        bound = min(bound, value)
        picks.append(pick)
        cuts.append(np.append(slope, -1.0))
        limits.append(slope @ prices - value)
        found = linprog(
            np.append(np.zeros(types), 1.0),
            A_ub=np.array(cuts),
            b_ub=np.array(limits),
            bounds=[(0.0, most)] * types + [(None, None)],
        )
        if found.x is None:
            break
        shares = -found.ineqlin.marginals
        if bound - found.fun <= NEAR * abs(bound):
            break
        prices = found.x[:types]
    # The shares mix the picks into the optimum of the relaxation, in which few jobs are divided.
    mixed = np.zeros_like(flat)
    for share, pick in zip(shares, picks, strict=False):
        mixed[rows, pick] += share
    fitting = _cut(mixed.argmax(axis=1), flat, need, of_type, capacity)
    kind, size = np.divmod(_filled(fitting, flat, need, of_type, capacity), best.shape[2])
    return np.where(size > 0, kind, 0), size, bound


def _cut(start: Ints, flat: Floats, need: Floats, of_type: Ints, capacity: Ints) -> Ints:
    """Downgrades, the least loss per GPU first, until no type is overfull."""
    chosen = start.copy()
    rows = np.arange(len(chosen))
    for t, room in enumerate(capacity):
        same = of_type == t
        smaller = same | (np.arange(len(of_type)) == 0)
        while True:
            held = np.where(same[chosen], need[rows, chosen], 0.0)
            if held.sum() <= room:
                break
            freed = held[:, None] - np.where(same, need, 0.0)
            able = smaller & (freed > 0) & np.isfinite(flat)
            with np.errstate(invalid="ignore", divide="ignore"):
                loss = np.where(able, (flat[rows, chosen][:, None] - flat) / freed, np.inf)
            j, option = np.unravel_index(int(loss.argmin()), loss.shape)
            chosen[j] = option
    return chosen


def _filled(start: Ints, flat: Floats, need: Floats, of_type: Ints, capacity: Ints) -> Ints:
    """Upgrades by worth per GPU until nothing more fits."""
    chosen = start.copy()
    rows = np.arange(len(chosen))
    free = capacity - np.bincount(
        of_type[chosen], weights=need[rows, chosen], minlength=len(capacity)
    )
    while True:
        gain = flat - flat[rows, chosen][:, None]
        own = of_type[chosen][:, None] == of_type[None, :]
        more = need - np.where(own, need[rows, chosen][:, None], 0.0)
        able = (gain > 1e-12) & (more > 0) & (more <= free[of_type][None, :])
        if not able.any():
            return chosen
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = np.where(able, gain / more, -np.inf)
        option = rate.argmax(axis=1)
        taken = False
        for j in np.argsort(-rate[rows, option], kind="stable"):
            o = int(option[j])
            if not np.isfinite(rate[j, o]):
                break
            extra = more[j, o]
            if extra <= free[of_type[o]]:
                if not own[j, o]:
                    free[of_type[chosen[j]]] += need[j, chosen[j]]
                free[of_type[o]] -= extra
                chosen[j] = o
                taken = True
        if not taken:
            return chosen
