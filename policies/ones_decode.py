"""From sizes to real nodes: each chosen size becomes a shape that one allocation can promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from ones.policies.caps import Ledger
from ones.policies.forecast import seconds_left_on, type_of
from ones.policies.model import Assignment, Floats, Ints, Placement, Problem, Seconds
from ones.policies.ones_options import Options
from ones.policies.placement import Room
from ones.policies.sizes import in_gpus
from ones.policies.words import lasting


@dataclass(frozen=True, slots=True)
class Wishes:
    """What each option is worth, in the order in which jobs want them: the same for all candidates.

    A wish is GPUs, type, size index and batch index.
    """

    worth: Floats  # [J, T, K, L]
    level: Ints  # [J, T, K] the best batch at each size
    turns: list[int]  # the jobs, by what they can be worth at most
    of: list[list[tuple[int, ...]]]  # of each job, those that are worth more than nothing
    least: list[float]  # the fewest GPUs of them; infinite where there are none
    nothing: list[float]  # what it is worth to each job to get nothing
    left: dict[tuple[object, ...], Seconds] = field(default_factory=dict)
    """Time to the end of a job on a type, nodes, GPUs and a batch, once it was asked for."""

    @classmethod
    def by(cls, worth: Floats, options: Options) -> Wishes:
        jobs, _, count, _ = worth.shape
        best, level = worth.max(axis=3), worth.argmax(axis=3)
        flat = best.reshape(jobs, -1)
        order = np.argsort(-flat, axis=1, kind="stable")
        rows = np.arange(jobs)[:, None]
        kinds, sizes = np.divmod(order, count)
        wanted = (sizes > 0) & np.isfinite(flat[rows, order])
        wanted &= flat[rows, order] > worth[:, :1, 0, 0]
        levels = level.reshape(jobs, -1)[rows, order]
        told = np.stack([options.sizes[rows, sizes], kinds, sizes, levels], axis=2)
        found = [[(*wish,) for wish in told[j, wanted[j]].tolist()] for j in range(jobs)]
        return cls(
            worth=worth,
            level=level,
            turns=np.argsort(-worth.max(axis=(1, 2, 3)), kind="stable").tolist(),
            of=found,
            least=[min((gpus for gpus, *_ in wishes), default=inf) for wishes in found],
            nothing=worth[:, 0, 0, 0].tolist() if jobs else [],
        )


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a candidate comes to on the real nodes, and what that is worth."""

    given: tuple[tuple[Placement, int | None] | None, ...]  # of each job: nodes and batch
    worth: float


def decode(
    problem: Problem,
    options: Options,
    wishes: Wishes,
    chosen: Ints,
    left: tuple[Room, Ledger],
    *,
    repack: bool,
) -> Decoded:
    """Place a candidate's sizes, largest first; what doesn't fit becomes the next best that does.

    Jobs whose choice is what they have stay where they are, unless `repack` lets them make way for
    larger ones. Waiting jobs that the candidate left out get what is still free at the end. Of the
    site's limits nobody gets more than the ledger has left.
    """
    room, ledger = left
    drawing = _Drawing(problem, options, wishes, room.copy(), ledger.copy())
    return drawing.draw(chosen, repack=repack)


@dataclass(slots=True)
class _Drawing:
    problem: Problem
    options: Options
    wishes: Wishes
    room: Room
    ledger: Ledger
    total: float = 0.0

    def draw(self, chosen: Ints, *, repack: bool) -> Decoded:
        options = self.options
        given: list[tuple[Placement, int | None] | None] = [None] * len(options.jobs)
        stays = (chosen == options.present).all(axis=1) & (chosen[:, 1] > 0)
        if not repack:
            for j in np.flatnonzero(stays):
                given[j] = self._keep(int(j))
        gpus = options.sizes[np.arange(len(chosen)), chosen[:, 1]]
        for j in np.lexsort((~stays, -gpus)):
            if gpus[j] and given[j] is None:
                given[j] = self._place(int(j), tuple(chosen[j]), stays=bool(stays[j]))
        free = self.room.gpus
        for waiting in self.wishes.turns:
            if given[waiting] is None:
                given[waiting] = self._keep_or_start(waiting, free)
                free = self.room.gpus if given[waiting] is not None else free
        return Decoded(tuple(given), self.total)

    def _keep(self, j: int) -> tuple[Placement, int | None] | None:
        job = self.options.jobs[j]
        if job.placement is None or not self.room.fits(job.placement):
            return None
        if self.ledger.against(job, job.placement):
            return None
        self.room.take(job.placement)
        self.ledger.add(job, job.placement)
        present = tuple(self.options.present[j])
        self.total += float(self.wishes.worth[j, *present])
        tunes = job.batches is not None and job.batches.tunes
        return job.placement, self._batch(j, present, job.placement) if tunes else job.batch

    def _batch(self, j: int, choice: tuple[int, ...], placement: Placement) -> int | None:
        """The batch on offer; that which the job has where it is none of those it accepts.

        What a job runs with now is on offer as it is, within its bounds or not.
        """
        job, batch = self.options.jobs[j], int(self.options.batch[j, *choice])
        if job.batches is None or not job.batches.accepts(batch, placement.gpus):
            return job.batch
        return batch

    def _place(
        self, j: int, choice: tuple[int, ...], *, stays: bool
    ) -> tuple[Placement, int | None] | None:
        """The chosen size, else smaller ones of the same type, else what the job has now."""
        if stays and (kept := self._keep(j)):
            return kept
        t, k, level = choice
        for smaller in range(k, 0, -1):
            if smaller != k or not np.isfinite(self.wishes.worth[j, t, k, level]):
                level = int(self.wishes.level[j, t, smaller])
            if np.isfinite(self.wishes.worth[j, t, smaller, level]) and (
                placed := self._put(j, t, smaller, level)
            ):
                return placed
        return None

    def _keep_or_start(self, j: int, free: int) -> tuple[Placement, int | None] | None:
        """A job that was left out keeps what it has or takes what is free, if that's worth more."""
        if kept := self._keep(j):
            return kept
        if self.wishes.least[j] <= free:
            for gpus, t, k, level in self.wishes.of[j]:
                if gpus <= free and (placed := self._put(j, t, k, level)):
                    return placed
        self.total += self.wishes.nothing[j]
        return None

    def _put(self, j: int, t: int, k: int, level: int) -> tuple[Placement, int | None] | None:
        options, job = self.options, self.options.jobs[j]
        shapes = options.shapes.get((j, t, k), [])
        placement = self.room.place_job(job, shapes, gpu_type=options.types[t])
        if placement is None or self.ledger.against(job, placement):
            return None
        self.room.take(placement)
        self.ledger.add(job, placement)
        batch = self._batch(j, (t, k, level), placement)
        if placement == job.placement and batch == job.batch:
            self.total += float(self.wishes.worth[j, *options.present[j]])
            return placement, batch
        worth = float(self.wishes.worth[j, t, k, level])
        moved = (t, k, level) == tuple(options.present[j])
        if moved:  # the table has it uncharged, as a job that stays
            worth *= max(0.0, 1.0 - float(options.cost[j, t, k]) / options.horizon)
        if moved or placement.shape != shapes[0]:
            actual = self._seconds_left(j, placement, batch)
            worth *= float(options.seconds[j, t, k, level]) / max(actual, 1e-6)
        self.total += worth
        return placement, batch

    def _seconds_left(self, j: int, placement: Placement, batch: int | None) -> Seconds:
        """As `seconds_left_on`, which asks no more of a placement than this."""
        kind = type_of(placement, self.problem.by_name)
        key = j, kind, len(placement.gpus_on), placement.gpus, batch
        found = self.wishes.left.get(key)
        if found is None:
            job = self.options.jobs[j]
            found = self.wishes.left[key] = seconds_left_on(self.problem, job, placement, batch)
        return found


def assignment(
    problem: Problem, options: Options, j: int, given: tuple[Placement, int | None]
) -> Assignment:
    """A decoded choice with its reason in words."""
    job, (placement, batch) = options.jobs[j], given
    after = seconds_left_on(problem, job, placement, batch)
    if job.placement is None:
        return Assignment(
            placement, batch, f"starts on {in_gpus(placement.gpus)}, about {lasting(after)}"
        )
    before = seconds_left_on(problem, job, job.placement)
    if (placement, batch) == (job.placement, job.batch):
        return Assignment(placement, batch, f"stays, about {lasting(before)} left")
    now, then = job.placement.gpus, placement.gpus
    change = "moves on" if now == then else "grows" if now < then else "shrinks"
    why = f"{change} {now} to {in_gpus(then)}, about {lasting(before)} to {lasting(after)} left"
    return Assignment(placement, batch, why if after < before else f"{why}, for others")
