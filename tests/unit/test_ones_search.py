"""The search's fast ways against their plain definitions: genes for schedules, empty GPUs for the
jobs that gain most by them, and schedules each once."""

from __future__ import annotations

import numpy as np
import pytest
from policy_builders import a_cluster, a_job, a_problem, on

from ones.policies.model import Floats, Ints
from ones.policies.ones import _first_of_each
from ones.policies.ones_options import build
from ones.policies.ones_search import (
    NOBODY,
    Arena,
    Population,
    _count,
    _steps,
    encode,
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


def encoded(chosen: Ints, arena: Arena) -> Population:
    """One job after the other, with a look at all GPUs for each."""
    options = arena.options
    owner = np.full((len(chosen), len(arena.kind)), NOBODY, dtype=np.int64)
    local = np.ones(owner.shape)
    for p, candidate in enumerate(chosen):
        gpus = _count(options, candidate[:, 1])
        kept = gpus[arena.home] * (arena.home >= 0)
        for j in np.argsort(-gpus, kind="stable"):
            if gpus[j] == 0:
                break
            t, k, level = candidate[j]
            first = np.where(arena.home == j, 0, np.where(kept > 0, 2, 1))
            spots = np.flatnonzero((owner[p] == NOBODY) & (arena.kind == t))
            spots = spots[np.argsort(first[spots], kind="stable")][: gpus[j]]
            owner[p, spots] = j
            local[p, spots] = options.batch[j, t, k, level] / gpus[j]
    return Population(owner, local)


@pytest.mark.parametrize("seed", range(40))
def test_genes_are_given_out_as_by_going_through_all_of_them_for_each_job(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = a_cluster(4, 4, types=("v100", "k80") if seed % 2 else ("v100",))
    jobs = [a_job(number, "1-8", nodes=nodes) for number in range(1, 10)]
    options = build(a_problem(jobs, nodes), jobs, {}, Settings())
    types = len(options.types)
    home = rng.integers(-1, len(jobs), size=16)
    arena = Arena(options, np.repeat(np.arange(types), 16 // types), home)
    size = rng.integers(options.sizes.shape[1], size=(6, len(jobs)))
    size[rng.random(size.shape) < 0.5] = 0
    kind, level = rng.integers(types, size=size.shape), rng.integers(3, size=size.shape)
    chosen = np.stack([kind, size, level], axis=2)
    found, plain = encode(chosen, arena), encoded(chosen, arena)
    assert (found.owner == plain.owner).all()
    assert (found.local == plain.local).all()


@pytest.mark.parametrize("seed", range(10))
def test_schedules_are_told_apart_in_the_order_of_their_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = rng.integers(2 if seed % 2 else 300, size=(12, 2, 3))
    chosen = chosen[rng.integers(12, size=20)]
    _, first = np.unique(chosen.reshape(20, -1), axis=0, return_index=True)
    assert _first_of_each(chosen).tolist() == first.tolist()


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
