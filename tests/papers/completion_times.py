"""Average completion times of policies on published workloads, as ratios to the peers' figures.

usage: scripts/benchmark-jct [--processes N] [TABLE ...]

The workloads are not part of this repository: they are looked for in ../shared/data beside it.
Where they come from stands in docs/benchmarks/policies.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import process_time

import numpy as np

from ones.daemon.replay import networks, traces
from ones.daemon.replay.figures import lost_to_moves
from ones.daemon.replay.simulation import Run, World, replay
from ones.daemon.replay.workload import Workload
from ones.estimator.assess import Knowledge
from ones.estimator.experience import Experience
from ones.policies.drl_network import Network
from ones.policies.model import Node
from ones.policies.registry import Site, information, make

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
NETWORK = Path(__file__).resolve().parents[2] / "build" / "drl.json"  # by scripts/train-drl
EVEN = (2, 4, 6, 8)
EXPERIMENTS = (2,)  # workloads that what is changed one at a time is tried on
HOMOGENEOUS = tuple(Node(name=f"n{i:02d}", gpu_type="aws", gpus=4) for i in range(16))
MIXED = (
    *(Node(name=f"aws{i}", gpu_type="aws", gpus=4) for i in range(6)),
    *(Node(name=f"dgx{i}", gpu_type="dgx-ext", gpus=8) for i in range(2)),
    *(Node(name=f"rtx{i}", gpu_type="rtx", gpus=8) for i in range(3)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One replay; `warm` brings the family history of the other workloads."""

    policy: str
    workload: int
    trace: str = "pollux/workloads"
    round_seconds: float = 60.0
    restart_seconds: float = 30.0
    declared: bool = True
    families: bool = True
    warm: bool = False
    seed: int = 0
    jitter: float = 0.0  # seconds, at most, by which every arrival is late
    strictness: float = 0.0  # how far priorities count
    priorities: bool = False  # whether jobs have any: a third of them each of three QOS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a cell came to, in seconds unless named otherwise."""

    mean: float
    median: float
    p99: float
    makespan: float
    resizes: float
    gpu_hours: float
    lost: float  # share of the GPU-hours lost to moves
    decide: float  # CPU seconds a round
    gap: float | None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-jct", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.tables if name not in TABLES]
    if unknown:
        parser.error(f"no table '{unknown[0]}'; choose from: {', '.join(TABLES)}")
    if not SHARED.is_dir():
        print(f"{SHARED} is not there: the published workloads are not part of this repository")
        return 1
    with ProcessPoolExecutor(chosen.processes) as pool:
        for name in chosen.tables or TABLES:
            TABLES[name](pool)
    return 0


def outcome(cell: Cell) -> Outcome:
    experience = Experience()
    if cell.warm:
        for other in EVEN:
            if other != cell.workload:
                run(replace(cell, workload=other, warm=False), experience)
                experience.forget_jobs()
    done = run(cell, experience)
    times = np.array([(job.finished or 0.0) - job.trace.submitted for job in done.jobs])
    gaps = [one.gap for one in done.decisions if one.gap is not None]
    return Outcome(
        mean=float(times.mean()),
        median=float(np.median(times)),
        p99=float(np.percentile(times, 99)),
        makespan=max(job.finished or 0.0 for job in done.jobs),
        resizes=float(np.mean([job.resizes for job in done.jobs])),
        gpu_hours=sum(job.gpu_seconds for job in done.jobs) / 3600,
        lost=lost_to_moves(done.jobs),
        decide=float(np.mean([one.cpu_seconds for one in done.decisions])),
        gap=float(np.mean(gaps)) if gaps else None,
    )


def run(cell: Cell, experience: Experience) -> Run:
    workload = late(read(cell.trace, cell.workload), cell.jitter, cell.seed)
    workload = with_priorities(workload, cell.seed) if cell.priorities else workload
    mixed = cell.trace.startswith("sia")
    own = information(cell.policy) == "own" or not cell.families
    return replay(
        workload,
        make(cell.policy, site=Site(network=network() if cell.policy == "drl" else None)),
        World(
            nodes=MIXED if mixed else HOMOGENEOUS,
            round_seconds=cell.round_seconds,
            restart_seconds=cell.restart_seconds,
            seed=cell.seed,
            strictness=cell.strictness,
        ),
        clock=process_time,
        knowledge=Knowledge(declared=cell.declared, families=not own),
        experience=experience,
        truth=information(cell.policy) == "truth",
    )


@cache
def network() -> Network:
    return networks.read(NETWORK)


@cache
def read(trace: str, number: int) -> Workload:
    world = trace.split("/", maxsplit=1)[0]
    folder = SHARED / trace
    return traces.read(folder / f"workload-{number}.csv", profiles=SHARED / world / "profiles")


def late(workload: Workload, jitter: float, seed: int) -> Workload:
    if not jitter:
        return workload
    delays = np.random.default_rng([seed, 7]).uniform(0.0, jitter, len(workload.jobs))
    jobs = [
        replace(job, submitted=job.submitted + float(delay))
        for job, delay in zip(workload.jobs, delays, strict=True)
    ]
    return Workload(tuple(sorted(jobs, key=lambda job: job.submitted)), workload.nodes)


def with_priorities(workload: Workload, seed: int) -> Workload:
    """The trace with a QOS drawn for each job, and its place in the queue below that."""
    drawn = np.random.default_rng([seed, 11]).integers(3, size=len(workload.jobs))
    jobs = [
        replace(job, priority=int(10000 * qos + len(workload.jobs) - place))
        for place, (job, qos) in enumerate(zip(workload.jobs, drawn, strict=True))
    ]
    return Workload(tuple(jobs), workload.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A peer's own figures on one workload, from its authors' completion time of every job."""

    mean: float
    p99: float
    makespan: float


@cache
def published(peer: str, workload: int, load: str = "1.0") -> Published:
    listed = json.loads((SHARED / "pollux" / f"results-{peer}.json").read_text())
    times = listed["by_load"][load][f"workload-{workload}"]["jct_s"]
    folder = "pollux/workloads" if load == "1.0" else f"pollux/workloads-{load}"
    submitted = {job.name: job.submitted for job in read(folder, workload).jobs}
    each = np.array(list(times.values()))
    return Published(
        mean=float(each.mean()),
        p99=float(np.percentile(each, 99)),
        makespan=max(submitted[name] + time for name, time in times.items()),
    )


def rows_against_pollux(
    pool: ProcessPoolExecutor, cells: Sequence[tuple[str, Cell]], load: str = "1.0"
) -> None:
    """A line a cell: its ratio to Pollux's average on each workload, their mean, and the rest."""
    print(
        "| | " + " | ".join(f"{n}" for n in EVEN) + " | mean | worst p99 | worst makespan"
        " | resizes/job | lost | CPU s/round | gap |\n|---|" + "---|" * (len(EVEN) + 7)
    )
    every = [replace(cell, workload=n) for _, cell in cells for n in EVEN]
    found = iter(pool.map(outcome, every))
    for label, _ in cells:
        got = [next(found) for _ in EVEN]
        peers = [published("pollux", n, load) for n in EVEN]
        pairs = list(zip(got, peers, strict=True))
        ratios = [one.mean / peer.mean for one, peer in pairs]
        gaps = [one.gap for one in got if one.gap is not None]
        print(
            f"| {label} | "
            + " | ".join(f"{ratio:.3f}" for ratio in ratios)
            + f" | **{np.mean(ratios):.3f}**"
            + f" | {max(one.p99 / peer.p99 for one, peer in pairs):.2f}"
            + f" | {max(one.makespan / peer.makespan for one, peer in pairs):.2f}"
            + f" | {np.mean([one.resizes for one in got]):.1f}"
            + f" | {np.mean([one.lost for one in got]):.1%}"
            + f" | {np.mean([one.decide for one in got]):.4f}"
            + f" | {f'{np.mean(gaps):.4f}' if gaps else '-'} |",
            flush=True,
        )


COLD = Cell(policy="ones", workload=0)
LIVE = replace(COLD, round_seconds=20.0, restart_seconds=2.0)
INFORMATION = (
    ("empty database, epochs declared", {}),
    ("empty database, nothing declared", {"declared": False}),
    ("each job's own fit only, declared", {"families": False}),
    ("each job's own fit only, nothing declared", {"families": False, "declared": False}),
    ("family history, declared", {"warm": True}),
    ("family history, nothing declared", {"warm": True, "declared": False}),
    ("true curves (an oracle)", {"policy": "ones-oracle"}),
)


def table_pollux(pool: ProcessPoolExecutor) -> None:
    """What ONES knows, with restarts of 30 s and rounds of 60 s."""
    print("\n### Against Pollux: 64 GPUs, 60 s rounds, 30 s restarts\n")
    rows_against_pollux(pool, [(name, replace(COLD, **change)) for name, change in INFORMATION])


def table_live(pool: ProcessPoolExecutor) -> None:
    """The same with resizes that cost 2 s."""
    print("\n### With live resizes: 64 GPUs, 20 s rounds, 2 s resizes\n")
    rows_against_pollux(pool, [(name, replace(LIVE, **change)) for name, change in INFORMATION])


def table_loads(pool: ProcessPoolExecutor) -> None:
    """Other loads, against Pollux's shipped figures at the same load."""
    for load in ("0.5", "1.5", "2.0"):
        print(f"\n### Load {load}\n")
        cell = replace(COLD, trace=f"pollux/workloads-{load}")
        rows_against_pollux(pool, [("empty database, declared", cell)], load)


def table_realistic(pool: ProcessPoolExecutor) -> None:
    """GPUs as the users of the original trace asked for.

    Pollux looks at neither the GPUs nor the batch that a job asks for, and the rest is the same.
    """
    print("\n### Realistic requests, against Pollux on the same jobs\n")
    cell = replace(COLD, trace="pollux/workloads-realistic")
    policies = ("ones", "tiresias", "shockwave", "optimus-oracle", "slurm", "fifo")
    rows_against_pollux(pool, [(policy, replace(cell, policy=policy)) for policy in policies])


STRICTNESS = (0.0, 0.5, 0.8, 1.0)


def table_order(pool: ProcessPoolExecutor) -> None:
    """What Slurm's order within a tier costs all jobs, and gains those that it puts first."""
    print("\n### Strictness: completion by QOS, as ratios to strictness 0\n")
    print("| workload, strictness | all | first QOS | second | third | p99 of all | CPU s/round |")
    print("|---|---|---|---|---|---|---|")
    for number in (2, 6):
        cell = replace(COLD, trace="pollux/workloads-realistic", workload=number, priorities=True)
        cells = [replace(cell, strictness=strictness) for strictness in STRICTNESS]
        first: list[float] = []
        for strictness, row in zip(STRICTNESS, pool.map(by_qos, cells), strict=True):
            first = first or row
            ratios = [one / base for one, base in zip(row[:-1], first[:-1], strict=True)]
            listed = " | ".join(f"{ratio:.3f}" for ratio in ratios)
            print(f"| {number}, {strictness:g} | {listed} | {row[-1]:.3f} |", flush=True)


def by_qos(cell: Cell) -> list[float]:
    """Mean completion of all jobs and of each QOS, the first first; p99; CPU seconds a round."""
    done = run(cell, Experience())
    times = np.array([(job.finished or 0.0) - job.trace.submitted for job in done.jobs])
    qos = np.array([job.trace.priority // 10000 for job in done.jobs])
    means = [float(times[qos == which].mean()) for which in (2, 1, 0)]
    cost = float(np.mean([one.cpu_seconds for one in done.decisions]))
    return [float(times.mean()), *means, float(np.percentile(times, 99)), cost]


def table_peers(pool: ProcessPoolExecutor) -> None:
    """Our peers against their authors' figures: the proof that the world is theirs."""
    print("\n### Peers, ours / published average\n")
    print("| | " + " | ".join(map(str, EVEN)) + " | mean |\n|---|" + "---|" * (len(EVEN) + 1))
    peers = {"tiresias": "tiresias", "optimus-oracle": "optimus", "pollux": "pollux"}
    every = [replace(COLD, policy=ours, workload=n) for ours in peers for n in EVEN]
    found = iter(pool.map(outcome, every))
    for ours, theirs in peers.items():
        ratios = [next(found).mean / published(theirs, n).mean for n in EVEN]
        listed = " | ".join(f"{ratio:.4f}" for ratio in ratios)
        print(f"| {ours} | {listed} | {np.mean(ratios):.4f} |", flush=True)


def table_sia(pool: ProcessPoolExecutor) -> None:
    """Sia's heterogeneous cluster and workloads."""
    for name in ("philly", "saturn"):
        print(f"\n### Sia's mixed cluster, {name}: average completion time in seconds\n")
        seconds_table(pool, ("ones", "sia", "pollux", "srtf"), f"sia/workloads/{name}")


PAPER_CUTS = {"tiresias": 45.6, "optimus": 41.7, "drl": 26.9}  # of the average completion, in %
CODE_CUTS = {"tiresias": 57.4, "optimus": 52.8, "drl": 39.5}
"""Of the averages that the authors' repository has: 214 s; Tiresias 502 s, Optimus 453 s, the
reinforcement learner 354 s."""
PEERS = {"tiresias": "tiresias", "optimus": "optimus-oracle"}


def table_published(pool: ProcessPoolExecutor) -> None:
    """ONES by its authors' code, beside the paper's cuts against Tiresias and Optimus by their own
    figures, and against a reinforcement learner in the same world."""
    print("\n### ONES as published, live resizes; cut of the average completion time\n")
    print("| | paper | its code's results | " + " | ".join(map(str, EVEN)) + " | mean |")
    print("|---|---|---|" + "---|" * (len(EVEN) + 1))
    policies = ("ones-sc21", "ones", *(["drl"] if NETWORK.exists() else []))
    cells = [replace(LIVE, policy=p, workload=n) for p in policies for n in EVEN]
    found = iter(pool.map(outcome, cells))
    means = {policy: [next(found).mean for _ in EVEN] for policy in policies}
    theirs = {peer: [published(peer, n).mean for n in EVEN] for peer in PEERS}
    if "drl" in means:
        theirs["drl"] = means["drl"]
    for policy in policies:
        for peer, their in theirs.items():
            if peer == policy:
                continue
            cuts = [_cut(one, other) for one, other in zip(means[policy], their, strict=True)]
            listed = " | ".join(f"{cut:.1f} %" for cut in cuts)
            print(
                f"| {policy} against {peer} | {_claim(PAPER_CUTS, policy, peer)}"
                f" | {_claim(CODE_CUTS, policy, peer)} | {listed} | **{np.mean(cuts):.1f} %** |",
                flush=True,
            )

    if "drl" not in means:
        print(f"\nno reinforcement learner: there is no {NETWORK}; make it with scripts/train-drl")


def _claim(cuts: Mapping[str, float], policy: str, peer: str) -> str:
    """What was claimed of ONES against that peer; of others nothing was."""
    return f"{cuts[peer]} %" if policy.startswith("ones") else ""


def _cut(ours: float, theirs: float) -> float:
    return 100 * (1 - ours / theirs)


SC21 = replace(LIVE, policy="ones-sc21")
CHANGES: tuple[tuple[str, Cell], ...] = (
    ("as its code", SC21),
    (
        "who hasn't changed starts no new epoch",
        replace(SC21, policy="ones-sc21:epoch_rule=changed"),
    ),
    ("no job bars a change", replace(SC21, policy="ones-sc21:epoch_rule=none")),
    ("the limit starts at what was asked for", replace(SC21, policy="ones-sc21:start=request")),
    ("the limit doubles every epoch", replace(SC21, policy="ones-sc21:growth_epochs=1")),
    ("batches of 4 GPUs at most, not 16", replace(SC21, policy="ones-sc21:most_scale=4")),
    ("resizes of 30 s, rounds of 60 s", replace(SC21, round_seconds=60.0, restart_seconds=30.0)),
    ("half the load", replace(SC21, trace="pollux/workloads-0.5")),
    ("lengths not declared", replace(SC21, declared=False)),
)
"""What may keep the paper's cuts from coming out, one thing at a time."""


def table_experiments(pool: ProcessPoolExecutor) -> None:
    """ONES as published with one thing changed; peers are charged alike, in the same world."""
    for number in EXPERIMENTS:
        print(f"\n### ONES as published, one thing changed at a time: workload {number}\n")
        print(
            "| | mean | median | p99 | GPU-hours | resizes/job | Tiresias | cut | Optimus | cut |"
        )
        print("|---" * 10 + "|")
        cells = [replace(cell, workload=number) for _, cell in CHANGES]
        worlds = [replace(cell, policy=peer) for cell in cells for peer in PEERS.values()]
        different = list(dict.fromkeys(replace(cell, declared=True) for cell in worlds))
        wanted = [*cells, *different]
        found = dict(zip(wanted, pool.map(outcome, wanted), strict=True))
        for label, cell in CHANGES:
            ours = replace(cell, workload=number)
            got = found[ours]
            peers = [found[replace(ours, policy=p, declared=True)].mean for p in PEERS.values()]
            against = " | ".join(f"{one:.0f} | {_cut(got.mean, one):.1f} %" for one in peers)
            print(
                f"| {label} | {got.mean:.0f} | {got.median:.0f} | {got.p99:.0f}"
                f" | {got.gpu_hours:.0f} | {got.resizes:.1f} | {against} |",
                flush=True,
            )


BEFORE = "first_come=0:fairness=0:rank_share=0.6:rank_power=0.65"  # the score of decision 6
ABLATION = (
    ("all of it", ""),
    ("no evolution (knapsack alone)", "generations=0"),
    ("no knapsack (evolution alone)", "exact=false"),
    ("throughput instead of goodput", "goodput=false"),
    ("the paper's batch limits for every job", "batch_limits=true"),
    ("restarts left out of the score", "charge_restarts=false"),
    ("restarts charged over a fixed 300 s", "horizon=300"),
    ("nobody's turn: by size alone, whatever it rests on", "first_come=0"),
    ("however late a job is", "fairness=0"),
    ("neither, and the weights of before", BEFORE),
    ("exponent 0: no preference for short jobs", "exponent=0:rank_share=0:fairness=0"),
    ("weights by work alone, q = 0.5", "exponent=0.5:rank_share=0"),
    ("weights by work alone, q = 1", "exponent=1:rank_share=0"),
    ("weights by rank alone", "exponent=0:rank_share=1"),
    ("the paper's score (SRUF)", "objective=sruf"),
)


def table_ablation(pool: ProcessPoolExecutor) -> None:
    """What each addition buys, from an empty database with declared epochs."""
    print("\n### Ablation: empty database, declared epochs, 60 s rounds, 30 s restarts\n")
    cells = [
        (label, replace(COLD, policy=f"ones:{change}" if change else "ones"))
        for label, change in ABLATION
    ]
    rows_against_pollux(pool, cells)


WEIGHTS = (  # exponent, rank_share, rank_power; the default first
    (0.2, 0.5, 0.5),
    (0.2, 0.6, 0.5),
    (0.2, 0.6, 0.65),
    (0.1, 0.75, 0.5),
    (0.2, 0.75, 0.7),
    (0.3, 0.75, 0.7),
    (0.3, 1.0, 0.7),
)


def table_tail(pool: ProcessPoolExecutor) -> None:
    """The weights that trade the mean for the tail, with what is known, and what a resize costs."""
    for title, cell in (
        ("empty database", COLD),
        ("family history", replace(COLD, warm=True)),
        ("empty database, live resizes", LIVE),
    ):
        print(f"\n### exponent, rank_share, rank_power: {title}\n")
        cells = [
            (
                f"{exponent:g}, {share:g}, {power:g}",
                replace(
                    cell, policy=f"ones:exponent={exponent}:rank_share={share}:rank_power={power}"
                ),
            )
            for exponent, share, power in WEIGHTS
        ]
        rows_against_pollux(pool, cells)


CANDIDATES = (
    BEFORE,
    "",
    "fairness=0",
    "first_come=0",
    "fairness=0.5",
    "rank_share=0.6",
    "exponent=0.1:rank_share=0.75",
)


def table_left_out(pool: ProcessPoolExecutor) -> None:
    """The settings that are best on the others of the workloads, tried on the one left out."""
    print("\n### Settings chosen on three workloads, tried on the fourth\n")
    print("| | left out | chosen on the others | before | after | p99 | makespan |")
    print("|---|---|---|---|---|---|---|")
    for label, change in INFORMATION[:2]:
        cells = [
            replace(COLD, policy=f"ones:{one}" if one else "ones", workload=n, **change)
            for one in CANDIDATES
            for n in EVEN
        ]
        found = iter(pool.map(outcome, cells))
        got = {one: {n: next(found) for n in EVEN} for one in CANDIDATES}
        for out in EVEN:
            best = min(CANDIDATES, key=lambda one: _mean_but(got[one], out))
            peer, after = published("pollux", out), got[best][out]
            print(
                f"| {label} | {out} | {best or 'the defaults'}"
                f" | {got[BEFORE][out].mean / peer.mean:.3f} | {after.mean / peer.mean:.3f}"
                f" | {after.p99 / peer.p99:.2f} | {after.makespan / peer.makespan:.2f} |",
                flush=True,
            )


def _mean_but(found: Mapping[int, Outcome], out: int) -> float:
    """The mean ratio to Pollux's average on all workloads but one."""
    ratios = [one.mean / published("pollux", n).mean for n, one in found.items() if n != out]
    return float(np.mean(ratios))


def table_spread(pool: ProcessPoolExecutor) -> None:
    """Seeds of the search, and arrivals late by up to a minute."""
    print("\n### Spread over seeds, and over arrivals jittered by up to a minute\n")
    cells = [(f"seed {seed}", replace(COLD, seed=seed)) for seed in (1, 2, 3)]
    cells += [(f"jitter {seed}", replace(COLD, seed=seed, jitter=60.0)) for seed in (1, 2, 3, 4, 5)]
    cells += [(f"live, jitter {n}", replace(LIVE, seed=n, jitter=60.0)) for n in (1, 2, 3, 4, 5)]
    rows_against_pollux(pool, cells)


def seconds_table(pool: ProcessPoolExecutor, policies: Sequence[str], trace: str) -> None:
    print(
        "| | " + " | ".join(map(str, EVEN)) + " | mean | p99 | makespan | resizes/job"
        " | CPU s/round |\n|---|" + "---|" * (len(EVEN) + 5)
    )
    every = [replace(COLD, policy=one, workload=n, trace=trace) for one in policies for n in EVEN]
    found = iter(pool.map(outcome, every))
    for policy in policies:
        got = [next(found) for _ in EVEN]
        print(
            f"| {policy} | "
            + " | ".join(f"{one.mean:.0f}" for one in got)
            + f" | **{np.mean([one.mean for one in got]):.0f}**"
            + f" | {np.mean([one.p99 for one in got]):.0f}"
            + f" | {np.mean([one.makespan for one in got]):.0f}"
            + f" | {np.mean([one.resizes for one in got]):.1f}"
            + f" | {np.mean([one.decide for one in got]):.4f} |",
            flush=True,
        )


TABLES = {
    "pollux": table_pollux,
    "live": table_live,
    "peers": table_peers,
    "loads": table_loads,
    "realistic": table_realistic,
    "sia": table_sia,
    "published": table_published,
    "experiments": table_experiments,
    "ablation": table_ablation,
    "tail": table_tail,
    "left-out": table_left_out,
    "spread": table_spread,
    "order": table_order,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
