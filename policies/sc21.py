"""ONES (SC21) by its authors' public code, which is not `ones`: an evolutionary search over who has
which GPU, scored by the GPU-seconds that the scheduled jobs still need.

Followed is what the code does, also where the paper doesn't say it or says something else: the
batch is no gene but follows from the number of GPUs; limits are in GPUs, and a job starts with one;
16 candidates, crossover 0.5, mutation 0.3; one draw of progress decides what is deployed; and that
only when every running job that would change has trained an epoch since it was last scheduled.

Not followed: the network that tells beta = 1 + ReLU(5-64-1). As shipped it is asked for features on
another scale than it was trained on; here beta is 1 plus the epochs that our estimator expects, the
same form. Growth waits two epochs, as its code means to (it writes one name and reads another). Its
reordering may find no way and leave a schedule empty, which then scores best; ours finds a way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from statistics import median
from typing import Any, Literal

import numpy as np

from ones.policies.forecast import own_batch, type_of
from ones.policies.model import Floats, Ints, Job, JobId, Outlook, Plan, Problem, Seconds
from ones.policies.peers import Draft, accepted_sizes, find_at_most, size_asked_for
from ones.policies.sc21_search import (
    NOBODY,
    Draws,
    Field,
    crossed,
    filled,
    mutated,
    reordered,
    scored,
    sizes_of,
)
from ones.policies.sizes import in_gpus
from ones.policies.words import NO_SIZE_FITS, OTHERS_GAIN_MORE

LEAST_RHO = 1e-6
SILENT: Seconds = 600.0  # a job that has told nothing for so long bars nobody's change
PACES = 12  # sizes of a job of which its speed is kept
MOST = 1000  # candidates, and generations: a round has to end
MOST_GROWTH = 1_000_000


@dataclass(frozen=True, slots=True)
class _Past:
    """What is remembered of a job."""

    limit: int  # GPUs
    grown: float = 0.0  # epochs when the limit last grew
    scheduled: float = 0.0  # epochs when it was last scheduled
    paces: Mapping[int, float] = field(default_factory=dict)  # samples a second by GPUs

    @classmethod
    def read(cls, row: object) -> _Past | None:
        """From JSON; None where it isn't one of ours."""
        match row:
            case [int(limit), float() | int() as grown, float() | int() as scheduled, list(paces)]:
                return cls(limit, grown, scheduled, {int(n): float(x) for n, x in paces})
        return None

    def row(self) -> list[object]:
        return [self.limit, self.grown, self.scheduled, [list(one) for one in self.paces.items()]]


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one round is about."""

    problem: Problem
    jobs: Sequence[Job]
    past: Mapping[JobId, _Past]
    field: Field

    @property
    def held(self) -> Ints:
        """[J] GPUs that jobs have now."""
        return np.array([job.placement.gpus if job.placement else 0 for job in self.jobs])

    def bars(self, j: int) -> bool:
        """Whether a job has trained less than an epoch since it was scheduled, if it tells."""
        job, outlook = self.jobs[j], self.problem.outlooks[self.jobs[j].id]
        tells = outlook.epochs > 0 or (outlook.processed == 0 and job.executed < SILENT)
        return tells and outlook.epochs - self.past[job.id].scheduled < 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sc21:
    """The knobs are the code's, and what the experiments of the documents change, one at a time."""

    population: int = 16
    crossover: float = 0.5
    mutation: float = 0.3
    generations: int = 2  # a round; the code goes on for ever, one in 1 to 10 s
    start: Literal["gpu", "request"] = "gpu"  # a new job's limit
    growth_epochs: float = 2.0  # between two doublings of the limit
    most_growth: float = 4.0  # times what it asked for, where the first filling stops
    most_scale: float = 16.0  # so many GPUs' local batches at most (max_lr / lr in the code)
    epoch_rule: Literal["all", "changed", "none"] = "all"
    """Whose epochs count anew after a change: those of all scheduled jobs, as shipped, or of those
    that changed; none: no job bars a change."""
    max_wait: Seconds = inf  # as published; a daemon sets its own
    name: str = "ones-sc21"

    def __post_init__(self) -> None:
        if self.start not in ("gpu", "request"):
            raise ValueError(f"its setting start is gpu or request, not '{self.start}'")
        if self.epoch_rule not in ("all", "changed", "none"):
            raise ValueError(f"its setting epoch_rule is all, changed or none: '{self.epoch_rule}'")
        if not (2 <= self.population <= MOST and 1 <= self.generations <= MOST):
            raise ValueError(f"its setting population is 2 to {MOST}, and generations 1 to {MOST}")
        if not (0 <= self.crossover <= 1 and 0 <= self.mutation <= 1):
            raise ValueError("its settings crossover and mutation are 0 to 1")
        if self.growth_epochs < 0 or self.most_scale < 1:
            raise ValueError("its setting growth_epochs is at least 0, and most_scale at least 1")
        if not 1 <= self.most_growth <= MOST_GROWTH:
            raise ValueError(f"its setting most_growth is 1 to {MOST_GROWTH}")

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        draft = Draft.of(problem)
        slots = [name for name, gpus in draft.room.free.items() for _ in range(gpus)]
        jobs = [job for job in draft.open if _sizes(job)]
        for job in draft.open:
            if not _sizes(job):
                draft.idle[job.id] = NO_SIZE_FITS
        if not jobs or not slots:
            return self._placed(draft, problem, jobs, np.zeros(len(jobs), dtype=np.int64)), memory
        kept = memory if isinstance(memory, dict) else {}
        past = self._limits(problem, jobs, _remembered(kept), len(slots))
        turn = _Turn(problem, jobs, past, self._field(problem, jobs, past, slots))
        population = self._searched(turn, _genes(kept, jobs, slots), rng)
        given = self._allowed(turn, sizes_of(population[:1], len(jobs))[0])
        ids = np.array([*(job.id for job in jobs), 0], dtype=np.int64)
        state = {
            "past": {str(id_): one.row() for id_, one in self._after(turn, given).items()},
            "nodes": slots,
            "genes": ids[population].tolist(),
        }
        return self._placed(draft, problem, jobs, given), state

    def _limits(
        self, problem: Problem, jobs: Sequence[Job], before: Mapping[int, _Past], gpus: int
    ) -> dict[JobId, _Past]:
        """This round's limits and speeds."""
        times = [job.executed for job in jobs if job.placement is not None]
        largest = max(jobs, key=lambda job: job.placement.gpus if job.placement else 0)
        found: dict[JobId, _Past] = {}
        for job in jobs:
            sizes, outlook = _sizes(job), problem.outlooks[job.id]
            held = job.placement.gpus if job.placement else 0
            start = sizes[0] if self.start == "gpu" else size_asked_for(job) or sizes[0]
            one = before.get(job.id) or _Past(max(start, held))
            if held:
                one = replace(one, paces=_paces(one.paces, problem, job, outlook))
                rested = outlook.epochs - one.grown >= self.growth_epochs
                if held >= one.limit and outlook.epochs >= 1 and rested:
                    one = replace(one, limit=2 * one.limit, grown=outlook.epochs)
                middle = median(times)
                if job is largest and 2 * held >= gpus and job.executed > middle > 0:
                    share = 2.0 * held / (job.executed / middle + 1.0)
                    one = replace(one, limit=2 * ceil(share / 2.0))
            found[job.id] = replace(one, limit=min(max(one.limit, sizes[0]), gpus, sizes[-1]))
        return found

    def _field(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        past: Mapping[JobId, _Past],
        slots: Sequence[str],
    ) -> Field:
        home = np.full(len(slots), NOBODY, dtype=np.int64)
        spots: dict[str, list[int]] = {}
        for index, name in reversed(list(enumerate(slots))):
            spots.setdefault(name, []).append(index)
        for j, job in enumerate(jobs):
            for name, gpus in job.placement.gpus_on if job.placement else ():
                for _ in range(min(gpus, len(spots.get(name, ())))):
                    home[spots[name].pop()] = j
        count = np.arange(len(slots) + 1)
        snap = np.zeros((len(jobs), len(slots) + 1), dtype=np.int64)
        for j, job in enumerate(jobs):
            sizes = np.array([0, *_sizes(job)])
            snap[j] = sizes[np.searchsorted(sizes, count, side="right") - 1]
        late = [j for j, job in enumerate(jobs) if _late(job, self.max_wait)]
        never = [j for j, job in enumerate(jobs) if not (job.placement or job.executed)]
        asked = [size_asked_for(job) or 1 for job in jobs]
        return Field(
            home=home,
            snap=snap,
            limit=np.array([past[job.id].limit for job in jobs], dtype=np.int64),
            first=np.array([int(self.most_growth * one) for one in asked], dtype=np.int64),
            new=np.array(list(dict.fromkeys([*late, *never])), dtype=np.int64),
            settled=np.array([problem.outlooks[job.id].epochs < 1 for job in jobs], dtype=np.int64),
        )

    def _searched(self, turn: _Turn, population: Ints, rng: np.random.Generator) -> Ints:
        """[K, G] this round's population, the best first by the last draw."""
        searched, jobs = turn.field, len(turn.jobs)
        singles = np.full((self.population, len(searched.home)), NOBODY, dtype=np.int64)
        for row in singles:
            few = rng.permutation(jobs)[: len(row)]
            row[: len(few)] = few
        population = np.concatenate([searched.home[None], population, singles])[: self.population]
        pace = np.stack([_pace(turn.past[job.id].paces, len(searched.home)) for job in turn.jobs])
        sizes = sizes_of(population, jobs)
        for _ in range(self.generations):
            draws = _drawn(turn, pace, rng)
            refreshed = filled(sizes, searched, draws)
            parents = reordered(refreshed, searched.home)
            crosses = crossed(parents, self.crossover, rng)
            mutants = mutated(parents, searched, self.mutation, rng)
            children = sizes_of(np.concatenate([crosses, mutants]), jobs)
            sizes = np.concatenate([refreshed, filled(children, searched, draws)])
            best = np.argsort(scored(sizes, draws), kind="stable")[: self.population]
            sizes = sizes[best]
        return reordered(sizes, searched.home)

    def _allowed(self, turn: _Turn, wanted: Ints) -> Ints:
        """[J] sizes that are deployed: what is wanted, or mere starts where a job bars a change."""
        held = turn.held
        changed = np.flatnonzero((held > 0) & (held != wanted))
        late = any(_late(job, self.max_wait) for job in turn.jobs)
        if late or self.epoch_rule == "none" or not any(turn.bars(int(j)) for j in changed):
            return wanted
        given, free = held.copy(), len(turn.field.home) - int(held.sum())
        for j in np.flatnonzero(held == 0):
            if 0 < wanted[j] <= free:
                given[j] = wanted[j]
                free -= int(wanted[j])
        return given

    def _after(self, turn: _Turn, given: Ints) -> dict[JobId, _Past]:
        """What is remembered of the jobs once the plan is deployed."""
        held = turn.held
        if (held == given).all():
            return dict(turn.past)
        found = dict(turn.past)
        for j, job in enumerate(turn.jobs):
            one = found[job.id]
            if given[j] and (given[j] != held[j] or self.epoch_rule == "all"):
                found[job.id] = replace(one, scheduled=turn.problem.outlooks[job.id].epochs)
            elif not given[j] and (held[j] or job.executed):
                found[job.id] = replace(one, limit=max(1, one.limit // 2))
        return found

    def _placed(self, draft: Draft, problem: Problem, jobs: Sequence[Job], given: Ints) -> Plan:
        """Unchanged sizes stay where they are; the others follow, the largest first."""
        moved = []
        for job, gpus in zip(jobs, given.tolist(), strict=True):
            if job.placement is not None and job.placement.gpus == gpus:
                batch = self._batch(job, problem.outlooks[job.id], gpus)
                draft.give(job, job.placement, f"stays on {in_gpus(gpus)}", batch=batch)
            else:
                moved.append((gpus, job))
        for gpus, job in sorted(moved, key=lambda one: -one[0]):
            placement = find_at_most(draft.room, job, _sizes(job), gpus)
            if placement is None:
                draft.idle[job.id] = OTHERS_GAIN_MORE
            else:
                batch = self._batch(job, problem.outlooks[job.id], placement.gpus)
                draft.give(job, placement, f"scheduled on {in_gpus(placement.gpus)}", batch=batch)
        return draft.plan()

    def _batch(self, job: Job, outlook: Outlook, gpus: int) -> int | None:
        """A local batch for each GPU, `most_scale` of them at most, as the job accepts it."""
        if job.batches is None:
            return job.batch
        local = own_batch(replace(job, batch=None), outlook) / max(1, job.requested)
        count = np.array([gpus])
        least, most = job.batches.bounds(count)
        batch = np.clip(local * min(gpus, self.most_scale), least, np.maximum(least, most))
        whole = int(job.batches.even(batch, count)[0])
        return whole if job.batches.accepts(whole, gpus) else job.batch


def _sizes(job: Job) -> list[int]:
    """The sizes that it accepts, with a batch that it accepts as well where there is one."""
    sizes = accepted_sizes(job)
    if job.batches is None:
        return sizes
    least, most = job.batches.bounds(np.array(sizes, dtype=np.int64))
    return [size for size, fits in zip(sizes, least <= most, strict=True) if fits] or sizes


def _late(job: Job, max_wait: Seconds) -> bool:
    return job.placement is None and job.waited > max_wait


def _paces(
    before: Mapping[int, float], problem: Problem, job: Job, outlook: Outlook
) -> Mapping[int, float]:
    """What is known of its speed, by GPUs, with what it has now."""
    if job.placement is None or outlook.points == 0:
        return before
    batch, gpus = own_batch(job, outlook), job.placement.gpus
    kind = type_of(job.placement, problem.by_name)
    nodes = np.array([len(job.placement.gpus_on)])
    step = outlook.speed.step_seconds(kind, nodes, np.array([gpus]), np.array([batch]))
    kept = {size: pace for size, pace in before.items() if size != gpus}
    return dict([*list(kept.items())[-PACES + 1 :], (gpus, float(batch / step[0]))])


def _pace(paces: Mapping[int, float], gpus: int) -> Floats:
    """[G + 1] samples a second by GPUs: straight lines through what is known and (0, 0)."""
    count = np.arange(gpus + 1, dtype=np.float64)
    if not paces:
        return np.maximum(count, 1.0)
    sizes = sorted(paces)
    speeds = [paces[size] for size in sizes]
    found = np.interp(count, [0, *sizes], [0.0, *speeds])
    found = np.where(count > sizes[-1], speeds[-1] * count / sizes[-1], found)
    found[0] = 1.0
    return np.asarray(np.maximum(found, 1e-12))


def _drawn(turn: _Turn, pace: Floats, rng: np.random.Generator) -> Draws:
    """rho ~ Beta(a, b) of each job that has trained an epoch: a the epochs done, b = 1 + those
    still expected."""
    work = np.full(len(turn.jobs), np.nan)
    for j, job in enumerate(turn.jobs):
        outlook = turn.problem.outlooks[job.id]
        if outlook.epochs >= 1:
            left = outlook.remaining * outlook.epochs / max(outlook.processed, 1e-9)
            rho = max(float(rng.beta(outlook.epochs, 1.0 + max(left, 0.0))), LEAST_RHO)
            work[j] = outlook.processed * (1.0 / rho - 1.0)
    return Draws(work, np.where(np.isnan(work), np.inf, work / pace[:, 1]), pace)


def _remembered(kept: Mapping[str, Any]) -> dict[int, _Past]:
    rows = kept.get("past")
    found = rows.items() if isinstance(rows, dict) else ()
    pasts = {int(job): _Past.read(row) for job, row in found}
    return {job: past for job, past in pasts.items() if past is not None}


def _genes(kept: Mapping[str, Any], jobs: Sequence[Job], slots: Sequence[str]) -> Ints:
    """[K, G] the last round's population, without the jobs that have ended; none on other nodes."""
    genes = kept.get("genes")
    if kept.get("nodes") != slots or not isinstance(genes, list):
        return np.zeros((0, len(slots)), dtype=np.int64)
    index_of = {int(job.id): j for j, job in enumerate(jobs)}
    return np.array([[index_of.get(id_, NOBODY) for id_ in row] for row in genes], dtype=np.int64)
