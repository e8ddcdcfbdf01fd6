"""The policies that don't optimise over shares: first come first served, AlloX, Gandiva, isolated.

Each fills whole GPUs job by job, or follows a closed form.
"""

from __future__ import annotations

import numpy as np

from ones.policies.gavel.classes import Shares
from ones.policies.gavel.problem import BadProblem, Problem
from ones.policies.model import Floats, Ints

WORTH_SHARING = 1.5  # sum of relative speeds from which FIFO lets a job join another (Gavel's)


def in_order(problem: Problem, order: Ints, *, sharing: bool = False) -> Shares:
    """Jobs one by one on the fastest type with room; nobody overtakes the first that finds none.

    With `sharing` a job that finds no room joins a running one where both together are fast.
    """
    free = problem.gpus.copy()
    x = np.zeros_like(problem.throughput)
    speed = np.where(problem.usable, problem.throughput, 0.0)
    running: dict[int, int] = {}
    joined: list[tuple[int, int, int]] = []
    table = _table(problem) if sharing else {}
    for i in order.tolist():
        room = (free[problem.pool] >= problem.gang[i]) & (speed[i] > 0)
        if room.any():
            # Among equally fast types the one with most room.
            k = int(np.lexsort((-free[problem.pool], -speed[i], ~room))[0])
            free[problem.pool[k]] -= problem.gang[i]
            x[i, k] = 1.0
            running[i] = k
            continue
        partners = [
            (float(_relative(problem, table, j, i)[k]), -j, j, k)
            for j, k in running.items()
            if problem.gang[j] == problem.gang[i] and _key(problem, j, i) in table
        ]
        found = max(partners, default=None)
        if found is None or found[0] <= WORTH_SHARING:
            break
        _, _, j, k = found
        del running[j]
        x[j, k] = 0.0
        joined.append((j, i, k))
    return _shares(x, joined)


def earliest_first(problem: Problem) -> Ints:
    """The order in which the problem lists its jobs."""
    return np.arange(len(problem.jobs))


def shortest_first(problem: Problem) -> Ints:
    """By the time that a job still needs on the type it runs fastest on."""
    return np.argsort(problem.steps / problem.throughput.max(axis=1), kind="stable")


def isolated(problem: Problem) -> Shares:
    """Each job on its own 1/m of every pool."""
    return Shares.of_jobs(problem.equal_share)


def allox(problem: Problem) -> tuple[Shares, float]:
    """The least sum of completion times: each job on a GPU at a place counted from the end.

    A job in place k from the end of its GPU delays k jobs, itself among them, by n/T. Returned
    with that sum; those first in line on their GPU run now (AlloX, EuroSys20).
    """
    wide = problem.gang != 1
    if wide.any():
        job = problem.jobs[int(wide.argmax())]
        raise BadProblem(f"job {job}", "scale_factor", "AlloX serves jobs of one GPU only")
    jobs = len(problem.jobs)
    # More of a type than there are jobs would stay idle, and only take room here.
    workers = np.floor(np.minimum(problem.gpus[problem.pool], max(jobs, 1))).astype(np.int64)
    speed = np.where(problem.usable & (workers > 0), problem.throughput, 0.0)
    with np.errstate(divide="ignore"):
        needed = problem.steps[:, None] / speed  # inf where it can't run
    # Only AlloX has a use for what takes long to import.
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # noqa: PLC0415

    deepest = -(-jobs // int(workers.sum())) + 1
    while True:
        # Where the deepest place stays empty on every GPU, deeper ones would as well.
        column = np.repeat(np.arange(len(workers)), workers * deepest)
        worker = np.concatenate([np.tile(np.arange(n), deepest) for n in workers])
        place = np.concatenate([np.repeat(np.arange(1, deepest + 1), n) for n in workers])
        cost = needed[:, column] * place
        if len(column) >= jobs and np.isfinite(cost).any(axis=1).all():
            far = float(np.nanmax(np.where(np.isfinite(cost), cost, 0.0))) * (jobs + 1.0) + 1.0
            at, chosen = linear_sum_assignment(np.where(np.isfinite(cost), cost, far))
            total = float(cost[at, chosen].sum())
            if np.isfinite(total) and (deepest >= jobs or place[chosen].max() < deepest):
                break
        deepest = min(2 * deepest, jobs) if deepest < jobs else 2 * deepest
    x = np.zeros_like(problem.throughput)
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for i, c in zip(at.tolist(), chosen.tolist(), strict=True):
        gpu = int(column[c]), int(worker[c])
        last[gpu] = max(last.get(gpu, (0, 0)), (int(place[c]), i))
    for (k, _), (_, i) in last.items():
        x[i, k] = 1.0
    return Shares.of_jobs(x), total


def gandiva(problem: Problem, rng: np.random.Generator | None) -> Shares:
    """Where demand exceeds the cluster, random pairs that run well together; equal time for all.

    A pair stays where the mean over the types of its summed relative speeds is at least 1. Without
    a generator jobs are paired in their order.
    """
    jobs = len(problem.jobs)
    joined: list[tuple[int, int]] = []
    alone = set(range(jobs))
    if float(problem.gang.sum()) > float(problem.gpus.sum()):
        table = _table(problem)
        for gang in np.unique(problem.gang):
            alike = np.flatnonzero(problem.gang == gang)
            same = (alike if rng is None else rng.permutation(alike)).tolist()
            for i, j in zip(same[::2], same[1::2], strict=False):
                if _key(problem, i, j) in table:
                    gain = _relative(problem, table, i, j)
                    runs = problem.throughput[i] + problem.throughput[j] > 0
                    if float(gain[runs].mean()) >= 1.0:
                        joined.append((i, j))
                        alone -= {i, j}
    units = [(i, i) for i in sorted(alone)] + joined
    first = np.array([i for i, _ in units])
    share = np.zeros((len(units), len(problem.columns)))
    share[:, problem.standard] = problem.gpus / len(units) / problem.gang[first][:, None]
    share /= np.maximum(1.0, share.sum(axis=1, keepdims=True))
    x = np.zeros_like(problem.throughput)
    x[first[: len(alone)]] = share[: len(alone)]
    return Shares(
        alone=x,
        first=np.array([i for i, _ in joined], dtype=np.int64),
        second=np.array([j for _, j in joined], dtype=np.int64),
        together=share[len(alone) :],
    )


def _key(problem: Problem, i: int, j: int) -> tuple[int, int]:
    a, b = int(problem.kind[i]), int(problem.kind[j])
    return min(a, b), max(a, b)


def _table(problem: Problem) -> dict[tuple[int, int], Floats]:
    """The pairs' throughputs by their kinds, the lower kind first."""
    pairs = problem.pairs
    return {
        (min(a, b), max(a, b)): both if a <= b else both[:, ::-1]
        for a, b, both in zip(
            pairs.first.tolist(), pairs.second.tolist(), pairs.throughput, strict=True
        )
    }


def _relative(problem: Problem, table: dict[tuple[int, int], Floats], i: int, j: int) -> Floats:
    """The sum of both jobs' speeds relative to running alone, on each column."""
    both = table[_key(problem, i, j)]
    if problem.kind[i] > problem.kind[j]:
        both = both[:, ::-1]
    total = np.zeros(len(problem.columns))
    for m, job in enumerate((i, j)):
        own = problem.throughput[job]
        total += np.divide(both[:, m], own, out=np.zeros_like(own), where=own > 0)
    return total


def _shares(x: Floats, joined: list[tuple[int, int, int]]) -> Shares:
    together = np.zeros((len(joined), x.shape[1]))
    for at, (_, _, k) in enumerate(joined):
        together[at, k] = 1.0
    return Shares(
        alone=x,
        first=np.array([i for i, _, _ in joined], dtype=np.int64),
        second=np.array([j for _, j, _ in joined], dtype=np.int64),
        together=together,
    )
