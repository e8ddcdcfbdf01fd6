"""The evolutionary search of ONES (§4.3) over one gene per GPU: the job there, its local batch.

A candidate is a row of `owner` (job index or -1) and `local` (samples per step on that GPU). What
it stands for is read off by `express`: a job has the GPUs of the type on which it has most, cut to
the largest size it accepts, and the batch nearest to the sum of its genes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ones.policies.model import Floats, Ints
from ones.policies.ones_caps import CapTable
from ones.policies.ones_options import NONE, Bools, Options

NOBODY = -1
NOISE = 1.3  # the roulette's: up to so many times a gain counts
LEAST_GAIN = 1e-12  # per GPU


@dataclass(frozen=True, slots=True)
class Population:
    """P candidates over G GPUs."""

    owner: Ints  # [P, G]
    local: Floats  # [P, G]

    def __len__(self) -> int:
        return len(self.owner)

    def joined(self, other: Population) -> Population:
        return Population(
            np.concatenate([self.owner, other.owner]), np.concatenate([self.local, other.local])
        )

    def only(self, rows: Ints) -> Population:
        return Population(self.owner[rows], self.local[rows])


@dataclass(frozen=True, slots=True)
class Arena:
    """The GPUs to be given out, in topology order.

    Which node of a type a gene stands for matters only for whose it is now: real nodes, and jobs
    that may use but some of them, are the placement's business.
    """

    options: Options
    kind: Ints  # [G] type index
    home: Ints  # [G] whose GPU it is now, or -1
    caps: CapTable | None = None  # the site's limits; None: there are none

    @property
    def capacity(self) -> Ints:
        return np.bincount(self.kind, minlength=len(self.options.types))


def express(population: Population, arena: Arena) -> Ints:
    """[P, J, 3]: type, size and batch index that each candidate gives each job."""
    return _expressed(arena.options, *_held(population, arena))


def _held(population: Population, arena: Arena) -> tuple[Ints, Floats]:
    """[P, J, T] the GPUs that each candidate gives each job on each type, and the samples there."""
    jobs, types = len(arena.options.jobs), len(arena.options.types)
    rows = np.arange(len(population))[:, None]
    owned = population.owner >= 0
    cell = ((rows * jobs + population.owner) * types + arena.kind)[owned]
    shape = (len(population), jobs, types)
    every = int(np.prod(shape))
    gpus = np.bincount(cell, minlength=every)
    samples = np.bincount(cell, weights=population.local[owned], minlength=every)
    return gpus.reshape(shape), np.asarray(samples, dtype=np.float64).reshape(shape)


def _offered(options: Options) -> Bools:
    """[J, T, K] the sizes that a job can have on a type, none among them."""
    offered: Bools = np.logical_or.reduce(np.isfinite(options.seconds), axis=3)
    offered[:, :, 0] = True
    return offered


def _expressed(options: Options, gpus: Ints, samples: Floats) -> Ints:
    kind = gpus.argmax(axis=2)
    each = np.arange(len(options.jobs))
    at = np.arange(len(gpus))[:, None], each, kind
    within: Bools = (options.sizes[None] <= gpus[at][..., None]) & _offered(options)[each, kind]
    size = within.shape[2] - 1 - within[..., ::-1].argmax(axis=2)
    wanted = samples[at] / np.maximum(gpus[at], 1) * np.maximum(_count(options, size), 1)
    choices = options.batch[each, kind, size]  # [P, J, L]
    off = np.abs(np.log(choices / np.maximum(wanted, 1e-9)[..., None]))
    off = np.where(np.isfinite(options.seconds[each, kind, size]), off, np.inf)
    return np.stack([kind, size, off.argmin(axis=2)], axis=2)


def encode(chosen: Ints, arena: Arena) -> Population:
    """Genes for expressed candidates [P, J, 3]; jobs keep the GPUs they have where they can."""
    options = arena.options
    owner = np.full((len(chosen), len(arena.kind)), NOBODY, dtype=np.int64)
    local = np.ones(owner.shape)
    kinds, homes = arena.kind.tolist(), arena.home.tolist()
    own: dict[int, list[int]] = {}
    for spot, j in enumerate(homes):
        own.setdefault(j, []).append(spot)
    for p, candidate in enumerate(chosen):
        gpus = _count(options, candidate[:, 1])
        kept = gpus[arena.home] * (arena.home >= 0)  # jobs that keep nothing give up their GPUs
        # Of each type the GPUs of nobody, then those of jobs that are cut.
        order = np.argsort(kept > 0, kind="stable")
        others = [iter(order[arena.kind[order] == t].tolist()) for t in range(len(options.types))]
        holder = [NOBODY] * len(kinds)
        for j in np.argsort(-gpus, kind="stable").tolist():
            wanted = int(gpus[j])
            if wanted == 0:
                break
            t, k, level = candidate[j].tolist()
            # Its own first.
            spots = [s for s in own.get(j, ()) if holder[s] == NOBODY and kinds[s] == t][:wanted]
            for spot in spots:
                holder[spot] = j
            while len(spots) < wanted and (spot := next(others[t], NOBODY)) != NOBODY:
                if holder[spot] == NOBODY:
                    holder[spot] = j
                    spots.append(spot)
            local[p, spots] = options.batch[j, t, k, level] / wanted
        owner[p] = holder
    return Population(owner, local)


def crossover(parents: Population, rng: np.random.Generator) -> Population:
    """Uniform: pairs of parents swap each gene with probability 1/2; two children a pair."""
    count = len(parents)
    mothers, fathers = rng.permutation(count), rng.permutation(count)
    swap = rng.random(parents.owner.shape) < 0.5
    return Population(
        np.where(swap, parents.owner[mothers], parents.owner[fathers]),
        np.where(swap, parents.local[mothers], parents.local[fathers]),
    )


def mutate(
    population: Population, arena: Arena, chance: float, rng: np.random.Generator
) -> Population:
    """Uniform: with this chance a job loses all its genes, or its local batch doubles or halves."""
    jobs = len(arena.options.jobs)
    rows = np.arange(len(population))[:, None]
    stopped = rng.random((len(population), jobs + 1)) < chance
    factor = rng.choice(
        np.array([0.5, 1.0, 2.0]),
        (len(population), jobs + 1),
        p=[chance / 2, 1 - chance, chance / 2],
    )
    stopped[:, NOBODY] = False
    owner = np.where(stopped[rows, population.owner], NOBODY, population.owner)
    return Population(owner, population.local * factor[rows, population.owner])


def repair(population: Population, arena: Arena) -> Population:
    """Genes that `express` does not count are emptied; the others take the batch it reads."""
    options = arena.options
    chosen = express(population, arena)
    rows = np.arange(len(population))[:, None]
    owner = population.owner.copy()
    j = np.maximum(owner, 0)
    kind, size, level = (chosen[rows, j, part] for part in range(3))
    gpus = options.sizes[j, size]
    owner[(owner >= 0) & (kind != arena.kind)] = NOBODY
    owner[(owner >= 0) & (_rank(owner) >= gpus)] = NOBODY
    local = options.batch[j, kind, size, level] / np.maximum(gpus, 1)
    return Population(owner, np.where(owner >= 0, local, 1.0))


def fill(
    population: Population, arena: Arena, worth: Floats, rng: np.random.Generator
) -> Population:
    """Gives empty GPUs to the jobs that gain most by them, started or enlarged, roulette-like.

    Candidates fill side by side, one job each a step, until nobody gains any more.
    """
    options = arena.options
    jobs, types = len(options.jobs), len(options.types)
    if jobs == 0:
        return population
    best = worth.max(axis=3)  # [J, T, K]
    level = worth.argmax(axis=3)
    steps = [_steps(best, options, far=far) for far in (True, False)]
    owner = population.owner.copy()
    batch = np.full((len(population), jobs + 1), np.nan)  # local, of the jobs that were given some
    live = np.arange(len(population))
    growth = _Growth.of(population, arena, steps)
    spots = [
        [np.flatnonzero((row == NOBODY) & (arena.kind == t)) for t in range(types)] for row in owner
    ]
    while len(live):
        gain = growth.gain
        noisy = (gain * rng.uniform(1.0, NOISE, gain.shape)).reshape(len(live), -1)
        pick = noisy.argmax(axis=1)
        able = np.isfinite(noisy[np.arange(len(live)), pick])
        live, pick = live[able], pick[able]
        growth.only(able)
        rows, (j, t) = np.arange(len(live)), np.divmod(pick, types)
        larger = growth.to[rows, j, t]
        then = options.sizes[j, larger]
        more = then - options.sizes[j, growth.size[rows, j]]
        for p, job, kind, count in zip(live, j, t, more, strict=True):
            owner[p, spots[p][kind][:count]] = job
            spots[p][kind] = spots[p][kind][count:]
        batch[live, j] = options.batch[j, t, larger, level[j, t, larger]] / then
        growth.add(j, t, more)
    filled = np.take_along_axis(batch, owner, axis=1)  # NOBODY is the last column
    return Population(owner, np.where(np.isnan(filled), population.local, filled))


@dataclass(slots=True)
class _Growth:
    """What the jobs of each candidate could gain by empty GPUs, kept up as they are given some.

    From step to step one job of a candidate changes, and the GPUs that are left.
    """

    options: Options
    steps: list[tuple[Floats, Ints]]
    offered: Bools  # [J, T, K]
    gpus: Ints  # [P, J, T] that each job has
    empty: Ints  # [P, T]
    size: Ints  # [P, J] the size index that it has by them
    rate: list[Floats]  # of each of the steps, [P, J, T] the gain per GPU; -inf where there is none
    target: list[Ints]  # ... the larger size
    need: list[Ints]  # ... and the GPUs that it takes
    gain: Floats  # [P, J, T] the gain per GPU by the best step that fits
    to: Ints  # [P, J, T] the size of that step
    cost: Ints  # [P, J, T] and the GPUs that it takes; 0 where none fits

    @classmethod
    def of(cls, population: Population, arena: Arena, steps: list[tuple[Floats, Ints]]) -> _Growth:
        options = arena.options
        gpus, samples = _held(population, arena)
        chosen = _expressed(options, gpus, samples)
        kind, size = chosen[..., 0], chosen[..., 1]
        each, types = np.arange(len(options.jobs)), len(options.types)
        target = [larger[each, :, size] for _, larger in steps]
        # A job grows on the type it has; one that has nothing may start on any.
        mine = (np.arange(types) == kind[..., None]) | (size == 0)[..., None]
        empty = (population.owner == NOBODY)[:, None, :] & (arena.kind == np.arange(types)[:, None])
        growth = cls(
            options=options,
            steps=steps,
            offered=_offered(options),
            gpus=gpus,
            empty=empty.sum(axis=2),
            size=size,
            rate=[_gained(rate[each, :, size], mine) for rate, _ in steps],
            target=target,
            need=[
                options.sizes[each[:, None], larger] - _count(options, size)[..., None]
                for larger in target
            ],
            gain=np.empty(gpus.shape),
            to=np.empty_like(gpus),
            cost=np.empty_like(gpus),
        )
        growth._weigh(np.ones(gpus.shape, dtype=np.bool_))
        return growth

    def _weigh(self, which: Bools) -> None:
        """Find the best step that fits anew, of these [P, J, T]."""
        at = np.nonzero(which)
        empty = self.empty[at[0], at[2]]
        gain = np.full(len(empty), -np.inf)
        to, cost = np.zeros_like(empty), np.zeros_like(empty)
        for rates, target, needs in zip(self.rate, self.target, self.need, strict=True):
            rate, need = rates[at], needs[at]
            fits = (need <= empty) & (rate > gain)
            gain = np.where(fits, rate, gain)
            to, cost = np.where(fits, target[at], to), np.where(fits, need, cost)
        self.gain[at], self.to[at], self.cost[at] = gain, to, cost

    def only(self, rows: Bools) -> None:
        """Go on with these candidates."""
        if rows.all():
            return
        self.gpus, self.empty, self.size = self.gpus[rows], self.empty[rows], self.size[rows]
        self.rate = [rate[rows] for rate in self.rate]
        self.target = [target[rows] for target in self.target]
        self.need = [need[rows] for need in self.need]
        self.gain, self.to, self.cost = self.gain[rows], self.to[rows], self.cost[rows]

    def add(self, j: Ints, t: Ints, more: Ints) -> None:
        """Of each candidate [P] one job is given so many GPUs more of a type."""
        options, rows = self.options, np.arange(len(j))
        self.gpus[rows, j, t] += more
        self.empty[rows, t] -= more
        has = self.gpus[rows, j]
        kind = has.argmax(axis=1)
        fits = (options.sizes[j] <= has[rows, kind][:, None]) & self.offered[j, kind]
        size = self.size[rows, j] = fits.shape[1] - 1 - fits[:, ::-1].argmax(axis=1)
        mine = (np.arange(has.shape[1]) == kind[:, None]) | (size == 0)[:, None]
        present = np.where(size > 0, options.sizes[j, size], 0)
        for at, (rate, target) in enumerate(self.steps):
            larger = target[j, :, size]
            self.rate[at][rows, j] = _gained(rate[j, :, size], mine)
            self.target[at][rows, j] = larger
            self.need[at][rows, j] = options.sizes[j[:, None], larger] - present[:, None]
        # What is empty only shrinks: a step that fits still is as good as it was.
        changed = self.cost > self.empty[:, None, :]
        changed[rows, j] = True
        self._weigh(changed)


def reorder(population: Population, arena: Arena) -> Population:
    """Each job's GPUs side by side, in the order in which jobs first appear; types stay apart."""
    owner, local = population.owner, population.local
    rows = np.arange(len(population))[:, None]
    count = owner.shape[1]
    first = np.full((len(population), len(arena.options.jobs) + 1), count)
    for g in reversed(range(count)):
        first[np.arange(len(population)), owner[:, g]] = g
    first[:, NOBODY] = count
    key = first[rows, owner]
    out_owner, out_local = owner.copy(), local.copy()
    for t in range(len(arena.options.types)):
        spots = np.flatnonzero(arena.kind == t)
        order = spots[np.argsort(key[:, spots], axis=1, kind="stable")]
        out_owner[:, spots], out_local[:, spots] = owner[rows, order], local[rows, order]
    return Population(out_owner, out_local)


def score(chosen: Ints, worth: Floats) -> Floats:
    """[P] the summed worth of expressed candidates."""
    each = np.arange(chosen.shape[1])
    return np.asarray(worth[each, chosen[..., 0], chosen[..., 1], chosen[..., 2]].sum(axis=1))


def _count(options: Options, size: Ints) -> Ints:
    """GPUs of size indices [..., J]."""
    gpus = options.sizes[np.arange(len(options.jobs)), size]
    return np.where(gpus == NONE, 0, gpus)


def _rank(owner: Ints) -> Ints:
    """[P, G] how many genes of the same job stand before each."""
    order = np.argsort(owner, axis=1, kind="stable")
    ordered = np.take_along_axis(owner, order, axis=1)
    index = np.broadcast_to(np.arange(owner.shape[1]), owner.shape)
    new = np.ones(owner.shape, dtype=np.bool_)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    rank = np.empty_like(owner)
    np.put_along_axis(
        rank, order, index - np.maximum.accumulate(np.where(new, index, 0), axis=1), axis=1
    )
    return rank


def _gained(rate: Floats, mine: Bools) -> Floats:
    """The gains per GPU that count, where a job may have more."""
    return np.where(mine & (rate > LEAST_GAIN), rate, -np.inf)


def _steps(best: Floats, options: Options, *, far: bool) -> tuple[Floats, Ints]:
    """[J, T, K] the gain per GPU of the best (`far`) or the next larger size, and that size."""
    count = best.shape[2]
    more = (options.sizes[:, None, :] - options.sizes[:, :, None])[:, None].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = (best[:, :, None, :] - best[:, :, :, None]) / more  # [J, T, from, to]
    upwards = np.triu(np.ones((count, count), dtype=np.bool_), 1)
    possible = upwards & np.isfinite(best)[:, :, None, :] & np.isfinite(best)[:, :, :, None]
    rate = np.where(possible, rate, -np.inf)
    to = rate.argmax(axis=3) if far else possible.argmax(axis=3)
    return np.take_along_axis(rate, to[..., None], axis=3)[..., 0], to
