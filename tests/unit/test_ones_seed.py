"""The best sizes: options that no best choice has are left out, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from ones.policies.model import Floats, Ints
from ones.policies.ones_options import NONE
from ones.policies.ones_seed import best_sizes


def of_all_options(best: Floats, sizes: Ints, capacity: Ints) -> tuple[Ints, float]:
    """[J, 2] type and size by dynamic programming over every option of every job."""
    jobs, types, count = best.shape
    total = np.zeros(tuple(capacity + 1))
    chosen = np.zeros((jobs, *total.shape), dtype=np.int64)
    for j in range(jobs):
        after = total + best[j, 0, 0]
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
                np.copyto(chosen[j][into], t * count + k, where=better)
        total = after
    found, left = np.zeros((jobs, 2), dtype=np.int64), [int(gpus) for gpus in capacity]
    for j in reversed(range(jobs)):
        t, k = divmod(int(chosen[(j, *left)]), count)
        if k:
            left[t] -= int(sizes[j, k])
            found[j] = t, k
    return found, float(total[tuple(capacity)])


def some_worth(rng: np.random.Generator, sizes: Ints, types: int, kind: int) -> Floats:
    """[J, T, K, 1]: of every size more or less, alike for many jobs, or a few before all others."""
    jobs, count = sizes.shape
    worth = rng.uniform(-1.0, 5.0, (jobs, types, count))
    if kind == 1:  # rising ever less, as speeds do
        worth = rng.uniform(0.5, 2.0, (jobs, types, 1)) * np.minimum(sizes, 99)[:, None, :] ** 0.7
    elif kind == 2:  # many choices are worth exactly the same
        worth = np.floor(worth)
    elif kind == 3:  # jobs that are alike
        worth[:] = worth[0]
    elif kind == 4:  # some are urgent, and some are stopped for nobody
        worth += np.where(rng.random(jobs) < 0.2, 5e6, 0.0)[:, None, None]
        worth[rng.random(jobs) < 0.2, :, 0] = -5e3
    worth[rng.random(worth.shape) < 0.2] = -np.inf
    worth[:, :, 0] = np.where(kind == 4, rng.choice([0.0, -5e3], jobs), 0.0)[:, None]
    worth[np.broadcast_to((sizes == NONE)[:, None], worth.shape)] = -np.inf
    return worth[..., None]


@pytest.mark.parametrize("seed", range(100))
def test_the_best_sizes_are_those_of_all_options(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, types, count = int(rng.integers(1, 25)), int(rng.integers(1, 3)), 6
    sizes = np.sort(rng.integers(1, 12, (jobs, count)), axis=1)
    sizes[:, 0] = 0
    sizes[rng.random(jobs) < 0.3, -1] = NONE
    capacity = rng.integers(0, 30 if types == 2 else 80, types)
    worth = some_worth(rng, sizes, types, seed % 5)
    found = best_sizes(worth, sizes, capacity)
    chosen, bound = of_all_options(worth[..., 0], sizes, capacity)
    assert found.chosen[:, :2].tolist() == chosen.tolist()
    assert found.bound == bound
