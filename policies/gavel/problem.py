"""What Gavel's policies decide about: jobs, GPU types, how fast each job is on each (OSDI20 §3).

Symbols of the paper, each explained once here: T throughput in steps a second of the whole job,
s gang (its scale factor: GPUs that it holds together), w weight, n steps left, N GPUs of a pool,
x the share of its time that a job spends on a column.

A column is a GPU type or, where it matters how a gang is placed, a type and a placement; columns
that draw from the same GPUs name the same pool (§3.1, placement sensitivity).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ones.policies.gavel.program import Bools, Caps, Pairs
from ones.policies.model import Floats, Ints

JobName = Hashable
CONSOLIDATED, SPREAD = "", "spread"


class BadProblem(ValueError):
    """Something that can't be scheduled, with the job (or other subject) and field at fault."""

    def __init__(self, subject: str, field: str, reason: str) -> None:
        super().__init__(f"{subject}: {field}: {reason}")
        self.subject = subject
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Entity:
    """Jobs, or entities, that share what they are given: by weight, or first in first served."""

    name: str
    rule: str  # "fairness" or "fifo"
    weight: float
    jobs: tuple[int, ...] = ()  # rows of the problem; fifo serves them in this order
    entities: tuple[Entity, ...] = ()

    def __post_init__(self) -> None:
        if self.rule not in ("fairness", "fifo"):
            raise BadProblem(f"entity {self.name}", "policy", f"{self.rule!r}: fairness or fifo")
        if not (self.weight > 0 and np.isfinite(self.weight)):
            raise BadProblem(f"entity {self.name}", "weight", f"{self.weight:g} is not above 0")
        if bool(self.jobs) == bool(self.entities):
            what = "has both jobs and entities" if self.jobs else "has no jobs"
            raise BadProblem(f"entity {self.name}", "jobs", what)

    @property
    def members(self) -> tuple[int, ...]:
        """The rows of all jobs below."""
        return self.jobs + tuple(i for entity in self.entities for i in entity.members)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Jobs by rows, columns as above; checked at birth, so that every policy may rely on it."""

    jobs: tuple[JobName, ...]
    columns: tuple[str, ...]
    pool: Ints  # [columns]
    gpus: Floats  # [pools]
    throughput: Floats  # [jobs, columns] alone; 0 where it can't run
    gang: Floats
    weight: Floats
    steps: Floats
    age: Floats  # t, seconds since it arrived
    isolated: Floats  # C, seconds that the steps so far would have taken on its 1/m of the cluster
    deadline: Floats  # seconds from now; inf where it has none
    usable: Bools  # [jobs, columns] where a policy may put it
    costs: Floats | None = None  # [columns] a GPU and hour
    kind: Ints  # [jobs] jobs of a kind run alike, beside whomever
    pairs: Pairs  # of kinds
    entities: tuple[Entity, ...] = ()
    caps: Caps | None = None  # the site's limits on jobs together; rows are jobs

    @classmethod
    def of(
        cls,
        throughput: Floats,
        gpus: Floats,
        *,
        jobs: Sequence[JobName] | None = None,
        columns: Sequence[str] | None = None,
        pool: Ints | None = None,
        gang: Floats | None = None,
        weight: Floats | None = None,
        steps: Floats | None = None,
        age: Floats | None = None,
        isolated: Floats | None = None,
        deadline: Floats | None = None,
        usable: Bools | None = None,
        costs: Floats | None = None,
        kind: Ints | None = None,
        pairs: Pairs | None = None,
        entities: tuple[Entity, ...] = (),
    ) -> Problem:
        """A problem in which what isn't named doesn't matter: gangs, weights and steps of 1."""
        throughput = np.asarray(throughput, dtype=np.float64)
        rows, width = throughput.shape

        def filled(values: Floats | None, value: float) -> Floats:
            given = np.full(rows, value) if values is None else values
            return np.asarray(given, dtype=np.float64)

        return cls(
            jobs=tuple(jobs) if jobs is not None else tuple(range(rows)),
            columns=tuple(columns)
            if columns is not None
            else tuple(f"type{k}" for k in range(width)),
            pool=np.arange(width) if pool is None else np.asarray(pool),
            gpus=np.asarray(gpus, dtype=np.float64),
            throughput=throughput,
            gang=filled(gang, 1.0),
            weight=filled(weight, 1.0),
            steps=filled(steps, 1.0),
            age=filled(age, 0.0),
            isolated=filled(isolated, 0.0),
            deadline=filled(deadline, np.inf),
            usable=np.ones((rows, width), dtype=np.bool_) if usable is None else usable,
            costs=None if costs is None else np.asarray(costs, dtype=np.float64),
            kind=np.arange(rows) if kind is None else np.asarray(kind),
            pairs=pairs if pairs is not None else Pairs.none(width),
            entities=entities,
        )

    def __post_init__(self) -> None:
        _check_cluster(self)
        _check_jobs(self)
        _check_pairs(self)
        _check_entities(self)

    @property
    def standard(self) -> Ints:
        """The first column of each pool: the one that shares of the cluster are counted in."""
        return np.array([np.flatnonzero(self.pool == p)[0] for p in range(len(self.gpus))])

    @property
    def average(self) -> Floats:
        """p, each job's throughput on the average GPU of the cluster."""
        return np.asarray(self.throughput[:, self.standard] @ self.gpus / self.gpus.sum())

    @property
    def fits(self) -> Bools:
        """Where a gang finds GPUs enough, [jobs, columns]."""
        return np.asarray(self.gang[:, None] <= self.gpus[self.pool][None, :])

    @property
    def equal_share(self) -> Floats:
        """The allocation in which each job has 1/m of the GPUs of every pool."""
        x = np.zeros_like(self.throughput)
        x[:, self.standard] = self.gpus / max(1, len(self.jobs)) / self.gang[:, None]
        return np.asarray(x / np.maximum(1.0, x.sum(axis=1, keepdims=True)))

    def with_speeds(self, throughput: Floats) -> Problem:
        """The same jobs as a policy sees them that believes in these throughputs."""
        return replace(self, throughput=throughput)

    def without_pairs(self) -> Problem:
        return replace(self, pairs=Pairs.none(len(self.columns)))

    def where_it_runs(self) -> Problem:
        """Jobs kept off types that they can't run on or whose GPUs a gang doesn't fit on.

        The linear programs share time, not GPUs: by themselves they give a gang of 4 half of the
        time of 2 GPUs, and the agnostic ones don't know of throughputs of 0.
        """
        return replace(self, usable=self.usable & self.fits & (self.throughput > 0))


def with_placements(problem: Problem, spread: Floats, nodes: Ints, gpus_per_node: Ints) -> Problem:
    """The problem with a second column for each type: the gang on more nodes than it needs.

    `spread` holds the throughputs of that placement, as `problem.throughput` those on as few nodes
    as possible; `nodes` and `gpus_per_node` describe each pool. A placement that the topology
    can't offer gets 0: single GPUs aren't spread, nor is anything on one node; a gang is
    consolidated where whole nodes and one more hold it.
    """
    gang = problem.gang[:, None]
    needed = np.ceil(gang / gpus_per_node[problem.pool])
    has = nodes[problem.pool]
    together = np.where(needed <= has, problem.throughput, 0.0)
    apart = np.where((gang > 1) & (needed < has), spread, 0.0)
    pairs = problem.pairs
    return replace(
        problem,
        columns=problem.columns + tuple(f"{name}, {SPREAD}" for name in problem.columns),
        pool=np.concatenate([problem.pool, problem.pool]),
        throughput=np.concatenate([together, apart], axis=1),
        usable=np.tile(problem.usable, (1, 2)),
        costs=None if problem.costs is None else np.tile(problem.costs, 2),
        caps=problem.caps and replace(problem.caps, takes=np.tile(problem.caps.takes, (1, 1, 2))),
        pairs=replace(
            pairs,
            throughput=np.concatenate([pairs.throughput, np.zeros_like(pairs.throughput)], axis=1),
        ),
    )


def _check_cluster(problem: Problem) -> None:
    for name, k in zip(problem.columns, problem.pool, strict=True):
        gpus = problem.gpus[k]
        if not (np.isfinite(gpus) and gpus >= 0):
            raise BadProblem(f"type {name}", "cluster", f"{gpus:g} GPUs")
    if not problem.gpus.sum() > 0:
        raise BadProblem("cluster", "cluster", "there are no GPUs")
    if problem.costs is not None and not np.all(np.isfinite(problem.costs) & (problem.costs > 0)):
        raise BadProblem("cluster", "instance_costs", "every price must be above 0")


def _check_jobs(problem: Problem) -> None:
    seen: set[JobName] = set()
    for job in problem.jobs:
        if job in seen:
            raise BadProblem(f"job {job}", "id", "there is another job of this id")
        seen.add(job)

    def refuse(bad: NDArray[np.bool_] | np.bool_, field: str, reason: str) -> None:
        if bad.any():
            raise BadProblem(f"job {problem.jobs[int(np.argmax(bad))]}", field, reason)

    def improper(values: Floats) -> Bools:
        return np.asarray(~(np.isfinite(values) & (values >= 0)))

    speeds, gang = problem.throughput, problem.gang
    refuse(improper(speeds).any(axis=1), "throughput", "must be finite and not below 0")
    refuse(~(speeds > 0).any(axis=1), "throughput", "is 0 on every type")
    refuse(improper(gang) | (gang < 1), "scale_factor", "must be 1 or more")
    refuse(improper(problem.weight) | (problem.weight <= 0), "weight", "must be finite and above 0")
    refuse(improper(problem.steps), "steps_remaining", "must be finite and not below 0")
    refuse(improper(problem.age), "time_since_start", "must be finite and not below 0")
    refuse(improper(problem.isolated), "cumulative_isolated_time", "must be finite and not below 0")
    refuse(~(problem.deadline > 0), "slo_seconds", "must be above 0")
    there = problem.gpus[problem.pool][None, :] > 0
    refuse(~((speeds > 0) & there).any(axis=1), "throughput", "is 0 on every type with GPUs")
    refuse(
        ~((speeds > 0) & problem.fits).any(axis=1),
        "scale_factor",
        "is wider than every type that it can run on",
    )


def _check_pairs(problem: Problem) -> None:
    pairs = problem.pairs
    good = np.isfinite(pairs.throughput) & (pairs.throughput >= 0)
    bad = ~good.all(axis=(1, 2))
    if bad.any():
        at = int(bad.argmax())
        one, other = (
            problem.jobs[int(np.flatnonzero(problem.kind == kind)[0])]
            for kind in (pairs.first[at], pairs.second[at])
        )
        reason = "must be finite and not below 0"
        raise BadProblem(f"pair {one} and {other}", "throughput", reason)


def _check_entities(problem: Problem) -> None:
    if not problem.entities:
        return
    owner: dict[int, str] = {}
    for entity in problem.entities:
        for i in entity.members:
            if i in owner:
                raise BadProblem(
                    f"job {problem.jobs[i]}", "entity", f"is in {owner[i]} and in {entity.name}"
                )
            owner[i] = entity.name
    for i, job in enumerate(problem.jobs):
        if i not in owner:
            raise BadProblem(f"job {job}", "entity", "is in no entity")
