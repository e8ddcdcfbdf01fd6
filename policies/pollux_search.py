"""Pollux's genetic search (OSDI'21 §4.2) over matrices of jobs x nodes, all candidates at once.

A candidate says how many GPUs of each node each job gets. Fitness is the power mean (p = -1) of the
jobs' speedups; how well the GPUs in use are used is a second objective, by which NSGA-II (Deb 2002)
keeps the population diverse. What is used in the end is the fittest.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Floats, Ints

States = NDArray[np.int16]  # [P, J, N] GPUs of each node that each job gets
Bools = NDArray[np.bool_]
CROSSOVER = 0.9  # of the pairs
RESET = 0.1  # of the jobs of a child go back to where they run now
THIN = 0.1  # of the jobs lose each of their nodes with this same chance
FLOOR = 1e-3  # speedup of a job without GPUs, so that its inverse is finite


@dataclass(frozen=True, slots=True)
class Question:
    """One round's search problem; jobs in the order in which they take a contested node."""

    capacity: Ints  # [N] GPUs of each node that these jobs share
    kinds: Ints  # [N] GPU type
    base: States  # [J, N] where the jobs run now
    pinned: int  # the first so many jobs stay there
    fits: States  # [J, N] GPUs of each node that the job could take
    most: Ints  # [J] GPUs that the job may have in all
    speedup: Floats  # [J, K, C, G + 1] by GPU type, node class and GPUs, against the fair share
    node_class: Ints  # [N + 1] index into C of a number of nodes
    factor: Floats  # [J] what a restart leaves of the speedup
    weight: Floats  # [J] in the mean


@dataclass(frozen=True, slots=True)
class Ranked:
    """A population with what selection goes by."""

    states: States
    values: Floats  # [P, 2] to be minimised: -fitness, -utilisation
    crowding: Floats  # [P] larger is lonelier


def search(
    question: Question,
    start: States,
    rng: np.random.Generator,
    *,
    population: int,
    generations: int,
) -> Ranked:
    """Evolve `start`; the fittest candidate comes first."""
    states = _unique(_repair(question, start.copy(), rng))
    ranked = _survivors(states, evaluate(question, states), population)
    for _ in range(generations):
        children = _repair(question, _mutate(question, _mate(ranked, population, rng), rng), rng)
        states = _unique(np.concatenate((ranked.states, children)))
        values = evaluate(question, states[len(ranked.states) :])
        ranked = _survivors(states, np.concatenate((ranked.values, values)), population)
    order = np.argsort(ranked.values[:, 0], kind="stable")
    return Ranked(ranked.states[order], ranked.values[order], ranked.crowding[order])


def evaluate(question: Question, states: States) -> Floats:
    """[P, 2] -fitness and -utilisation of each candidate."""
    jobs = np.arange(states.shape[1])
    gpus = states.sum(axis=2, dtype=np.int64)
    held = states > 0
    nodes = held.sum(axis=2, dtype=np.int64)
    kind = question.kinds[held.argmax(axis=2)] if question.speedup.shape[1] > 1 else 0
    speedup = question.speedup[jobs, kind, question.node_class[nodes], gpus]
    active = (held.any(axis=1) * question.capacity).sum(axis=1)
    utilisation = speedup.sum(axis=1) / np.maximum(active, 1)
    moved = (states != question.base).any(axis=2)
    share = len(question.capacity) / question.capacity.sum()  # a node's worth counts as 1
    scaled = speedup * share * np.where(moved, question.factor, 1.0)
    fitness = question.weight.sum() / (1.0 / (scaled + FLOOR) @ question.weight)
    return -np.column_stack((fitness, utilisation))


def _mate(ranked: Ranked, count: int, rng: np.random.Generator) -> States:
    """Children of `count` parents: single-point crossover over the jobs."""
    parents = _tournament(ranked, count, rng)
    first, second = ranked.states[parents[0::2]], ranked.states[parents[1::2]]
    pairs, jobs = first.shape[0], first.shape[1]
    point = np.where(rng.random(pairs) < CROSSOVER, rng.integers(jobs, size=pairs), 0)
    swapped = (np.arange(jobs) < point[:, None])[:, :, None]
    return np.concatenate((np.where(swapped, second, first), np.where(swapped, first, second)))


def _tournament(ranked: Ranked, count: int, rng: np.random.Generator) -> Ints:
    """Of two drawn candidates the one that dominates, else the lonelier one."""
    size = len(ranked.values)
    rounds = -(-2 * count // size)
    drawn = np.concatenate([rng.permutation(size) for _ in range(rounds)])[: 2 * count]
    one, other = drawn[0::2], drawn[1::2]
    a, b = ranked.values[one], ranked.values[other]
    better = (a <= b).all(axis=1) & (a < b).any(axis=1)
    worse = (b <= a).all(axis=1) & (b < a).any(axis=1)
    lonelier = ranked.crowding[one] >= ranked.crowding[other]
    return np.where(better | (~worse & lonelier), one, other)


def _mutate(question: Question, states: States, rng: np.random.Generator) -> States:
    """Some jobs back to where they run, some nodes dropped, some free GPUs taken."""
    count, jobs, _ = states.shape
    back = rng.random((count, jobs)) < RESET
    states[back] = question.base[np.nonzero(back)[1]]
    thinned = rng.random((count, jobs)) < THIN
    rows = states[thinned]
    rows[rng.random(rows.shape) < THIN] = 0
    states[thinned] = rows
    free = states.sum(axis=1, dtype=np.int64) < question.capacity
    held = states > 0
    # Of each node with free GPUs about one job of all grows there, and one of those on it.
    state, node = np.nonzero(free)
    drawn = rng.binomial(jobs, 1.0 / jobs, size=len(state))
    anybody = np.repeat(state, drawn), rng.integers(jobs, size=drawn.sum()), np.repeat(node, drawn)
    holder = np.nonzero(held & free[:, None, :])
    sharing = held.sum(axis=1, dtype=np.int64)[holder[0], holder[2]]
    picked = rng.random(len(sharing)) * sharing < 1.0
    grows = tuple(
        np.concatenate((new, old[picked])) for new, old in zip(anybody, holder, strict=True)
    )
    low = states[grows]
    high = np.maximum(question.fits[grows[1], grows[2]], low)
    states[grows] = low + (rng.random(len(low)) * (high - low + 1)).astype(np.int16)
    return states


def _repair(question: Question, states: States, rng: np.random.Generator) -> States:
    """Candidates that keep within the cluster: whoever comes first keeps a contested node."""
    pinned = question.pinned
    states[:, :pinned] = question.base[:pinned]
    if question.speedup.shape[1] > 1:
        _one_type(question, states)
    _one_distributed(states, pinned)
    state, job = np.nonzero(states.sum(axis=2, dtype=np.int64) > question.most)
    if len(state):
        rows = states[state, job]
        shuffled = rng.random(rows.shape).argsort(axis=1)
        cut = _clipped(np.take_along_axis(rows, shuffled, axis=1), question.most[job])
        np.put_along_axis(rows, shuffled, cut, axis=1)
        states[state, job] = rows
    state, node = np.nonzero(states.sum(axis=1, dtype=np.int64) > question.capacity)
    if len(state):
        states[state, :, node] = _clipped(states[state, :, node], question.capacity[node])
    return states


def _clipped(rows: States, most: Ints) -> States:
    """Rows whose running sum stops at `most`."""
    sums = np.minimum(rows.cumsum(axis=1), most[:, None])
    return np.asarray(np.diff(sums, axis=1, prepend=0), dtype=np.int16)


def _one_distributed(states: States, pinned: int) -> None:
    """At most one job over several nodes on a node; who comes after the second there goes too."""
    held = states > 0
    held &= (held.sum(axis=2, dtype=np.int64) > 1)[:, :, None]
    state, node = np.nonzero(held.sum(axis=1, dtype=np.int64) > 1)
    if len(state):
        behind = held[state, :, node].cumsum(axis=1) > 1
        behind[:, :pinned] = False
        which, job = np.nonzero(behind)
        states[state[which], job, node[which]] = 0


def _one_type(question: Question, states: States) -> None:
    """A job keeps the nodes of the GPU type of which it has most."""
    count = int(question.kinds.max()) + 1
    of_kind = np.stack(
        [states[:, :, question.kinds == kind].sum(axis=2) for kind in range(count)], axis=2
    )
    states[question.kinds != of_kind.argmax(axis=2)[:, :, None]] = 0


def _unique(states: States) -> States:
    """Without repeats, first occurrences, in order."""
    flat = np.ascontiguousarray(states.reshape(len(states), -1))
    keys = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    _, first = np.unique(keys, return_index=True)
    return states[np.sort(first)] if len(first) < len(states) else states


def _survivors(states: States, values: Floats, population: int) -> Ranked:
    """The best fronts; of the last one that fits in part, the loneliest."""
    front = _fronts(values)
    crowding = _crowding(values, front)
    order = np.lexsort((-crowding, front))[:population]
    return Ranked(states[order], values[order], crowding[order])


def _fronts(values: Floats) -> Ints:
    """Which front each candidate is in: 0 is dominated by nobody, 1 only by those of 0, ..."""
    order = np.lexsort((values[:, 1], values[:, 0]))
    fronts = np.zeros(len(values), dtype=np.int64)
    last: list[float] = []  # the second objective of each front's last member: ascending
    previous: tuple[float, float] | None = None
    place = 0
    for index, (first, second) in zip(order, values[order].tolist(), strict=True):
        if (first, second) != previous:
            place = bisect_right(last, second)
            if place == len(last):
                last.append(second)
            else:
                last[place] = second
            previous = (first, second)
        fronts[index] = place
    return fronts


def _crowding(values: Floats, front: Ints) -> Floats:
    """How far the neighbours in the same front are; ends infinitely, repeats not at all."""
    total = np.zeros(len(values))
    for objective in range(values.shape[1]):
        order = np.lexsort((values[:, 1 - objective], values[:, objective], front))
        value, group = values[order, objective], front[order]
        first = np.append(True, group[1:] != group[:-1])
        final = np.append(first[1:], True)
        starts = np.nonzero(first)[0]
        number = first.cumsum() - 1
        span = (value[np.nonzero(final)[0]] - value[starts])[number]
        gap = np.zeros(len(value))
        gap[1:-1] = value[2:] - value[:-2]
        share = np.divide(gap, span, out=np.zeros(len(value)), where=span > 0)
        same = np.zeros(len(value), dtype=bool)
        same[1:] = (values[order][1:] == values[order][:-1]).all(axis=1) & ~first[1:]
        share[(first | final) & ~same] = np.inf
        share[same] = 0.0
        total[order] += share
    return total
