"""Empty GPUs given to the jobs that gain most by them: the same as by counting all genes anew."""

from __future__ import annotations

import numpy as np
import pytest
from policy_builders import a_cluster, a_job, a_problem, on

from ones.policies.model import Floats
from ones.policies.ones_options import build
from ones.policies.ones_search import (
    NOBODY,
    Arena,
    Population,
    _count,
    _steps,
    express,
    fill,
    repair,
)
from ones.policies.ones_settings import Settings
from ones.policies.ones_worth import values


def filled(
    population: Population, arena: Arena, worth: Floats, rng: np.random.Generator
) -> Population:
    """One job of each candidate a step, by what all its genes say at that time."""
    options = arena.options
    jobs, types = len(options.jobs), len(options.types)
    best, level, each = worth.max(axis=3), worth.argmax(axis=3), np.arange(jobs)
    steps = [_steps(best, options, far=far) for far in (True, False)]
    owner, local = population.owner.copy(), population.local.copy()
    live = np.arange(len(population))
    while len(live):
        chosen = express(Population(owner[live], local[live]), arena)
        kind, size = chosen[..., 0], chosen[..., 1]
        empty = [((owner[live] == NOBODY) & (arena.kind == t)).sum(axis=1) for t in range(types)]
        mine = (np.arange(types) == kind[..., None]) | (size == 0)[..., None]
        gain, to = np.full((*kind.shape, types), -np.inf), np.zeros((*kind.shape, types), int)
        for rates, larger in steps:
            rate, k = rates[each, :, size], larger[each, :, size]
            need = options.sizes[each[:, None], k] - _count(options, size)[..., None]
            fits = mine & (need <= np.stack(empty, 1)[:, None]) & (rate > 1e-12) & (rate > gain)
            gain, to = np.where(fits, rate, gain), np.where(fits, k, to)
        noisy = (gain * rng.uniform(1.0, 1.3, gain.shape)).reshape(len(live), -1)
        still = []
        for row, p in enumerate(live):
            j, t = divmod(int(noisy[row].argmax()), types)
            if not np.isfinite(noisy[row].max()):
                continue
            still.append(p)
            k = to[row, j, t]
            more = options.sizes[j, k] - options.sizes[j, size[row, j]]
            owner[p, np.flatnonzero((owner[p] == NOBODY) & (arena.kind == t))[:more]] = j
            local[p, owner[p] == j] = options.batch[j, t, k, level[j, t, k]] / options.sizes[j, k]
        live = np.array(still, dtype=np.int64)
    return Population(owner, local)


@pytest.mark.parametrize("seed", range(40))
def test_jobs_grow_as_if_all_was_counted_at_each_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = a_cluster(4, 4, types=("v100", "k80") if seed % 2 else ("v100",))
    sizes = ("1-8", "2-4", "1,2,4", "3-6")
    jobs = [a_job(number, sizes[int(rng.integers(4))], nodes=nodes) for number in range(1, 9)]
    jobs.append(a_job(9, "1-8", nodes=nodes, placement=on(n1=2)))
    left = {job.id: float(rng.uniform(50.0, 5000.0)) for job in jobs}
    problem = a_problem(jobs, nodes, left=left)
    options = build(problem, jobs, {}, Settings())
    kind = np.repeat(np.arange(len(options.types)), 16 // len(options.types))
    arena = Arena(options, kind, np.full(16, NOBODY))
    worth = values(options, Settings(), np.ones(len(jobs)))
    genes = rng.integers(len(jobs), size=(5, 16))
    owner = np.where(rng.random(genes.shape) < 0.4, genes, NOBODY)
    population = repair(Population(owner, rng.uniform(1.0, 64.0, owner.shape)), arena)
    found = fill(population, arena, worth, np.random.default_rng(seed))
    plain = filled(population, arena, worth, np.random.default_rng(seed))
    assert (found.owner == plain.owner).all()
    assert (found.local == plain.local).all()
