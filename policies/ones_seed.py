"""The best sizes if GPUs of a type were all alike: a multiple-choice knapsack over the options.

Its optimum seeds the search and bounds every plan, because on real nodes nothing is better than on
interchangeable GPUs. Small clusters are solved exactly by dynamic programming. Large ones by
prices: the Lagrangian dual gives the bound, and what it leaves free is filled up greedily, which
is as good as exact where no single job is a large part of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog  # type: ignore[import-untyped]

from ones.policies.model import Floats, Ints

EXACT_CELLS = 1_000_000_000  # of the table times choices, about a second
CUTS = 60  # prices tried for the bound
NEAR = 1e-4  # relative distance to the best possible bound at which that ends


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
    jobs, types, count = best.shape
    total = np.zeros(tuple(capacity + 1))
    chosen = np.zeros((jobs, *total.shape), dtype=np.int16)  # t * K + k
    for j in range(jobs):
        after = total + best[j, 0, 0]
        picked = chosen[j]
        for t in range(types):
            for k in range(1, count):
                gpus = int(sizes[j, k])
                if gpus > capacity[t] or not np.isfinite(best[j, t, k]):
                    continue
                into = (*[slice(None)] * t, slice(gpus, None))
                out_of = (*[slice(None)] * t, slice(None, total.shape[t] - gpus))
                candidate = total[out_of] + best[j, t, k]
                better = candidate > after[into] + 1e-12
                np.copyto(after[into], candidate, where=better)
                np.copyto(picked[into], t * count + k, where=better)
        total = after
    kind, size = np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
    left = [int(gpus) for gpus in capacity]
    for j in reversed(range(jobs)):
        t, k = divmod(int(chosen[(j, *left)]), count)
        if k:
            left[t] -= int(sizes[j, k])
            kind[j], size[j] = t, k
    return kind, size, float(total[tuple(capacity)])


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
