"""The best sizes if GPUs of a type were all alike: an exact dynamic programme over the options."""

from __future__ import annotations

import numpy as np

from ones.policies.model import Floats, Ints

TOO_LARGE = 50_000_000  # table cells: beyond this the search starts without the exact seed


def best_sizes(worth: Floats, sizes: Ints, capacity: Ints) -> Ints | None:
    """[J, 3]: type, size and batch index of each job, of the largest total worth.

    A multiple-choice knapsack with one dimension per GPU type; `worth` is [J, T, K, L]. None where
    the cluster is too large for it.
    """
    jobs, types, count, _ = worth.shape
    cells = float(np.prod(capacity + 1.0)) * jobs * types * count
    if cells > TOO_LARGE:
        return None
    level = worth.argmax(axis=3)
    best = np.take_along_axis(worth, level[..., None], axis=3)[..., 0]
    total = np.zeros(tuple(capacity + 1))
    chosen = np.zeros((jobs, *total.shape), dtype=np.int32)  # t * K + k
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
                after[into][better] = candidate[better]
                chosen[j][into][better] = t * count + k
        total = after
    found = np.zeros((jobs, 3), dtype=np.int64)
    left = [int(gpus) for gpus in capacity]
    for j in reversed(range(jobs)):
        t, k = divmod(int(chosen[(j, *left)]), count)
        if k:
            left[t] -= int(sizes[j, k])
            found[j] = t, k, level[j, t, k]
    return found
