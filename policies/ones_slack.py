"""How long a job may wait if all are to be done soon: its slack against the least makespan.

What is good for the mean leaves the longest to the end, and a job that takes one size only can't
catch up there by growing: the others are done, and most GPUs stand idle beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ones.policies.model import Floats, Ints, Job, Problem, Seconds

LONG = 0.5  # of the least makespan: a job that takes less by itself fits in somewhere
STEPS = 60  # of the search for prices
STEP = 0.5  # the first one, in ln of a price
MOST = 3.0  # steps that a price takes at once: one type of hundreds may have everything to do


def slack(
    problem: Problem, jobs: Sequence[Job], types: Sequence[str], sizes: Ints, seconds: Floats
) -> Floats:
    """[J] for how long a job can still wait, as a share of half the least makespan, 1 at most.

    `sizes` [J, K] and `seconds` [J, T, K, L] as in Options. It is 1 for all but those that accept
    one size and are known to take longer than the other half by themselves; for all, as long as
    more jobs come: there is no end of all to speak of.
    """
    one = np.array(
        [len(job.sizes.counts) == 1 and not problem.outlooks[job.id].guessed for job in jobs],
        dtype=np.bool_,
    )
    if problem.arrival_rate > 0 or not one.any():
        return np.ones(len(jobs))
    spent = (seconds * np.maximum(sizes, 1)[:, None, :, None]).min(axis=(2, 3), initial=np.inf)
    alone = seconds.min(axis=(1, 2, 3), initial=np.inf)
    able = np.isfinite(alone)
    longest = float(np.max(alone, where=able, initial=0.0))
    makespan = max(longest, least_makespan(spent[able], _gpus(problem, types)))
    share = np.divide(alone, makespan, out=np.zeros(len(jobs)), where=able & one)
    return np.asarray(np.minimum((1.0 - share) / (1.0 - LONG), 1.0))


def _gpus(problem: Problem, types: Sequence[str]) -> Floats:
    """[T] those of each type that jobs of ours have, or may get."""
    found = np.zeros(len(types))
    for node in problem.nodes:
        if node.usable:
            found[types.index(node.gpu_type)] += max(0, node.gpus - node.taken)
    return found


def least_makespan(spent: Floats, gpus: Floats) -> Seconds:
    """A time before which no schedule ends all jobs.

    `spent`: [J, T] the least GPU-seconds of each job on each type, inf where it can't run; each has
    a type on which it can. `gpus`: [T] of each type.

    By duality: at any prices p of the types all jobs together cost sum_j min_t p_t spent_jt at
    least, and all GPUs cost sum_t p_t gpus_t a second. The prices of types that have more to do
    than others are raised, by less and less, and the best bound counts.
    """
    there = gpus > 0
    spent, gpus = spent[:, there], gpus[there]
    spent = spent[np.isfinite(spent).any(axis=1)]
    if not len(spent):
        return 0.0
    rows = np.arange(len(spent))
    prices = np.full(len(gpus), 1.0 / len(gpus))
    best = 0.0
    for step in range(STEPS):
        cheapest = (spent * prices).argmin(axis=1)
        cost = spent[rows, cheapest]
        best = max(best, float((cost * prices[cheapest]).sum() / (prices @ gpus)))
        load = np.bincount(cheapest, weights=cost, minlength=len(gpus)) / gpus
        more = np.minimum(load / load.mean() - 1.0, MOST)
        prices = prices * np.exp(STEP / np.sqrt(1 + step) * more)
        prices /= prices.sum()
    return best
