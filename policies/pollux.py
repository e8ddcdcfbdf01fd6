"""Pollux (OSDI'21): GPUs and batch sizes by goodput, as fairly as a power mean of -1 is."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

import numpy as np

from ones.policies.model import (
    Floats,
    Ints,
    Job,
    JobId,
    Node,
    Outlook,
    Placement,
    Plan,
    Problem,
    Seconds,
)
from ones.policies.peers import (
    Draft,
    Past,
    accepted_sizes,
    batch_after_epoch,
    batch_for,
    find_at_most,
    look_back,
    rate,
    remember,
)
from ones.policies.pollux_search import Question, States, search
from ones.policies.sizes import in_gpus
from ones.policies.words import OTHERS_GAIN_MORE

POPULATION = 100
GENERATIONS = 100
LEAST_POPULATION, MOST_POPULATION = 4, 1000
MOST_GENERATIONS = 1000
# Bounds in cells (jobs x nodes of a candidate), for clusters far beyond the paper's.
MOST_CELLS = 40_000_000  # of a population, which shrinks to it
MOST_WORK = 1_500_000_000  # over all generations
STARVING = 10.0  # weight of a job that has waited for too long
DELAY = 30.0  # seconds by which Pollux counts a restart, whatever it really takes


@dataclass(frozen=True, slots=True)
class Pollux:
    """The candidate of the largest power mean of speedups against the fair share.

    A job whose nodes change counts with (age - 30 s x restarts) / (age + 30 s) of its speedup, and
    gets at most twice the GPUs it has run on so far (Pollux §4.1, §4.2.1). Of jobs over several
    nodes one at most is on a node. The population goes on from round to round.
    """

    population: int = POPULATION
    generations: int = GENERATIONS
    max_wait: Seconds = inf  # as published; a daemon sets its own
    name: str = "pollux"

    batch_after_epoch = staticmethod(batch_after_epoch)

    def __post_init__(self) -> None:
        if not LEAST_POPULATION <= self.population <= MOST_POPULATION:
            raise ValueError(f"its setting population is {LEAST_POPULATION} to {MOST_POPULATION}")
        if not 1 <= self.generations <= MOST_GENERATIONS:
            raise ValueError(f"its setting generations is 1 to {MOST_GENERATIONS}")

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        draft = Draft.of(problem)
        past = look_back(problem, memory)
        nodes = [node for node in draft.room.nodes if node.usable]
        shared = sorted(draft.open, key=lambda job: (past[job.id].service, job.submitted, job.id))
        jobs = [*draft.stays, *shared]
        kept: dict[str, Any] = remember(problem.now, past)
        if not shared or not nodes or not draft.room.gpus:
            return draft.plan(), kept
        question = _question(problem, draft, jobs, nodes, past)
        starving = np.array([job.waited > self.max_wait for job in jobs])
        question = replace(question, weight=np.where(starving, STARVING, 1.0))
        cells = question.base.size
        population = max(LEAST_POPULATION, min(self.population, MOST_CELLS // cells))
        generations = max(1, min(self.generations, MOST_WORK // (cells * population)))
        start = _carried(memory, jobs, nodes)[:population]
        found = search(
            question,
            np.concatenate((question.base[None], start)),
            rng,
            population=population,
            generations=generations,
        )
        _give(problem, draft, jobs, nodes, found.states[0])
        kept["population"] = _packed(found.states, jobs, nodes)
        return draft.plan(), kept


def _question(
    problem: Problem, draft: Draft, jobs: list[Job], nodes: list[Node], past: dict[JobId, Past]
) -> Question:
    pinned = len(draft.stays)
    held = _matrix(jobs, nodes)
    own = held[:pinned].sum(axis=0, dtype=np.int64)
    free = draft.room.free
    capacity = np.array([free[node.name] for node in nodes]) + own
    kinds = sorted({node.gpu_type for node in nodes})
    may = np.array([[node.name in job.nodes for node in nodes] for job in jobs])
    total = int(capacity.sum())
    classes = _node_classes(len(nodes))
    most = np.array(
        [
            held[place].sum() if place < pinned else _most(job, past[job.id])
            for place, job in enumerate(jobs)
        ]
    )
    most = np.minimum(most, total)
    fair = ceil(total / len(jobs))
    speedup = np.zeros((len(jobs), len(kinds), len(classes), int(most.max(initial=1)) + 1))
    for place, job in enumerate(jobs):
        outlook = problem.outlooks[job.id]
        for number, kind in enumerate(kinds):
            speedup[place, number, :, : most[place] + 1] = _speedups(
                job, outlook, kind, classes=classes, most=int(most[place]), fair=fair
            )
    age = np.array([problem.now - job.submitted for job in jobs])
    restarts = np.array([past[job.id].restarts for job in jobs])
    return Question(
        capacity=capacity,
        kinds=np.array([kinds.index(node.gpu_type) for node in nodes]),
        base=held,
        pinned=pinned,
        fits=np.where(may, capacity, 0).astype(np.int16),
        most=most,
        speedup=speedup,
        node_class=np.abs(
            np.log(np.arange(len(nodes) + 1) + 1e-9)[:, None] - np.log(classes)
        ).argmin(axis=1),
        factor=np.maximum(age - DELAY * restarts, 0.0) / (age + DELAY),
        weight=np.ones(len(jobs)),
    )


def _node_classes(nodes: int) -> Ints:
    """The numbers of nodes for which speed is asked for; others count as the nearest of them."""
    return np.unique(np.append(2 ** np.arange(int(np.log2(nodes)) + 1), nodes))


def _most(job: Job, past: Past) -> int:
    """Twice the most GPUs it has run on, and no fewer than its least size."""
    sizes = accepted_sizes(job)
    bounds = job.batches
    most = bounds.most // bounds.least_per_gpu if bounds is not None else sizes[-1]
    within = [size for size in sizes if size <= min(max(2 * past.largest, 1), most)]
    return within[-1] if within else min(sizes, default=0)


def _speedups(
    job: Job, outlook: Outlook, kind: str, *, classes: Ints, most: int, fair: int
) -> Floats:
    """[C, most + 1] goodput by number of nodes and GPUs, against the fair share on one node.

    GPUs beyond the largest accepted size below them bring nothing.
    """
    found = np.zeros((len(classes), most + 1))
    sizes = [size for size in accepted_sizes(job) if size <= most]
    if not sizes:
        return found
    if outlook.points == 0:  # never measured: taken to scale perfectly
        found[:, sizes] = np.array(sizes) / fair
    else:
        gpus = np.array(sizes)
        spread = np.minimum(classes[:, None], gpus)
        goodput, _ = rate(
            job, outlook, kind, nodes=spread.ravel(), gpus=np.tile(gpus, len(classes))
        )
        bounds = job.batches
        base = fair if bounds is None else min(fair, max(1, bounds.most // bounds.least_per_gpu))
        fairly, _ = rate(job, outlook, kind, nodes=np.array([1]), gpus=np.array([base]))
        if fairly[0] > 0:
            found[:, sizes] = goodput.reshape(len(classes), -1) / fairly[0]
    accepted = np.zeros(most + 1, dtype=np.int64)
    accepted[sizes] = sizes
    return np.asarray(found[:, np.maximum.accumulate(accepted)])


def _give(
    problem: Problem, draft: Draft, jobs: list[Job], nodes: list[Node], state: States
) -> None:
    """Place the open jobs as the matrix says; what one allocation can't hold is packed anew."""
    by_name = {node.name: node for node in nodes}
    wanted: list[tuple[Job, int]] = []
    for job, row in zip(jobs[len(draft.stays) :], state[len(draft.stays) :], strict=True):
        gpus = int(row.sum())
        placement = (
            Placement.of({node.name: int(count) for node, count in zip(nodes, row, strict=True)})
            if gpus
            else None
        )
        if placement is None:
            draft.idle[job.id] = OTHERS_GAIN_MORE
        elif placement == job.placement or (job.uneven and gpus in job.sizes):
            _settle(problem, draft, job, placement, by_name)
        else:
            wanted.append((job, gpus))
    for job, gpus in sorted(wanted, key=lambda one: -one[1]):
        placement = find_at_most(draft.room, job, accepted_sizes(job), gpus)
        if placement is None:
            draft.idle[job.id] = "no nodes are free in a shape that it takes"
        else:
            _settle(problem, draft, job, placement, by_name)


def _settle(
    problem: Problem, draft: Draft, job: Job, placement: Placement, nodes: dict[str, Node]
) -> None:
    kind = nodes[placement.nodes[0]].gpu_type
    batch = batch_for(job, problem.outlooks[job.id], kind, placement)
    draft.give(job, placement, f"largest goodput with {in_gpus(placement.gpus)}", batch=batch)


def _matrix(jobs: list[Job], nodes: list[Node]) -> States:
    """[J, N] where the jobs run now."""
    index = {node.name: place for place, node in enumerate(nodes)}
    matrix = np.zeros((len(jobs), len(nodes)), dtype=np.int16)
    for place, job in enumerate(jobs):
        for name, gpus in job.placement.gpus_on if job.placement else ():
            if name in index:
                matrix[place, index[name]] = gpus
    return matrix


def _packed(states: States, jobs: list[Job], nodes: list[Node]) -> dict[str, Any]:
    """A population in the form that JSON takes."""
    return {
        "jobs": [job.id for job in jobs],
        "nodes": [node.name for node in nodes],
        "states": base64.b64encode(zlib.compress(states.tobytes(), 1)).decode("ascii"),
    }


def _carried(memory: object, jobs: list[Job], nodes: list[Node]) -> States:
    """The last round's population with the jobs and nodes there are now; new ones are empty."""
    kept = memory.get("population") if isinstance(memory, dict) else None
    if kept is None:
        return np.zeros((0, len(jobs), len(nodes)), dtype=np.int16)
    rows = {id_: place for place, id_ in enumerate(kept["jobs"])}
    columns = {name: place for place, name in enumerate(kept["nodes"])}
    before = np.frombuffer(zlib.decompress(base64.b64decode(kept["states"])), dtype=np.int16)
    before = before.reshape(-1, len(rows), len(columns))
    states = np.zeros((len(before), len(jobs), len(nodes)), dtype=np.int16)
    now = [(place, rows[job.id]) for place, job in enumerate(jobs) if job.id in rows]
    there = [
        (place, columns[node.name]) for place, node in enumerate(nodes) if node.name in columns
    ]
    if now and there:
        (to, source), (at, column) = zip(*now, strict=True), zip(*there, strict=True)
        states[np.ix_(range(len(before)), to, at)] = before[:, source][:, :, column]
    return states
