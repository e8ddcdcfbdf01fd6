"""Liquid's batch mode: a grouping genetic algorithm whose groups are the nodes (Liquid §2.3).

A node with the tasks on it is passed on as a whole (Falkenauer's encoding); what that displaces is
put anywhere by random fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ones.policies.model import Floats, Ints
from ones.policies.network.best_fit import best_fit
from ones.policies.network.cost import score
from ones.policies.network.gangs import NOWHERE, Batch
from ones.policies.network.subtree import subtree

_TRIES = 8  # blind draws of a node before those with room are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Genetics:
    """The published settings, those of the library that was used among them."""

    population: tuple[int, float] = (30, 0.5)  # so many, and so many more for each task
    patience: tuple[int, int] = (30, 1)  # generations without gain: so many, and for each task
    least_gain: float = 1e-6
    tournament: int = 3
    mutation: float = 0.5
    crossover: float = 0.7
    most_rounds: int = 10  # of a crossover
    seeds: str = "none"  # none, best-fit (a tenth of the population, "mixed") or subtree
    work: int = 1_000_000  # tasks put somewhere and counted, in all: the bound in place of seconds

    def __post_init__(self) -> None:
        if self.seeds not in ("none", "best-fit", "subtree"):
            raise ValueError(f"seeds '{self.seeds}': there are none, best-fit and subtree")
        if self.work < 1 or self.tournament < 1:
            raise ValueError("work and tournament are at least 1")


def grouping(batch: Batch, rng: np.random.Generator, settings: Genetics | None = None) -> Ints:
    """The best placement of all gangs that the search meets within its work.

    Where it meets none, the youngest gang waits for the next batch and it is tried again; the
    published version drops one at random.
    """
    settings = settings or Genetics()
    whole = batch.nowhere()
    for kept in range(len(batch.gangs), 0, -1):
        part = Batch(batch.topology, batch.free, batch.gangs[:kept])
        found = _Search(part, rng, settings).run()
        if found is not None:
            whole[: len(found)] = found
            break
    return whole


class _Search:
    def __init__(self, batch: Batch, rng: np.random.Generator, settings: Genetics) -> None:
        self._batch, self._rng, self._settings = batch, rng, settings
        self._gpus = batch.gpus_of.tolist()
        self._gang = batch.gang_of.tolist()
        self._nodes = len(batch.free)
        self._draws: list[int] = []
        self._work = 0
        tasks = len(self._gpus)
        self._size = settings.population[0] + int(settings.population[1] * tasks)
        self._patience = settings.patience[0] + settings.patience[1] * tasks
        self._rounds = min(settings.most_rounds, max(1, self._nodes // 10))

    def run(self) -> Ints | None:
        people = self._first()
        if self._batch.gpus_of.sum() > self._batch.free.sum():
            return None
        best, least, still = people[0], np.inf, 0
        while True:
            worth = self._judge(people)
            top = int(worth.argmin())
            still = 0 if worth[top] < least - self._settings.least_gain else still + 1
            if worth[top] < least:
                best, least = people[top].copy(), float(worth[top])
            if still > self._patience or self._work > self._settings.work:
                break
            people = self._next(people, worth)
        return best if np.isfinite(least) else None

    def _first(self) -> list[Ints]:
        seeds = self._settings.seeds
        made: list[Ints] = []
        if seeds == "subtree":
            made = [subtree(self._batch)]
        elif seeds == "best-fit":
            made = [best_fit(self._batch)] * max(1, self._size // 10)
        people = [one for one in made if (one != NOWHERE).all()]
        while len(people) < self._size and self._work <= self._settings.work:
            sites = self._batch.nowhere()
            self._insert(sites, range(len(sites)))
            people.append(sites)
        return people

    def _judge(self, people: Sequence[Ints]) -> Floats:
        many = np.stack(people)
        self._work += many.size
        worth = np.asarray(score(self._batch, many))
        return np.where((many == NOWHERE).any(axis=1), np.inf, worth)

    def _next(self, people: Sequence[Ints], worth: Floats) -> list[Ints]:
        """The next generation: two parents by tournament, crossed and mutated by chance."""
        rng, settings = self._rng, self._settings
        coming: list[Ints] = []
        while len(coming) < len(people):
            pair = []
            for _ in range(2):
                rivals = rng.integers(len(people), size=settings.tournament)
                pair.append(people[rivals[worth[rivals].argmin()]])
            one, other = pair[0].copy(), pair[1].copy()
            if rng.random() < settings.crossover:
                self._cross(one, pair[1])
                self._cross(other, pair[0])
            for child in (one, other):
                if rng.random() < settings.mutation:
                    self._mutate(child)
                coming.append(child)
        return coming[: len(people)]

    def _mutate(self, sites: Ints) -> None:
        """Some nodes lose their tasks, which go elsewhere."""
        used = np.unique(sites[sites != NOWHERE])
        if not len(used):
            return
        gone = self._rng.permutation(used)[: self._rng.integers(1, len(used) + 1)]
        emptied = np.zeros(self._nodes + 1, dtype=np.bool_)
        emptied[gone] = True
        moved = np.flatnonzero(emptied[sites] | (sites == NOWHERE))
        sites[moved] = NOWHERE
        self._insert(sites, moved.tolist(), closed=gone)

    def _cross(self, sites: Ints, other: Ints) -> None:
        """Some nodes are taken over as the other has them."""
        for _ in range(int(self._rng.integers(1, self._rounds + 1))):
            used = np.unique(other[other != NOWHERE])
            if not len(used):
                return
            node = used[self._rng.integers(len(used))]
            theirs = other == node
            moved = np.flatnonzero((sites == node) & ~theirs)
            sites[moved] = NOWHERE
            sites[theirs] = node
            self._insert(sites, moved.tolist())

    def _insert(self, sites: Ints, tasks: Iterable[int], *, closed: Ints | None = None) -> None:
        """Random fit in random order; what finds no room stays nowhere."""
        order = self._rng.permutation(list(tasks)).tolist()
        if not order:
            return
        self._work += len(order)
        batch = self._batch
        seated = np.flatnonzero(sites != NOWHERE)
        held = np.bincount(
            sites[seated], weights=batch.gpus_of[seated], minlength=self._nodes
        ).astype(np.int64)
        free = batch.free - held
        if closed is not None:
            # An emptied node stays out as long as the rest of the cluster will do.
            shut = free[closed].copy()
            free[closed] = 0
            left = free.tolist()
            order = [task for task in order if not self._seat(sites, task, left)]
            free = np.array(left)
            free[closed] = shut
        left = free.tolist()
        for task in order:
            self._seat(sites, task, left)

    def _seat(self, sites: Ints, task: int, left: list[int]) -> bool:
        gpus, gang = self._gpus[task], self._batch.gangs[self._gang[task]]
        plain = gang.where is None and not gang.apart
        for _ in range(_TRIES if plain else 0):
            node = self._draw()
            if left[node] >= gpus:
                sites[task] = node
                left[node] -= gpus
                return True
        able = np.array(left) >= gpus
        if gang.where is not None:
            able &= gang.where
        if gang.apart:
            there = sites[self._batch.tasks_of(self._gang[task])]
            able[there[there != NOWHERE]] = False
        nodes = np.flatnonzero(able)
        if not len(nodes):
            return False
        node = int(nodes[self._rng.integers(len(nodes))])
        sites[task] = node
        left[node] -= gpus
        return True

    def _draw(self) -> int:
        if not self._draws:
            self._draws = self._rng.integers(self._nodes, size=4096).tolist()
        return self._draws.pop()
