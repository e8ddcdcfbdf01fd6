"""CPU time of Gavel's policies, all jobs different, against plain HiGHS on the same instances.

usage: scripts/benchmark-gavel [--gpus-per-job F] [--highs-up-to JOBS] [--method M] [--runs N]
                               [--only WORDS]

One thread. Jobs have gangs of 1, 2, 4 and 8 as in Microsoft's Philly traces, throughputs of their
own on every type, weights of 1 and 2, 1,000 to 10,000 s of work, and ages. What is timed is what
users get, with the second stage, which leaves nothing idle, but where a row says "level alone".
"as limited" is what the project promises. A row is solved in both ways and the objectives are
compared; HiGHS is left out where it takes minutes. A row is a process of its own, whose memory at
most is shown, of ours alone, with Python, numpy and the problem itself.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

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
    highs: bool = True  # HiGHS runs up to --highs-up-to
    use_idle: bool = True
    runs: int | None = None  # instead of --runs
    method: str | None = None  # instead of --method


def unlike(jobs: int, types: int, gpus_per_job: float) -> Problem:
    """Jobs that all differ, none of which alone keeps the others' level down."""
    rng = np.random.default_rng(jobs + types)
    fastest = SPEEDS if types <= len(SPEEDS) else rng.uniform(0.1, 1.0, types)
    own = np.exp(rng.normal(0.0, 0.5, (jobs, types)))
    speed = 10 ** rng.uniform(-1.0, 2.0, (jobs, 1)) * fastest[:types] * own
    work = 10 ** rng.uniform(3.0, 4.0, jobs)  # seconds on the first type
    age = work * rng.uniform(0.0, 1.0, jobs) * (rng.random(jobs) < 0.7)
    # Of hundreds of types there are a few GPUs each.
    few = rng.integers(1, 9, types).astype(float)
    return Problem.of(
        speed,
        few if types > len(SPEEDS) else np.full(types, max(8.0, np.floor(jobs * gpus_per_job))),
        gang=rng.choice([1.0, 2.0, 4.0, 8.0], jobs, p=[0.7, 0.1, 0.15, 0.05]),
        weight=rng.choice([1.0, 2.0], jobs, p=[0.8, 0.2]),
        steps=speed[:, 0] * work,
        age=age,
        isolated=age,
    )


def sharing(kinds: int | None, jobs: int, types: int, gpus_per_job: float) -> Problem:
    """Single-GPU jobs of so many kinds, or all different, that can share with each other."""
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


LEVEL, SPAN = "max_min_fairness_perf", "min_total_duration_perf"
FTF, WATER = "finish_time_fairness_perf", "max_min_fairness_water_filling_perf"
PACKED = "max_min_fairness_packed"
ROWS = [
    *(Row("max-min", LEVEL, n, limit=s) for n, s in ((512, None), (2048, 0.015))),
    *(Row("max-min", LEVEL, n, limit=s, highs=False) for n, s in ((8192, 0.05), (65536, 0.4))),
    *(Row("max-min", LEVEL, n, types=8, highs=n < 4096) for n in (512, 2048, 8192, 65536)),
    Row("max-min", LEVEL, 1_000_000, types=4, limit=5.0, highs=False, runs=1),
    Row("max-min", LEVEL, 1750, types=456, limit=10.0, runs=1, method="highs-ipm"),
    *(Row("max-min, level alone", LEVEL, n, use_idle=False, highs=n < 4096) for n in (2048, 65536)),
    *(Row("makespan", SPAN, n) for n in (512, 2048)),
    *(Row("makespan", SPAN, n, highs=False) for n in (8192, 65536)),
    *(Row("makespan", SPAN, 65536, types=t, highs=False) for t in (1, 2, 4, 8)),
    *(Row("finish-time fairness", FTF, n, limit=s) for n, s in ((512, None), (2048, 0.2))),
    Row("finish-time fairness", FTF, 8192, highs=False),
    *(Row("water filling", WATER, n, limit=s) for n, s in ((512, 0.1), (2048, 1.0))),
    Row("water filling", WATER, 8192, highs=False),
    Row("max throughput", "max_sum_throughput_perf", 2048),
    Row("proportional fairness", "proportional_fairness_perf", 2048, highs=False),
    Row("max-min packed, 26 kinds", PACKED, 512, limit=0.05, problem=partial(sharing, 26)),
    Row("max-min packed, 26 kinds", PACKED, 8192, problem=partial(sharing, 26), highs=False),
    Row("max-min packed, unlike", PACKED, 128, problem=partial(sharing, None)),
    Row(
        "max-min packed, unlike",
        PACKED,
        512,
        limit=2.0,
        problem=partial(sharing, None),
        highs=False,
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus-per-job", type=float, default=0.125, help="of each type")
    parser.add_argument("--highs-up-to", type=int, default=2048, metavar="JOBS")
    parser.add_argument("--runs", type=int, default=3, help="of which the median is shown")
    parser.add_argument("--method", default="highs", help="highs, highs-ds or highs-ipm")
    parser.add_argument("--only", default="", metavar="WORDS", help="rows that begin so")
    given = parser.parse_args()
    print(f"{given.gpus_per_job:g} GPUs of each type for each job; CPU ms of one thread, MB")
    heads = ("problem", "jobs", "types", "ours", "as limited", "memory", "HiGHS", "ratio", "off by")
    print(f"{heads[0]:<26}" + "".join(f"{head:>12}" for head in heads[1:]), flush=True)
    late = 0
    for row in ROWS:
        if not row.what.startswith(given.only):
            continue
        # A process forgets no peak of its memory, so each row has its own.
        with get_context("spawn").Pool(1) as alone:
            cells, was_late = alone.apply(measured, (row, given))
        late += was_late
        print(
            f"{row.what:<26}{row.jobs:>12}{row.types:>12}"
            + "".join(f"{cell:>12}" for cell in cells),
            flush=True,
        )
    if late:
        print(f"{late} over the limit", file=sys.stderr)
    return 1 if late else 0


def measured(row: Row, given: argparse.Namespace) -> tuple[list[str], bool]:
    """The row's cells from "ours" on, and whether it is over its limit."""
    POLICIES[LEVEL].allocate(unlike(32, 3, 0.25))  # first touches
    problem = (row.problem or unlike)(row.jobs, row.types, given.gpus_per_job)
    policy = POLICIES[row.policy]
    times: list[float] = []
    objective = 0.0
    for _ in range(row.runs or given.runs):
        started = time.process_time()
        objective = policy.allocate(problem, use_idle=row.use_idle).objective or 0.0
        times.append(time.process_time() - started)
    ours = statistics.median(times)
    late = row.limit is not None and ours > row.limit
    limit = "-" if row.limit is None else f"{1000 * row.limit:.0f}" + (" LATE" if late else "")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cells = [f"{1000 * ours:.1f}", limit, f"{memory:.0f}", "-", "-", "-"]
    if row.highs and row.jobs <= given.highs_up_to:
        plain = partial(solve_with_highs, method=row.method or given.method)
        policy.allocate((row.problem or unlike)(32, 3, 0.25), solver=plain)  # imports
        started = time.process_time()
        other = policy.allocate(problem, solver=plain, use_idle=row.use_idle)
        took = time.process_time() - started
        off = abs((other.objective or 0.0) / objective - 1.0)
        cells[3:] = [f"{1000 * took:.0f}", f"{took / ours:.1f}", f"{off:.0e}"]
    return cells, late


if __name__ == "__main__":
    sys.exit(main())
