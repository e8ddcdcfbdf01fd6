"""CPU time of Gavel's policies, all jobs different, against plain HiGHS on the same instances.

usage: scripts/benchmark-gavel [--gpus-per-job F] [--highs-up-to JOBS] [--method M] [--runs N]

One thread. Jobs have gangs of 1, 2, 4 and 8 as in Microsoft's Philly traces, throughputs of their
own on every type, weights of 1 and 2, 1,000 to 10,000 s of work, and ages. "as limited" is what the
project promises. A row is solved in both ways and the objectives are compared; HiGHS is left out
where it takes minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ones.policies.gavel import POLICIES, Pairs, Problem
from ones.policies.gavel.program import solve_with_highs

SPEEDS = np.array([1.0, 0.55, 0.2, 0.8, 0.4, 0.9, 0.3, 0.65])  # of the types, to the fastest


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    policy: str
    jobs: int
    types: int = 3
    limit: float | None = None  # seconds
    problem: Callable[[int, int, float], Problem] | None = None
    highs: int = 1  # HiGHS runs up to this part of --highs-up-to
    use_idle: bool = False


def unlike(jobs: int, types: int, gpus_per_job: float) -> Problem:
    """Jobs that all differ, none of which alone keeps the others' level down."""
    rng = np.random.default_rng(jobs + types)
    own = np.exp(rng.normal(0.0, 0.5, (jobs, types)))
    speed = 10 ** rng.uniform(-1.0, 2.0, (jobs, 1)) * SPEEDS[:types] * own
    work = 10 ** rng.uniform(3.0, 4.0, jobs)  # seconds on the first type
    age = work * rng.uniform(0.0, 1.0, jobs) * (rng.random(jobs) < 0.7)
    return Problem.of(
        speed,
        np.full(types, max(8.0, np.floor(jobs * gpus_per_job))),
        gang=rng.choice([1.0, 2.0, 4.0, 8.0], jobs, p=[0.7, 0.1, 0.15, 0.05]),
        weight=rng.choice([1.0, 2.0], jobs, p=[0.8, 0.2]),
        steps=speed[:, 0] * work,
        age=age,
        isolated=age,
    )


def sharing(kinds: int | None) -> Callable[[int, int, float], Problem]:
    """Single-GPU jobs of so many kinds, or all different, that can share with each other."""

    def problem(jobs: int, types: int, gpus_per_job: float) -> Problem:
        rng = np.random.default_rng(jobs)
        listed = kinds or jobs
        kind = np.arange(jobs) if kinds is None else rng.integers(0, kinds, jobs)
        own = np.exp(rng.normal(0.0, 0.5, (listed, types)))
        speed = 10 ** rng.uniform(-1.0, 2.0, (listed, 1)) * SPEEDS[:types] * own
        first, second = np.triu_indices(listed, 0 if kinds else 1)
        relative = rng.uniform(0.3, 0.85, (len(first), 1, 2))
        relative = relative * rng.uniform(0.9, 1.1, (len(first), types, 2))
        relative[rng.random(len(first)) < 0.2] = 0.0  # don't fit in memory
        both = np.stack([speed[first], speed[second]], axis=-1)
        return Problem.of(
            speed[kind],
            np.full(types, max(8.0, np.floor(jobs * gpus_per_job))),
            kind=kind,
            pairs=Pairs(first=first, second=second, throughput=relative * both),
        )

    return problem


LEVEL, SPAN = "max_min_fairness_perf", "min_total_duration_perf"
FTF, WATER = "finish_time_fairness_perf", "max_min_fairness_water_filling_perf"
PACKED = "max_min_fairness_packed"
ROWS = [
    *(Row("max-min", LEVEL, n, limit=s) for n, s in ((512, None), (2048, 0.03))),
    *(Row("max-min", LEVEL, n, limit=s, highs=0) for n, s in ((8192, 0.12), (65536, 1.5))),
    *(Row("makespan", SPAN, n, limit=s) for n, s in ((512, None), (2048, 0.03))),
    *(Row("makespan", SPAN, n, limit=s, highs=0) for n, s in ((8192, 0.12), (65536, 1.5))),
    *(Row("finish-time fairness", FTF, n, limit=s) for n, s in ((512, None), (2048, 0.2))),
    Row("finish-time fairness", FTF, 8192, highs=0),
    *(Row("water filling", WATER, n, limit=s) for n, s in ((512, 0.1), (2048, 1.0))),
    Row("water filling", WATER, 8192, highs=0),
    Row("max-min, nothing idle", LEVEL, 2048, use_idle=True),
    Row("max throughput", "max_sum_throughput_perf", 2048),
    Row("proportional fairness", "proportional_fairness_perf", 2048, highs=0),
    Row("max-min packed, 26 kinds", PACKED, 512, limit=0.05, problem=sharing(26)),
    Row("max-min packed, 26 kinds", PACKED, 8192, problem=sharing(26), highs=0),
    Row("max-min packed, unlike", PACKED, 128, problem=sharing(None)),
    Row("max-min packed, unlike", PACKED, 512, limit=2.0, problem=sharing(None), highs=0),
    *(Row("max-min", LEVEL, n, types=8, highs=n < 4096) for n in (512, 2048, 8192, 65536)),
    *(Row("makespan", SPAN, 65536, types=t, highs=0) for t in (1, 2, 4, 8)),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus-per-job", type=float, default=0.125, help="of each type")
    parser.add_argument("--highs-up-to", type=int, default=2048, metavar="JOBS")
    parser.add_argument("--runs", type=int, default=3, help="of which the median is shown")
    parser.add_argument("--method", default="highs", help="highs, highs-ds or highs-ipm")
    given = parser.parse_args()
    plain = partial(solve_with_highs, method=given.method)
    POLICIES[LEVEL].allocate(unlike(32, 3, 0.25))  # imports and first touches
    print(f"{given.gpus_per_job:g} GPUs of each type for each job; CPU ms of one thread")
    heads = ("problem", "jobs", "types", "ours", "as limited", "HiGHS", "ratio", "difference")
    print(f"{heads[0]:<26}" + "".join(f"{head:>12}" for head in heads[1:]))
    late = 0
    for row in ROWS:
        problem = (row.problem or unlike)(row.jobs, row.types, given.gpus_per_job)
        policy = POLICIES[row.policy]
        times: list[float] = []
        objective = 0.0
        for _ in range(given.runs):
            started = time.process_time()
            objective = policy.allocate(problem, use_idle=row.use_idle).objective or 0.0
            times.append(time.process_time() - started)
        ours = statistics.median(times)
        cells = ["-"] * 4
        if row.limit is not None:
            late += ours > row.limit
            cells[0] = f"{1000 * row.limit:.0f}" + (" LATE" if ours > row.limit else "")
        if row.highs and row.jobs <= given.highs_up_to:
            started = time.process_time()
            other = policy.allocate(problem, solver=plain, use_idle=row.use_idle)
            took = time.process_time() - started
            off = abs((other.objective or 0.0) / objective - 1.0)
            cells[1:] = [f"{1000 * took:.0f}", f"{took / ours:.0f}", f"{off:.0e}"]
        print(
            f"{row.what:<26}{row.jobs:>12}{row.types:>12}{1000 * ours:>12.1f}"
            + "".join(f"{cell:>12}" for cell in cells),
            flush=True,
        )
    if late:
        print(f"{late} over the limit", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
