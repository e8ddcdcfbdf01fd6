"""What placements cost on the network, against the exact least, and what they cost jobs.

usage: scripts/benchmark-placement [--seeds N] [TABLE ...]   tables: exact large starts replay
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from time import process_time

import numpy as np
from placement_world import Outcome, Setting, replayed, tree

from ones.policies.model import Ints, Shape
from ones.policies.network.cost import network_cost, score
from ones.policies.network.exact import NoPlacement, exact
from ones.policies.network.gangs import NOWHERE, Batch, Gang, faults
from ones.policies.network.grouping import Genetics, grouping
from ones.policies.network.improve import improved
from ones.policies.network.placers import PLACERS, Placing
from ones.policies.network.subtree import packed, subtree, worth
from ones.policies.network.topology import Topology
from ones.policies.placement import Room

BANDWIDTHS = (1.0, 2.0, 8.0)
SECONDS_OF_EXACT = 60.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-placement", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--seeds", type=int, default=5, help="of large and replay")
    parser.add_argument("--cases", type=int, default=50, help="of exact")
    parser.add_argument("--processes", type=int, default=1)
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.tables if name not in TABLES]
    if unknown:
        parser.error(f"no table '{unknown[0]}'; choose from: {', '.join(TABLES)}")
    for name in chosen.tables or TABLES:
        TABLES[name](chosen)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of random case."""

    jobs: int
    nodes: int
    gpus: int = 4
    leaf: int
    domain: int
    mixed: bool = False  # beside 1 server + 2 workers: all-reduces of 2-8 tasks, or 2-4 of 2 GPUs
    free: float = 1.3  # GPUs for each that is needed

    def case(self, seed: int) -> Batch:
        """Nodes partly busy at random, with room for all gangs in some way."""
        rng = np.random.default_rng([seed, self.jobs, self.nodes])
        topology = Topology.of(tree(self.nodes, gpus=self.gpus, leaf=self.leaf, domain=self.domain))
        while True:
            gangs = tuple(self._gang(rng) for _ in range(self.jobs))
            wanted = sum(gang.gpus for gang in gangs)
            if wanted > 0.85 * self.nodes * self.gpus:
                continue
            slots = np.repeat(np.arange(self.nodes), self.gpus)
            kept = rng.permutation(slots)[: max(wanted, round(self.free * wanted))]
            free = np.bincount(kept, minlength=self.nodes)
            # Tasks need 1 GPU or 2 of a node, so this is all that it takes to seat them.
            if sum(gang.tasks.count(2) for gang in gangs) <= (free // 2).sum():
                return Batch(topology, free, gangs)

    def _gang(self, rng: np.random.Generator) -> Gang:
        bandwidth = float(rng.choice(BANDWIDTHS))
        kind = rng.random() if self.mixed else 0.0
        if kind < 0.35:
            return Gang(tasks=(1, 1, 1), servers=1, bandwidth=bandwidth)
        if kind < 0.85:
            return Gang(tasks=(1,) * int(rng.integers(2, 9)), bandwidth=bandwidth)
        return Gang(tasks=(2,) * int(rng.integers(2, 5)), bandwidth=bandwidth)


SMALL = (
    ("1 server + 2 workers", Kind(jobs=4, nodes=8, leaf=2, domain=4)),
    ("mixed gangs, tight", Kind(jobs=4, nodes=8, leaf=4, domain=8, mixed=True, free=1.1)),
)
LARGE = (
    Kind(jobs=20, nodes=32, leaf=8, domain=16),
    Kind(jobs=60, nodes=100, leaf=10, domain=50),
    Kind(jobs=1000, nodes=2000, leaf=20, domain=200),
)
WAYS: Mapping[str, Placing] = {
    "random": PLACERS["random"],
    "spread": PLACERS["spread"],
    "pack": PLACERS["pack"],
    "Slurm's tree plugin": PLACERS["slurm"],
    "best fit (Liquid, immediate)": PLACERS["best-fit"],
    "grouping GA (Liquid, batch)": PLACERS["grouping"],
    "grouping GA, seeded with best fit": PLACERS["grouping-mixed"],
    "subtree, as they come": PLACERS["subtree-immediate"],
    "subtree, most bandwidth first": lambda batch, _: subtree(batch),
    "subtree, best of five orders": lambda batch, _: packed(batch),
    "grouping GA, seeded with subtree": PLACERS["grouping-subtree"],
}
WORK_OF_LARGE = 6_000_000
SHAPES = (Shape(1, 2), Shape(1, 4), Shape(2, 2), Shape(2, 4), Shape(4, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """How a placement came out."""

    score: float
    left_out: int  # tasks
    seconds: float


def tried(batch: Batch, way: Placing, *, seed: int = 0) -> Placed:
    begun = process_time()
    sites = way(batch, np.random.default_rng(seed))
    seconds = process_time() - begun
    wrong = list(faults(batch, sites))
    if wrong:
        raise RuntimeError(wrong[0])
    return Placed(
        score=float(score(batch, sites)),
        left_out=int((sites == NOWHERE).sum()),
        seconds=seconds,
    )


def against_exact(kind: Kind, cases: int) -> dict[str, list[float]]:
    """Each way's ratio to the least score there is, case by case; nan where it left gangs out."""
    ratios: dict[str, list[float]] = {name: [] for name in WAYS}
    ratios["exact, seconds"] = []
    for seed in range(cases):
        batch = kind.case(seed)
        begun = process_time()
        try:
            _, least = exact(batch, seconds=SECONDS_OF_EXACT)
        except NoPlacement as fault:
            print(f"case {seed}: {fault}", file=sys.stderr)
            continue
        ratios["exact, seconds"].append(process_time() - begun)
        for name, way in WAYS.items():
            found = tried(batch, way, seed=seed)
            ratios[name].append(found.score / least if not found.left_out else np.nan)
    return ratios


def table_exact(chosen: argparse.Namespace) -> None:
    for label, kind in SMALL:
        found = against_exact(kind, chosen.cases)
        seconds = found.pop("exact, seconds")
        print(
            f"\n### Against the exact least: {label}, {kind.jobs} jobs on {kind.nodes} nodes of"
            f" {kind.gpus} GPUs, {len(seconds)} cases, the exact one in {fmean(seconds):.2f} s\n"
        )
        print(
            "| | median ratio | mean | worst | exact | left a gang out |\n|---|---|---|---|---|---|"
        )
        for name, ratios in found.items():
            all_in = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
            print(
                f"| {name} | {np.median(all_in):.3f} | {all_in.mean():.3f} | {all_in.max():.2f}"
                f" | {(all_in < 1 + 1e-6).sum()}/{len(ratios)} | {len(ratios) - len(all_in)} |",
                flush=True,
            )


def table_large(chosen: argparse.Namespace) -> None:
    for mixed in (False, True):
        kinds = [replace(kind, mixed=True, free=1.15) if mixed else kind for kind in LARGE]
        print(
            "\n### Score and CPU seconds, "
            + ("gangs of 2-8 GPUs of all kinds" if mixed else "1 server + 2 workers")
            + f", mean of {chosen.seeds} (of the genetic ones at 1,000: one)\n"
        )
        sizes = [f"{kind.jobs:,} jobs, {kind.nodes:,} nodes" for kind in kinds]
        print("| | " + " | ".join(sizes) + " |\n|---|" + "---|" * len(sizes))
        cases = [[kind.case(seed) for seed in range(chosen.seeds)] for kind in kinds]
        for name, way in WAYS.items():
            cells = []
            for batches in cases:
                huge = "GA" in name and len(batches[0].gangs) > 100
                found = [
                    tried(batch, _bounded(name) if "GA" in name else way, seed=seed)
                    for seed, batch in enumerate(batches[:1] if huge else batches)
                ]
                left = sum(one.left_out for one in found)
                cells.append(
                    f"{fmean(one.score for one in found):,.1f}"
                    f" ({fmean(one.seconds for one in found):.3f} s)"
                    + (f", {left} tasks left out" if left else "")
                )
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def _bounded(name: str) -> Placing:
    seeds = "subtree" if "subtree" in name else "best-fit" if "best" in name else "none"
    return lambda batch, rng: grouping(batch, rng, Genetics(seeds=seeds, work=WORK_OF_LARGE))


def table_starts(chosen: argparse.Namespace) -> None:
    """What a round's starts cost as the room of all policies seats them, and seated anew."""
    print(
        "\n### A round's starts in whole shapes, until 4 of 5 free GPUs are taken: network cost"
        f" and CPU seconds, mean of {chosen.seeds}\n"
    )
    sizes = [f"up to {kind.jobs:,} jobs, {kind.nodes:,} nodes" for kind in LARGE]
    print("| | " + " | ".join(sizes) + " |\n|---|" + "---|" * len(sizes))
    found = [[_starts(kind, seed) for seed in range(chosen.seeds)] for kind in LARGE]
    for name in found[0][0]:
        cells = []
        for outcomes in found:
            some = [outcome[name] for outcome in outcomes]
            left = sum(one.left_out for one in some)
            cells.append(
                f"{fmean(one.score for one in some):,.1f}"
                f" ({fmean(one.seconds for one in some):.3f} s)"
                + (f", {left} tasks left out" if left else "")
            )
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def _starts(kind: Kind, seed: int) -> dict[str, Placed]:
    rng = np.random.default_rng([seed, kind.nodes, 5])
    nodes = tree(kind.nodes, gpus=kind.gpus, leaf=kind.leaf, domain=kind.domain)
    busy = rng.choice([0, 0, 2, 3], size=kind.nodes)
    nodes = tuple(replace(node, taken=int(n)) for node, n in zip(nodes, busy, strict=True))
    names = frozenset(node.name for node in nodes)
    topology = Topology.of(nodes)
    room = Room.of(nodes)
    free = np.array([room.free[node.name] for node in topology.nodes])
    gangs: list[Gang] = []
    sites: list[int] = []
    begun = process_time()
    while len(gangs) < kind.jobs and room.gpus > 0.2 * free.sum():
        shape = SHAPES[rng.integers(len(SHAPES))]
        bandwidth = float(rng.choice(BANDWIDTHS))
        placement = room.place(shape, names)
        if placement is None:
            break
        room.take(placement)
        sites += [topology.index[name] for name in placement.nodes]
        gangs.append(
            Gang(tasks=(shape.gpus_per_node,) * shape.nodes, bandwidth=bandwidth, apart=True)
        )
    seconds = process_time() - begun
    batch = Batch(topology, free, tuple(gangs))
    present = np.array(sites)
    begun = process_time()
    anew = min((improved(batch, present), packed(batch)), key=lambda one: worth(batch, one))
    took = process_time() - begun
    by_slurm = PLACERS["slurm"](batch, rng)
    return {
        "Slurm's tree plugin": _of(batch, by_slurm, process_time() - begun - took),
        "the room of all policies, job by job": _of(batch, present, seconds),
        "seated anew, all together": _of(batch, anew, took),
    }


def _of(batch: Batch, sites: Ints, seconds: float) -> Placed:
    return Placed(
        score=float(network_cost(batch, sites).sum()),
        left_out=int((sites == NOWHERE).sum()),
        seconds=seconds,
    )


BASELINES = ("random", "spread", "pack", "slurm")
REPLAYED = {
    **{name: f"liquid:placement={name}:mode=immediate" for name in BASELINES},
    "best fit (Liquid, immediate)": "liquid:placement=best-fit:mode=immediate",
    "grouping GA (Liquid, batch)": "liquid:placement=grouping",
    "subtree, immediate": "liquid:mode=immediate",
    "subtree, batch (liquid)": "liquid",
    "fifo, the same room as all policies": "fifo",
}
NETWORKS = (
    ("as measured on one switch", (1.0,), (0.7, 0.95)),
    ("switches further up 2 and 4 times as dear", (1.0, 2.0, 4.0), (0.95,)),
)


def table_replay(chosen: argparse.Namespace) -> None:
    for label, factors, loads in NETWORKS:
        for load in loads:
            print(
                f"\n### Replays: {label}, load {load}; 200 jobs on 32 nodes of 4 GPUs, against the"
                f" best baseline of the same trace, mean of {chosen.seeds} traces\n"
            )
            cells = [
                (name, Setting(factors=factors, load=load, seed=seed))
                for name in REPLAYED.values()
                for seed in range(chosen.seeds)
            ]
            run: Callable[[tuple[str, Setting]], Outcome] = _replay_of
            if chosen.processes > 1:
                with ProcessPoolExecutor(chosen.processes) as pool:
                    found = list(pool.map(run, cells))
            else:
                found = [run(cell) for cell in cells]
            each = {
                name: found[at * chosen.seeds : (at + 1) * chosen.seeds]
                for at, name in enumerate(REPLAYED)
            }
            print("| | execution s | against the best | completion s | against the best |")
            print("|---|---|---|---|---|")
            best = [
                (
                    min(each[name][seed].execution for name in BASELINES),
                    min(each[name][seed].completion for name in BASELINES),
                )
                for seed in range(chosen.seeds)
            ]
            for name, outcomes in each.items():
                pairs = list(zip(outcomes, best, strict=True))
                ran = [one.execution / least for one, (least, _) in pairs]
                took = [one.completion / least for one, (_, least) in pairs]
                print(
                    f"| {name} | {fmean(one.execution for one in outcomes):.0f}"
                    f" | {_change(ran)} | {fmean(one.completion for one in outcomes):.0f}"
                    f" | {_change(took)} |",
                    flush=True,
                )


def _replay_of(cell: tuple[str, Setting]) -> Outcome:
    return replayed(*cell)


def _change(ratios: Sequence[float]) -> str:
    """The mean change in percent, and its least and largest."""
    each = [100 * (ratio - 1) for ratio in ratios]
    return f"{fmean(each):+.1f} % ({min(each):+.1f} to {max(each):+.1f})"


TABLES: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "exact": table_exact,
    "large": table_large,
    "starts": table_starts,
    "replay": table_replay,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
