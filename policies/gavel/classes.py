"""Jobs that no policy can tell apart are one row; exact, because programs are convex.

The average of an optimal allocation over interchangeable jobs is optimal as well. So a class of n
jobs is a row with n jobs' time, and sharing between classes c and d one variable, whose members
all get the same. Throughputs that come from a table make a few dozen classes of any number of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ones.policies.gavel.problem import Problem
from ones.policies.gavel.program import Pairs, Program
from ones.policies.model import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Goal:
    """What a policy wants, per job, beside the constraints that all share.

    With `value` it is the largest sum of value * throughput * x, without it the highest level with
    speed >= floor + rate * level.
    """

    rate: Floats  # [jobs]
    floor: Floats  # [jobs]
    value: Floats | None = None  # [jobs, columns] of a step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """Which jobs are one row."""

    of: Ints  # [jobs] the row of each job
    example: Ints  # [rows] one of its jobs
    count: Ints  # [rows]

    def __len__(self) -> int:
        return len(self.example)

    @classmethod
    def told_apart_by(cls, features: Floats) -> Classes:
        """Jobs with equal rows of `features`; each its own row where that saves little."""
        jobs = len(features)
        # One number for each row of features; equal numbers are then compared in full.
        mix = np.sqrt(np.arange(2.0, features.shape[1] + 2.0))
        _, example, of, count = np.unique(
            features @ mix, return_index=True, return_inverse=True, return_counts=True
        )
        if 2 * len(example) > jobs or not np.array_equal(features, features[example[of]]):
            alone = np.arange(jobs)
            return cls(of=alone, example=alone, count=np.ones(jobs, dtype=np.int64))
        return cls(of=of, example=example, count=count)


def state(problem: Problem, goal: Goal, *, apart: Floats | None = None) -> tuple[Program, Classes]:
    """The goal as a program of classes of jobs; `apart` is what else tells jobs apart."""
    paired = len(problem.pairs) > 0
    features = [problem.throughput, problem.usable, problem.gang, goal.rate, goal.floor]
    if goal.value is not None:
        features.append(goal.value)
    if apart is not None:
        features.append(apart)
    if problem.caps is not None:
        takes = problem.caps.takes  # [caps, jobs, columns]
        features.append(np.moveaxis(takes, 1, 0).reshape(len(problem.jobs), -1))
    if paired:
        features.append(problem.kind.astype(np.float64))
    classes = Classes.told_apart_by(np.column_stack(features))
    at, count = classes.example, classes.count
    throughput = np.where(problem.usable[at], problem.throughput[at], 0.0)
    pairs = _pairs(problem, classes) if paired else problem.pairs
    reward = None
    if goal.value is not None:
        value = goal.value[at]
        reward = np.concatenate(
            [
                value * throughput,
                value[pairs.first] * pairs.throughput[:, :, 0]
                + value[pairs.second] * pairs.throughput[:, :, 1],
            ]
        )
    program = Program(
        throughput=throughput,
        gang=problem.gang[at],
        time=count.astype(np.float64),
        gpus=problem.gpus,
        pool=problem.pool,
        rate=goal.rate[at] * count,
        floor=goal.floor[at] * count,
        reward=reward,
        pairs=pairs,
        caps=problem.caps and problem.caps.only(at),
    )
    return program, classes


def _pairs(problem: Problem, classes: Classes) -> Pairs:
    """The pairs of classes that can share, where that is of more use than taking turns."""
    listed = problem.pairs
    kind = problem.kind[classes.example]
    order = np.argsort(kind, kind="stable")
    kinds = int(max(kind.max(), listed.first.max(), listed.second.max())) + 1
    members = np.bincount(kind, minlength=kinds)
    start = np.concatenate([[0], np.cumsum(members)])
    ways = members[listed.first] * members[listed.second]
    entry = np.repeat(np.arange(len(listed)), ways)
    within = np.arange(len(entry)) - np.repeat(np.cumsum(ways) - ways, ways)
    left, right = listed.first[entry], listed.second[entry]
    first = order[start[left] + within // np.maximum(members[right], 1)]
    second = order[start[right] + within % np.maximum(members[right], 1)]
    gang = problem.gang[classes.example]
    keep = gang[first] == gang[second]
    keep &= (first != second) | (classes.count[first] > 1)
    keep &= (left != right) | (first <= second)
    first, second, entry = first[keep], second[keep], entry[keep]
    usable = problem.usable[classes.example]
    both = usable[first] & usable[second]
    throughput = np.where(both[:, :, None], listed.throughput[entry], 0.0)
    alone = problem.throughput[classes.example]
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = throughput / np.stack([alone[first], alone[second]], axis=-1)
    # Who can't run there by himself and gets nothing in the pair, either, takes nothing from it.
    useful = np.where(throughput > 0, gains, 0.0).sum(axis=-1) > 1.0
    throughput = np.where(useful[:, :, None], throughput, 0.0)
    chosen = useful.any(axis=1)
    return Pairs(first=first[chosen], second=second[chosen], throughput=throughput[chosen])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """The share of its time that each job, and each pair of jobs, spends on each column."""

    alone: Floats  # [jobs, columns]
    first: Ints  # [pairs] jobs
    second: Ints
    together: Floats  # [pairs, columns]

    @classmethod
    def of_jobs(cls, alone: Floats) -> Shares:
        nobody = np.zeros(0, dtype=np.int64)
        return cls(alone=alone, first=nobody, second=nobody, together=np.zeros((0, alone.shape[1])))


def spread(program: Program, classes: Classes, x: Floats) -> Shares:
    """The rows' allocation shared out evenly among the jobs of each class."""
    rows, count = len(classes), classes.count
    alone = (x[:rows] / count[:, None])[classes.of]
    pairs = program.pairs
    used = np.flatnonzero(x[rows:].any(axis=1))
    if not len(used):
        return Shares.of_jobs(alone)
    order = np.argsort(classes.of, kind="stable")
    start = np.concatenate([[0], np.cumsum(count)])
    first: list[Ints] = []
    second: list[Ints] = []
    together: list[Floats] = []
    for at in used:
        c, d = pairs.first[at], pairs.second[at]
        left, right = order[start[c] : start[c + 1]], order[start[d] : start[d + 1]]
        if c == d:
            one, other = np.triu_indices(len(left), 1)
            one, other = left[one], left[other]
        else:
            one, other = np.repeat(left, len(right)), np.tile(right, len(left))
        first.append(one)
        second.append(other)
        together.append(np.tile(x[rows + at] / len(one), (len(one), 1)))
    return Shares(
        alone=alone,
        first=np.concatenate(first),
        second=np.concatenate(second),
        together=np.concatenate(together),
    )
