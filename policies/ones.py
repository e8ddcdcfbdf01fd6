"""ONES (SC21): an evolutionary search over who has which GPU with which local batch."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ones.policies.caps import Ledger
from ones.policies.forecast import noise_known
from ones.policies.model import (
    Assignment,
    Floats,
    Ints,
    Job,
    JobId,
    Outlook,
    Plan,
    Problem,
)
from ones.policies.ones_batch import BatchLimit, batch_limits
from ones.policies.ones_caps import best_within, still_left, tabled
from ones.policies.ones_decode import Decoded, Wishes, assignment, decode
from ones.policies.ones_options import Options, build
from ones.policies.ones_search import (
    NOBODY,
    Arena,
    Population,
    crossover,
    encode,
    express,
    fill,
    mutate,
    reorder,
    repair,
    score,
)
from ones.policies.ones_seed import best_sizes
from ones.policies.ones_settings import Settings
from ones.policies.ones_worth import values
from ones.policies.peers import batch_for
from ones.policies.placement import Room
from ones.policies.words import OTHERS_GAIN_MORE

SETTLED = 0.01  # of the bound: a plan as close to it leaves nothing to search for
MEMORY = 1  # version of what is carried from round to round


@dataclass(frozen=True, slots=True)
class Ones:
    """Refresh, crossover, mutation, fill, reorder, select; the best candidate is deployed.

    The population starts from the last round's, the present schedule, and the best sizes that a
    dynamic programme finds. Where these can be placed as they are, their bound proves that there
    is nothing to search for: evolution sets in where nodes, types or settled jobs are in the way.
    Selection within the search uses one draw of each job's progress a
    generation; what is deployed is chosen by expectation, on real nodes, restarts charged.
    """

    settings: Settings = field(default_factory=Settings)
    name: str = "ones"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        past = memory if isinstance(memory, dict) and memory.get("version") == MEMORY else {}
        limits = batch_limits(problem, _read_limits(past))
        assignments, idle, free = _settled(problem)
        if not free:
            return Plan(assignments, idle), memory
        settled = Room.of(problem.nodes, (given.placement for given in assignments.values()))
        options = build(problem, free, self._binding(problem, limits), self.settings)
        arena, slots = _arena(options, settled)
        expected = values(options, self.settings, np.ones(len(options.jobs)))
        ledger = still_left(problem, ((id_, one.placement) for id_, one in assignments.items()))
        arena = replace(arena, caps=tabled(problem, options, ledger))
        exact = (
            best_sizes(expected, options.sizes, arena.capacity)
            if arena.caps is None
            else best_within(expected, options.sizes, arena.capacity, arena.caps)
        )
        recalled = _recall(past, options.jobs, slots)
        seeds = [options.present, exact.chosen] if self.settings.exact else [options.present]
        population = encode(np.stack(seeds), arena)
        trials = _Trials(problem, arena, Wishes.by(expected, options), (settled, ledger))
        best = trials.best(population, self.settings.finalists)
        searched = self._generations(arena) > 0 and not (
            self.settings.exact and _gap(exact.bound, best.worth) < SETTLED
        )
        if searched or not self.settings.exact:
            population = population.joined(recalled)
            population = self._search(problem, arena, population, expected, rng)
            best = trials.best(population, self.settings.finalists)
        else:
            population = population.joined(recalled)
        for j, (job, given) in enumerate(zip(options.jobs, best.given, strict=True)):
            if given is not None:
                assignments[job.id] = assignment(problem, options, j, given)
            elif not np.isfinite(options.seconds[j]).any():
                idle[job.id] = "none of its sizes fits the usable nodes"
            else:
                idle[job.id] = OTHERS_GAIN_MORE
        state = {
            "version": MEMORY,
            "limits": {str(job): limit.row() for job, limit in limits.items()},
            "nodes": slots,
            "jobs": _genes(
                population.only(np.arange(min(len(population), self.settings.kept))), options
            ),
            "local": population.local[: self.settings.kept].round(3).tolist(),
        }
        return Plan(assignments, idle, _gap(exact.bound, best.worth)), state

    def batch_after_epoch(self, job: Job, outlook: Outlook, gpu_type: str) -> int | None:
        """The one of the largest goodput; a job without a known noise scale keeps its own."""
        by_goodput = self.settings.goodput and not self.settings.batch_limits
        if job.placement is None or not by_goodput or not noise_known(outlook):
            return None
        return batch_for(job, outlook, gpu_type, job.placement)

    def _binding(
        self, problem: Problem, limits: Mapping[JobId, BatchLimit]
    ) -> Mapping[JobId, BatchLimit]:
        """The limits that count: a known noise scale says by itself which batch is too large."""
        if self.settings.batch_limits:
            return limits
        return {
            job: limit
            for job, limit in limits.items()
            if not noise_known(problem.outlooks[job]) or not self.settings.goodput
        }

    def _search(
        self,
        problem: Problem,
        arena: Arena,
        population: Population,
        expected: Floats,
        rng: np.random.Generator,
    ) -> Population:
        """The population after this round's generations, best first by expectation."""
        options, settings = arena.options, self.settings
        population = fill(repair(population, arena), arena, expected, rng)
        for _ in range(self._generations(arena)):
            worth = values(options, settings, _draw(problem, options.jobs, rng))
            parents = population.only(rng.integers(len(population), size=settings.population))
            children = mutate(crossover(parents, rng), arena, settings.mutation, rng)
            children = fill(repair(children, arena), arena, worth, rng)
            population = population.joined(reorder(children, arena))
            population = _select(population, arena, worth, settings.population)
        return _select(population, arena, expected, settings.population)

    def _generations(self, arena: Arena) -> int:
        """As many as the settings say and the effort allows; none without a job."""
        options, settings = arena.options, self.settings
        if not options.jobs:
            return 0
        cells = settings.population * (len(arena.kind) + options.seconds[..., 0].size)
        return min(settings.generations, settings.effort // cells)


@dataclass(slots=True)
class _Trials:
    """Candidates on the real nodes, each of them once."""

    problem: Problem
    arena: Arena
    wishes: Wishes
    left: tuple[Room, Ledger]
    tried: list[Ints] = field(default_factory=list)
    found: list[Decoded] = field(default_factory=list)

    def best(self, population: Population, finalists: int) -> Decoded:
        """The best so far: of the foremost candidates, of changing nothing, and of those before."""
        foremost = [self.arena.options.present]
        for chosen in express(population, self.arena):
            if len(foremost) > finalists:
                break
            if not _among(chosen, foremost):
                foremost.append(chosen)
        new = [chosen for chosen in foremost if not _among(chosen, self.tried)]
        self.tried += new
        self.found += [
            decode(self.problem, self.arena.options, self.wishes, chosen, self.left, repack=repack)
            for chosen in new
            for repack in (False, True)
        ]
        return max(self.found, key=lambda one: one.worth)


def _among(chosen: Ints, others: Iterable[Ints]) -> bool:
    return any(np.array_equal(chosen, other) for other in others)


def _gap(bound: float, worth: float) -> float:
    """How far a plan's worth may be below the best possible, as a share."""
    return max(0.0, bound - worth) / max(abs(bound), 1e-12)


def _settled(problem: Problem) -> tuple[dict[JobId, Assignment], dict[JobId, str], list[Job]]:
    """Jobs that keep what they have, jobs that can't be started, and those to decide on."""
    usable = {node.name for node in problem.nodes if node.usable}
    stay: dict[JobId, Assignment] = {}
    wait: dict[JobId, str] = {}
    free: list[Job] = []
    for job in sorted(problem.jobs, key=lambda job: (job.submitted, job.id)):
        if job.placement is not None and (job.fixed or not usable.issuperset(job.placement.nodes)):
            stay[job.id] = Assignment(
                job.placement, job.batch, job.fixed or "a node of it is not usable; left as it is"
            )
        elif job.placement is None and (job.fixed or not job.startable):
            wait[job.id] = job.fixed or "waits for a reason of its own"
        else:
            free.append(job)
    return stay, wait, free


def _arena(options: Options, settled: Room) -> tuple[Arena, list[str]]:
    """The genes: one for each GPU that isn't settled, with the name of its node."""
    free = settled.free
    slots = [
        (node.name, node.gpu_type) for node in settled.nodes for _ in range(free.get(node.name, 0))
    ]
    home = np.full(len(slots), NOBODY, dtype=np.int64)
    spots: dict[str, deque[int]] = defaultdict(deque)
    for index, (name, _) in enumerate(slots):
        spots[name].append(index)
    for j, job in enumerate(options.jobs):
        for name, gpus in job.placement.gpus_on if job.placement else ():
            for _ in range(min(gpus, len(spots[name]))):
                home[spots[name].popleft()] = j
    kind = np.array([options.types.index(kind) for _, kind in slots], dtype=np.int64)
    return Arena(options, kind, home), [name for name, _ in slots]


def _draw(problem: Problem, jobs: Iterable[Job], rng: np.random.Generator) -> Floats:
    """For each job its remaining work by one draw of rho, relative to what is expected."""
    drawn = []
    for job in jobs:
        outlook = problem.outlooks[job.id]
        rho = float(np.clip(rng.beta(outlook.alpha, outlook.beta), 1e-3, 1 - 1e-3))
        known = outlook.processed > 0  # Y (1/rho - 1) says nothing of a job that has not run
        work = outlook.processed * (1 / rho - 1) if known else outlook.remaining
        drawn.append(float(np.clip(work / outlook.remaining, 0.25, 4.0)))
    return np.array(drawn)


def _select(population: Population, arena: Arena, worth: Floats, most: int) -> Population:
    """The best `most` candidates, each schedule once; those beyond a cap come last."""
    chosen = express(population, arena)
    first = _first_of_each(chosen)
    scored = score(chosen[first], worth)
    if arena.caps is not None:
        most_worth = float(np.max(np.abs(worth), where=np.isfinite(worth), initial=1.0))
        scored = scored - 10.0 * most_worth * len(worth) * arena.caps.excess(chosen[first])
    ranked = first[np.argsort(-scored, kind="stable")]
    return population.only(ranked[:most])


def _first_of_each(chosen: Ints) -> Ints:
    """[P] where each schedule first stands, in the order of the schedules' numbers."""
    # As bytes, the highest first, they are in the order of their numbers, which are not negative;
    # to have numpy compare thousands of columns takes ten times as long.
    rows = chosen.reshape(len(chosen), -1).astype(">i8")
    first: dict[bytes, int] = {}
    for p, row in enumerate(rows):
        first.setdefault(row.tobytes(), p)
    return np.array([first[schedule] for schedule in sorted(first)], dtype=np.int64)


def _read_limits(past: Mapping[str, object]) -> dict[JobId, BatchLimit]:
    rows = past.get("limits")
    found = rows.items() if isinstance(rows, dict) else ()
    limits = {JobId(int(job)): BatchLimit.read(row) for job, row in found}
    return {job: limit for job, limit in limits.items() if limit is not None}


def _genes(population: Population, options: Options) -> list[list[int]]:
    """Job ids for indices; 0 is nobody."""
    ids = np.array([*(job.id for job in options.jobs), 0], dtype=np.int64)
    genes: list[list[int]] = ids[population.owner].tolist()
    return genes


def _recall(past: Mapping[str, object], jobs: Iterable[Job], slots: list[str]) -> Population:
    """REFRESH: last round's candidates on this round's GPUs, without the jobs that have ended."""
    genes, local, nodes = past.get("jobs"), past.get("local"), past.get("nodes")
    if not (isinstance(genes, list) and isinstance(local, list) and isinstance(nodes, list)):
        return Population(np.zeros((0, len(slots)), dtype=np.int64), np.ones((0, len(slots))))
    spots: dict[str, deque[int]] = defaultdict(deque)
    for index, name in enumerate(slots):
        spots[name].append(index)
    index_of = {job.id: j for j, job in enumerate(jobs)}
    owner = np.full((len(genes), len(slots)), NOBODY, dtype=np.int64)
    batch = np.ones(owner.shape)
    for column, name in enumerate(nodes):
        if spots[name]:
            spot = spots[name].popleft()
            for p in range(len(genes)):
                owner[p, spot] = index_of.get(genes[p][column], NOBODY)
                batch[p, spot] = local[p][column]
    return Population(owner, batch)
