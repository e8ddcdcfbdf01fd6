"""What a round of the whole daemon costs at scale: CPU seconds by step, and memory.

usage: scripts/benchmark-scale [--nodes N] [--jobs N] [--rounds N] [--policy NAME] [--json]
       scripts/benchmark-scale --curve both|jobs|nodes [--most NODES] [--rounds N] [--policy NAME]
       scripts/benchmark-scale --month [--days N] [--keep-days N] [--nodes N] [--jobs N] [--json]
       scripts/benchmark-scale --slurm [--nodes N] [--jobs N] [--rounds N] [--reader NAME] [--json]

onesd's own round, in act mode, on a simulated Slurm: nodes of eight GPUs, three jobs in ten
elastic, users with limits of nothing but GPUs. From one round to the next one job in fifty changes:
half of them end, as many are submitted. All agents report before each round, and moves are advanced
between rounds as often as onesd does it. Seconds are of this process's CPU and of the daemon alone;
memory is that of the whole process, the simulated Slurm included. With --slurm it is a real one in
containers, and seconds are those that passed; see laboratory.py. With --month it is a month at 500
jobs, day by day; see month_of_rounds.py. With --curve it is one size after the other, of nodes, of
jobs or of both; see curve_of_sizes.py.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

from busy_cluster import GPUS, STEPS, Busy
from curve_of_sizes import CURVES, Size, curve
from laboratory import measured
from month_of_rounds import Row, month, month_head, month_line

from ones.daemon.config import Config

NODES, JOBS, ROUNDS = 1280, 10_000, 10
WARM = 8  # rounds before those that are measured: jobs start and report
ROUND = 15.0
PROFILED = 60  # functions that --profile shows
MONTH_NODES, MONTH_JOBS, MONTH_POLICY = 16, 500, "fifo"
DAYS, KEEP_DAYS = 30, 1.0
MONTH_ROUND = 60.0  # a month has 43,200 of them


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-scale", description=__doc__)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--slurm", action="store_true", help="a real slurmctld, in containers")
    parser.add_argument("--reader", choices=("auto", "pyslurm", "commands"), default="auto")
    parser.add_argument("--month", action="store_true", help="a month at 500 jobs, day by day")
    parser.add_argument("--curve", choices=tuple(CURVES), help="one size after the other")
    parser.add_argument("--most", type=int, help="nodes of the last size of the curve")
    parser.add_argument("--days", type=int, default=DAYS, help="of the month")
    parser.add_argument("--keep-days", type=float, default=KEEP_DAYS, help="keep_days in the month")
    parser.add_argument("--profile", action="store_true", help="where the rounds' time goes")
    chosen = parser.parse_args(arguments)
    chosen.nodes = chosen.nodes or (MONTH_NODES if chosen.month else NODES)
    chosen.jobs = chosen.jobs or (MONTH_JOBS if chosen.month else JOBS)
    chosen.policy = chosen.policy or (MONTH_POLICY if chosen.month else "ones")
    if min(chosen.nodes, chosen.jobs, chosen.rounds, chosen.days) < 1:
        parser.error("--nodes, --jobs, --rounds and --days are at least 1")
    if chosen.month:
        _month(chosen)
        return 0
    if chosen.slurm:
        found = measured(
            nodes=chosen.nodes,
            jobs=chosen.jobs,
            rounds=chosen.rounds,
            seed=chosen.seed,
            reader=chosen.reader,
        )
        print(json.dumps(found, indent=2) if chosen.json else table(found))
        return 0
    profile = cProfile.Profile() if chosen.profile else None
    config = Config(mode="act", policy=chosen.policy, round=ROUND, seed=chosen.seed)
    if chosen.curve:
        most = chosen.most or sys.maxsize
        sizes = [(nodes, jobs) for nodes, jobs in CURVES[chosen.curve] if nodes <= most]
        for line in curve(sizes, partial(_of_size, rounds=chosen.rounds, config=config)):
            print(line, flush=True)
        return 0
    found = _of_size((chosen.nodes, chosen.jobs), chosen.rounds, config, profile)
    print(json.dumps(found, indent=2) if chosen.json else table(found))
    if profile is not None:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(PROFILED)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(PROFILED)
    return 0


def _of_size(
    size: Size, rounds: int, config: Config, profile: cProfile.Profile | None = None
) -> dict[str, object]:
    """The figures of so many rounds on a cluster of this size."""
    nodes, jobs = size
    with tempfile.TemporaryDirectory(prefix="ones-scale-") as folder:
        site = Busy(Path(folder), nodes=nodes, jobs=jobs, config=config)
        for _ in range(WARM):
            site.one_round()
        site.forget_ticks()
        setup, measured_rounds = process_time(), []
        for _ in range(rounds):
            site.cluster.some_change()
            measured_rounds.append(site.one_round(profile))
        found = figures(site, measured_rounds) | {"setup_s": round(setup, 1)}
        site.close()
    return found


def _month(chosen: argparse.Namespace) -> None:
    def told(row: Row) -> None:
        if not chosen.json:
            print(month_line(row), flush=True)

    if not chosen.json:
        print(month_head())
    with tempfile.TemporaryDirectory(prefix="ones-month-") as folder:
        config = Config(
            mode="act",
            policy=chosen.policy,
            round=MONTH_ROUND,
            seed=chosen.seed,
            keep_days=chosen.keep_days,
        )
        rows = month(
            Path(folder),
            nodes=chosen.nodes,
            jobs=chosen.jobs,
            days=chosen.days,
            config=config,
            told=told,
        )
    if chosen.json:
        print(json.dumps(rows, indent=2))


def figures(site: Busy, rounds: Sequence[dict[str, float]]) -> dict[str, object]:
    """What --json prints. Seconds are of CPU, steps are [median, worst]."""
    seconds = [one["round"] for one in rounds]
    snapshot = site.onesd.service.published.snapshot
    held = [job for job in snapshot.jobs.values() if job.gpus_on]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "nodes": site.cluster.nodes,
        "gpus": site.cluster.nodes * GPUS,
        "jobs": len(snapshot.jobs),
        "elastic": len(site.onesd.service.published.jobs),
        "running": len(held),
        "rounds": len(rounds),
        "round_median_s": round(median(seconds), 3),
        "round_worst_s": round(max(seconds), 3),
        "steps": {
            step: [
                round(median(one[step] for one in rounds), 3),
                round(max(one[step] for one in rounds), 3),
            ]
            for step in STEPS
        },
        "tick_median_s": round(median(site.ticks or [0.0]), 3),
        "slurmctld_share": None,  # nobody's: the Slurm is simulated
        "memory_mib": round(peak / 1024),
    }


def table(found: dict[str, object]) -> str:
    """The same as lines of a Markdown table."""
    steps = found["steps"]
    assert isinstance(steps, dict)
    head = ["nodes", "GPUs", "jobs", "elastic", "run", "", "round", *STEPS, "tick", "MiB"]
    name = [f"{found[key]:,}" for key in ("nodes", "gpus", "jobs", "elastic", "running")]
    rows = [
        [
            *name,
            "median",
            f"{found['round_median_s']:.2f}",
            *(f"{steps[step][0]:.2f}" for step in STEPS),
            f"{found.get('tick_median_s', 0.0):.2f}",
            f"{found['memory_mib']:,}",
        ],
        [
            *[""] * len(name),
            "worst",
            f"{found['round_worst_s']:.2f}",
            *(f"{steps[step][1]:.2f}" for step in STEPS),
            "",
            "",
        ],
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
