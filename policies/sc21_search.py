"""The search of ONES's public code: one gene a GPU, its value a job or nobody.

Candidates are rows of owners; what they stand for is how many GPUs each job has. Only the order
of the genes needs positions: each job side by side, with as few GPUs as possible given anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ones.policies.model import Floats, Ints

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Draws:
    """One draw of every job's progress, shared by all candidates of a generation; J jobs.

    `work` is y (1 / rho - 1), the samples left; nan for a job that hasn't trained an epoch.
    """

    work: Floats  # [J]
    alone: Floats  # [J] seconds to the end on one GPU; inf where there is no draw
    pace: Floats  # [J, G + 1] samples a second by GPUs; 1 at 0


@dataclass(frozen=True, slots=True)
class Field:
    """What candidates are made of; J jobs on G GPUs."""

    home: Ints  # [G] whose GPU it is now, or -1
    snap: Ints  # [J, G + 1] the largest size that a job accepts of so many GPUs; 0: none
    limit: Ints  # [J] the largest that it may have now
    first: Ints  # [J] where the first filling stops: what it asked for, times `most_growth`
    new: Ints  # jobs that never ran, by submission
    settled: Ints  # [J] 1: it has trained too little to be stopped by a mutation

    @property
    def jobs(self) -> int:
        return len(self.limit)


def sizes_of(owner: Ints, jobs: int) -> Ints:
    """[P, J] GPUs of each job in candidates [P, G]."""
    rows = np.arange(len(owner))[:, None] * (jobs + 1)
    cells = np.bincount((rows + owner + 1).ravel(), minlength=len(owner) * (jobs + 1))
    return np.asarray(cells.reshape(len(owner), jobs + 1)[:, 1:])


def crossed(owner: Ints, chance: float, rng: np.random.Generator) -> Ints:
    """Each candidate's child with another one: every gene is the other's with this chance."""
    other = owner[rng.permutation(len(owner))]
    return np.where(rng.random(owner.shape) < chance, other, owner)


def mutated(owner: Ints, field: Field, chance: float, rng: np.random.Generator) -> Ints:
    """Each candidate's mutant: every job loses its genes with this chance."""
    stopped = rng.random((len(owner), field.jobs + 1)) < chance
    stopped[:, :-1] &= field.settled == 0
    stopped[:, NOBODY] = False
    return np.where(np.take_along_axis(stopped, owner, axis=1), NOBODY, owner)


def filled(sizes: Ints, field: Field, draws: Draws) -> Ints:
    """[P, J] clipped to the limits, then idle GPUs given out in three sweeps.

    New jobs first, at the least they accept; then the shortest first, up to `first`; then again, up
    to the limit. What is over stays idle.
    """
    sizes = field.snap[np.arange(field.jobs), np.minimum(sizes, field.limit)]
    free = len(field.home) - sizes.sum(axis=1)
    for job in field.new:
        least = int(np.argmax(field.snap[job] > 0))
        start = (sizes[:, job] == 0) & (free >= least) & (least > 0)
        sizes[start, job] = least
        free = free - np.where(start, least, 0)
    for most in (np.minimum(field.first, field.limit), field.limit):
        for job in np.argsort(draws.alone, kind="stable"):
            before = sizes[:, job].copy()
            after = field.snap[job, np.maximum(np.minimum(most[job], before + free), before)]
            sizes[:, job] = after
            free = free - (after - before)
    return sizes


def scored(sizes: Ints, draws: Draws) -> Floats:
    """[P] sum of y n (1 / rho - 1) / X(n) over the jobs of each schedule: the least is the best.

    Without a draw a job adds nothing, as one that isn't in the schedule.
    """
    each = np.arange(sizes.shape[1])
    spent = draws.work * sizes / draws.pace[each, sizes]
    return np.asarray(np.nansum(spent, axis=1))


def reordered(sizes: Ints, home: Ints) -> Ints:
    """[P, G] owners: each job side by side, where as few GPUs as possible change hands.

    Jobs keep the order in which they stand now; among all ways to set them down in that order, a
    dynamic programme over jobs and GPUs finds the one that keeps most.
    """
    candidates, jobs = sizes.shape
    gpus = len(home)
    spots = [np.flatnonzero(home == job) for job in range(jobs)]
    where = np.array([spot.mean() if len(spot) else gpus for spot in spots])
    order = np.argsort(where, kind="stable")
    rows = np.arange(candidates)
    place = np.arange(gpus + 1)
    best = np.zeros((candidates, gpus + 1))  # kept by the jobs so far, on the GPUs before each
    ends = np.zeros((jobs, candidates, gpus + 1), dtype=np.int64)
    for job in order:
        mine = np.concatenate([[0], np.cumsum(home == job)])
        start = place - sizes[:, job][:, None]
        possible = start >= 0
        at = np.maximum(start, 0)
        kept = best[rows[:, None], at] + mine[place] - mine[at]
        kept = np.where(possible, kept, -np.inf)
        # The best that ends at or before each place; ties go to the first, to the left.
        best = np.maximum.accumulate(kept, axis=1)
        rise = kept[:, 1:] > best[:, :-1]
        ends[job, :, 1:] = np.maximum.accumulate(np.where(rise, place[1:], 0), axis=1)
    owner = np.full((candidates, gpus), NOBODY, dtype=np.int64)
    end = np.full(candidates, gpus)
    columns = np.arange(gpus)
    for job in order[::-1]:
        last = ends[job, rows, end]
        first = last - sizes[:, job]
        owner[(columns >= first[:, None]) & (columns < last[:, None])] = job
        end = first
    return owner
