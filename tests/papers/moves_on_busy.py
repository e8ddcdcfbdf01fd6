"""What becomes of moves where Slurm's own queue is never empty.

usage: scripts/benchmark-moves [--clusters N] [--seed S] [--hours H] [--policy P] [--json]

Simulated clusters of 8 to 32 GPUs that are asked for 90 to 130 % of what they have, each with a
whole onesd, once with three elastic jobs in ten and once with five. Slurm starts plain jobs, and
elastic ones that have a place in its queue, as soon as anything is free.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from onesd_and_people import GPUS_PER_NODE, Cluster, families

SEED = 950_000
LOADS = (0.9, 1.3)
ELASTIC = (0.3, 0.5)  # so many of the jobs
TICK = 1.0  # seconds
LAST = 3600.0  # seconds before the end, in which jobs that come do not count
FAILS = "expired"  # of a move's outcome
STOPPED = "held"  # of a move's outcome, if the job was stopped for it and waits now


@dataclass
class Tally:
    """What came of some clusters."""

    moves: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and outcome
    idle: float = 0.0  # GPU seconds while somebody waits
    gpus: float = 0.0  # GPU seconds
    elastic: list[float] = field(default_factory=list)  # completion by length
    plain: list[float] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.moves += other.moves
        self.idle += other.idle
        self.gpus += other.gpus
        self.elastic += other.elastic
        self.plain += other.plain


def one_cluster(chosen: tuple[int, float, str, float]) -> Tally:
    seed, elastic, policy, seconds = chosen
    logging.disable(logging.CRITICAL)
    rng = Random(f"moves {seed}")
    cluster = Cluster(
        "a",
        policy,
        seed=f"{seed} a",
        rng=rng,
        there=families(rng),
        loads=LOADS,
        elastic=elastic,
        tick=TICK,
    )
    tally = Tally(gpus=cluster.nodes * GPUS_PER_NODE * seconds)
    cluster.live(seconds)
    tally.idle = cluster.idle
    for came in cluster.came:
        if came.at < cluster.world.now - LAST:
            took = cluster.ended(came.job) - came.at
            (tally.elastic if came.elastic else tally.plain).append(took / came.seconds)
    tally.moves = cluster.moves()
    return tally


def rows(tallies: dict[float, Tally]) -> Iterable[dict[str, object]]:
    for share, tally in tallies.items():
        row: dict[str, object] = {"elastic": share}
        for kind in ("start", "resize", "live"):
            outcomes = {key[1]: n for key, n in tally.moves.items() if key[0] == kind}
            row[kind] = sum(outcomes.values())
            row[f"{kind}_failed"] = sum(n for key, n in outcomes.items() if key.startswith(FAILS))
            row[f"{kind}_stopped"] = sum(n for key, n in outcomes.items() if key.endswith(STOPPED))
        row["idle"] = tally.idle / tally.gpus
        row["elastic_completion"] = fmean(tally.elastic)
        row["plain_completion"] = fmean(tally.plain)
        yield row


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-moves", description=__doc__)
    parser.add_argument("--clusters", type=int, default=12)
    parser.add_argument("--seed", type=int, default=SEED, help="of the first cluster")
    parser.add_argument("--hours", type=float, default=4.0, help="that each is watched")
    parser.add_argument("--policy", default="ones")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", dest="as_json")
    chosen = parser.parse_args(arguments)
    tallies = {share: Tally() for share in ELASTIC}
    asked = [
        (chosen.seed + number, share, chosen.policy, 3600.0 * chosen.hours)
        for share in ELASTIC
        for number in range(chosen.clusters)
    ]
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        for case, tally in zip(asked, pool.imap(one_cluster, asked), strict=True):
            tallies[case[1]].add(tally)
    if chosen.as_json:
        print(json.dumps(list(rows(tallies)), indent=2))
        return 0
    print("| elastic | starts, failed | resizes, failed (stopped for it) | live, failed |", end="")
    print(" GPUs idle while somebody waits | completion by length, elastic | plain |")
    print("|---|---|---|---|---|---|---|")
    for row in rows(tallies):
        print(
            f"| {row['elastic']:.0%} | {row['start']}, {row['start_failed']}"
            f" | {row['resize']}, {row['resize_failed']} ({row['resize_stopped']})"
            f" | {row['live']}, {row['live_failed']} | {row['idle']:.1%}"
            f" | {row['elastic_completion']:.2f} | {row['plain_completion']:.2f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
