"""Gavel's policies over rounds, each beside the form of it that doesn't know the GPU types.

usage: scripts/benchmark-gavel-traces [pairs] [load] [--trace NAME|generated] [--jobs N]
           [--load L ...] [--restart-cost S ...] [--policy NAME ...] [--learning] [--single]
           [--longest HOURS] [--cluster V100:P100:K80] [--seed N]

`pairs` prints every policy on one trace, `load` the ratio of average completion times over load.
The cluster is Gavel's: 36 V100s, 36 P100s and 36 K80s, four in a node, rounds of 360 s. A trace's
arrivals are stretched to the load asked for: the GPU-hours of all its jobs on V100s, over those of
all GPUs in the time in which they arrive; a load of `inf` has all jobs there at the start.
`generated` draws jobs by the rules of Gavel's own generator, arrivals by a Poisson process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import inf
from pathlib import Path
from time import process_time

import numpy as np

from ones.daemon.replay import gavel
from ones.daemon.replay.figures import Figures
from ones.daemon.replay.simulation import Run, World, replay
from ones.daemon.replay.workload import TraceJob, Workload
from ones.policies.model import Node
from ones.policies.registry import information, make

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "gavel"
PRICES = {"v100": 0.74, "p100": 0.43, "k80": 0.135}  # USD for a GPU and hour, preemptible
ROUND = 360.0
CLUSTER = (36, 36, 36)  # GPUs of each type
SERVER = 4  # GPUs
DRAWN = 4  # jobs for each that is taken
GANGS = {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}  # Gavel's generator: Microsoft's mix
ORACLE, LEARNING = "gavel-oracle:", "gavel:"
LOADS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.3)
PAIRS = {  # agnostic: heterogeneity-aware
    "max_min_fairness": "max_min_fairness_perf",
    "max_min_fairness_water_filling": "max_min_fairness_water_filling_perf",
    "min_total_duration": "min_total_duration_perf",
    "finish_time_fairness": "finish_time_fairness_perf",
    "max_sum_throughput": "max_sum_throughput_perf",
    "max_sum_throughput_normalized_by_cost": "max_sum_throughput_normalized_by_cost_perf",
    "proportional_fairness": "proportional_fairness_perf",
    "fifo": "fifo_perf",
    "shortest_job_first": "shortest_job_first_perf",
}
ALONE = ("isolated",)
SINGLE = ("allox",)  # serve jobs of one GPU only


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    policy: str  # of Gavel's names, or one of the registry with a colon
    trace: str = "seed0_0e4a51"
    jobs: int = 300
    load: float = 0.7
    restart_seconds: float = 0.0
    single: bool = False  # jobs of one GPU only
    longest: float = inf  # hours on V100s: longer jobs are left out
    cluster: tuple[int, ...] = CLUSTER
    seed: int = 0

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(name=f"{kind}-{number}", gpu_type=kind, gpus=SERVER)
            for kind, gpus in zip(PRICES, self.cluster, strict=True)
            for number in range(gpus // SERVER)
        )


def workload(cell: Cell) -> Workload:
    """The first jobs of a trace, their arrivals stretched to the load."""
    if cell.trace == "generated":
        found = _generated(cell.seed, DRAWN * cell.jobs)
    else:
        found = _recorded(cell.trace)
    jobs = list(islice((job for job in found if _wanted(job, cell)), cell.jobs))
    start, end = jobs[0].submitted, jobs[-1].submitted
    hours = sum(gpu_hours(job) for job in jobs)
    wanted = hours * 3600 / (sum(cell.cluster) * cell.load)
    stretch = wanted / (end - start) if end > start else 0.0
    return Workload(
        tuple(replace(job, submitted=(job.submitted - start) * stretch) for job in jobs)
    )


def _wanted(job: TraceJob, cell: Cell) -> bool:
    if cell.single and job.requested > 1:
        return False
    return cell.longest == inf or gpu_hours(job) <= cell.longest * job.requested


def gpu_hours(job: TraceJob) -> float:
    """On V100s, the job's own way of being placed there included."""
    wide, rest = divmod(job.requested, SERVER)
    counts = [SERVER] * wide + [rest] * (rest > 0)
    application = job.application
    batch = application.batches.submitted if application.batches else job.requested
    step = application.step("v100", tuple(counts), batch // job.requested).seconds
    return float(application.epochs[-1]) * step * job.requested / 3600


@cache
def _recorded(trace: str) -> tuple[TraceJob, ...]:
    path = next(SHARED.glob(f"traces/*/{trace}.trace"))
    return tuple(job for _, job in gavel.jobs(path, path.read_text(), SHARED, _ignore))


@cache
def _generated(seed: int, count: int) -> tuple[TraceJob, ...]:
    """By the rules of Gavel's generator; arrivals one a second on average, to be stretched."""
    rng = np.random.default_rng(seed)
    rates = gavel.throughputs(SHARED / gavel.FILE)
    kinds = {gpus: sorted(name for name, size in rates if size == gpus) for gpus in GANGS}
    lines, at = [], 0.0
    for _ in range(count):
        gpus = int(rng.choice(list(GANGS), p=list(GANGS.values())))
        kind = str(rng.choice(kinds[gpus]))
        minutes = 10 ** (rng.uniform(1.5, 3.0) if rng.random() < 0.8 else rng.uniform(3.0, 4.0))
        steps = max(1, round(60.0 * minutes * rates[kind, gpus]["v100"]))
        lines.append(f"{kind}\t-\t-\t0\t{steps}\t{at:.3f}\t{gpus}")
        at += rng.exponential()
    text = "\n".join(lines) + "\n"
    return tuple(job for _, job in gavel.jobs(Path("generated"), text, SHARED, _ignore))


def _ignore(_: str) -> None:
    """Notes on wide jobs are of no interest here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cell came to, and the CPU seconds of the whole replay."""

    figures: Figures
    seconds: float


def run(cell: Cell, *, families: str = ORACLE) -> Run:
    """The cell's replay."""
    name = cell.policy if ":" in cell.policy else families + cell.policy
    if "by_cost" in name:
        name += ":prices=" + "+".join(f"{kind}={price}" for kind, price in PRICES.items())
    return replay(
        workload(cell),
        make(name),
        World(
            nodes=cell.nodes,
            round_seconds=ROUND,
            restart_seconds=cell.restart_seconds,
            seed=cell.seed,
            prices=PRICES,
        ),
        clock=float,  # nobody asks what a round costs
        truth=information(name) == "truth",
    )


def outcome(cell: Cell, *, families: str = ORACLE) -> Outcome:
    """The cell's figures."""
    began = process_time()
    done = run(cell, families=families)
    return Outcome(Figures.of(done), process_time() - began)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/benchmark-gavel-traces",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("tables", nargs="*", default=[], metavar="TABLE")
    parser.add_argument("--trace", nargs="+", default=["seed0_0e4a51"])
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--load", type=float, nargs="+")
    parser.add_argument("--restart-cost", type=float, nargs="+", default=[0.0, 30.0])
    parser.add_argument("--policy", nargs="+", default=[*PAIRS])
    parser.add_argument("--learning", action="store_true", help="speeds and lengths are learnt")
    parser.add_argument("--cluster", default=":".join(map(str, CLUSTER)), help="GPUs by type")
    parser.add_argument("--longest", type=float, default=inf, metavar="HOURS")
    parser.add_argument("--single", action="store_true", help="jobs of one GPU only")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if unknown := set(given.tables) - {"pairs", "load"}:
        parser.error(f"no table {', '.join(sorted(unknown))}; there are pairs and load")
    families = LEARNING if given.learning else ORACLE
    tables = given.tables or ["pairs", "load"]
    for trace in given.trace:
        for cost in given.restart_cost:
            cell = Cell(
                policy="",
                trace=trace,
                jobs=given.jobs,
                restart_seconds=cost,
                single=given.single,
                longest=given.longest,
                cluster=tuple(int(gpus) for gpus in given.cluster.split(":")),
                seed=given.seed,
            )
            if "pairs" in tables:
                for load in given.load or [0.7]:
                    _print_pairs(replace(cell, load=load), given.policy, families)
            if "load" in tables:
                _print_loads(cell, given.policy, given.load or LOADS, families)
    return 0


def _print_pairs(cell: Cell, policies: Sequence[str], families: str) -> None:
    print(f"\n{_what(cell)}, load {cell.load:g}")
    heads = "avg JCT h", "ratio", "p99 h", "makespan h", "ratio", "in use", "USD", "ratio", "CPU s"
    print(f"| policy | {' | '.join(heads)} |")
    print("|---" * (len(heads) + 1) + "|")
    alone = [*ALONE, *(SINGLE if cell.single else ())] if len(policies) > 1 else []
    for policy in [*policies, *alone]:
        first = outcome(replace(cell, policy=policy), families=families)
        print(_line(policy, first.figures, None, first.seconds), flush=True)
        if policy in PAIRS:
            aware = PAIRS[policy]
            second = outcome(replace(cell, policy=aware), families=families)
            print(_line(aware, second.figures, first.figures, second.seconds), flush=True)


def _line(policy: str, one: Figures, other: Figures | None, seconds: float) -> str:
    def ratio(name: str) -> str:
        if other is None:
            return ""
        return f"{getattr(other, name) / getattr(one, name):.2f}"

    return (
        f"| `{policy}` | {one.average_jct_s / 3600:.2f} | {ratio('average_jct_s')}"
        f" | {one.p99_jct_s / 3600:.1f} | {one.makespan_s / 3600:.1f} | {ratio('makespan_s')}"
        f" | {one.utilisation:.0%} | {one.cost or 0.0:.0f} | {ratio('cost')} | {seconds:.1f} |"
    )


def _print_loads(
    cell: Cell, policies: Sequence[str], loads: Sequence[float], families: str
) -> None:
    """Average completion time of the agnostic form over that of the aware one."""
    print(f"\n{_what(cell)}: agnostic over aware average JCT, by load")
    print(f"| policy | {' | '.join(f'{load:g}' for load in loads)} | best |")
    print("|---" * (len(loads) + 2) + "|")
    for policy in policies:
        ratios = {}
        for load in loads:
            pair = [
                outcome(replace(cell, policy=name, load=load), families=families)
                for name in (policy, PAIRS[policy])
            ]
            ratios[load] = pair[0].figures.average_jct_s / pair[1].figures.average_jct_s
        best = max(ratios, key=ratios.__getitem__)
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios.values())
        print(f"| `{policy}` | {cells} | {ratios[best]:.2f} at {best:g} |", flush=True)


def _what(cell: Cell) -> str:
    kind = "single-GPU jobs" if cell.single else "jobs"
    kind += f" of up to {cell.longest:g} h" if cell.longest < inf else ""
    gpus = ":".join(map(str, cell.cluster))
    return f"{cell.trace}, {cell.jobs} {kind} on {gpus}, restarts of {cell.restart_seconds:g} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
