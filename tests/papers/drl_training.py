"""Train the network of policy `drl` by policy gradients, on replays of workloads drawn at random.

usage: scripts/train-drl [--to FILE] [--minutes N] [--seed N] [--processes N]

Jobs are those of the four published workloads, drawn anew with other arrivals, on clusters and at
loads that are drawn, too; the network sees neither names nor arrivals. It first imitates Optimus,
as DL2 (TPDS'21) begins with an existing scheduler's choices. Then each update (PPO, with an entropy
bonus) learns from several runs of one workload: a choice is as good as the jobs' time in the system
from then on is shorter than in the other runs of the same arrivals (Decima, SIGCOMM'19, §5.3).
Every few updates the network is tried on workloads of other seeds, and the best one is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from completion_times import NETWORK, SHARED
from drl_learning import Scorer, imitate, learn
from drl_runs import trip

from ones.policies.drl_network import Network, untrained

HIDDEN = (32, 32)
RUNS = 8  # of one workload, for one update
TRIED = 4  # workloads on which it is tried
TRY_EVERY = 5  # updates
LESSONS = 8  # runs by Optimus, before it learns by itself
RATE = 1e-3  # Adam's
ENTROPY, LAST_ENTROPY = 0.003, 0.0003  # its bonus, falling with the time that is left


def train(
    minutes: float, seed: int, pool: ProcessPoolExecutor
) -> tuple[Network, list[list[float]]]:
    """The best network within that time, and a row a trial: minutes, updates, mean completion on
    the workloads of the trial as a ratio to the untrained network's."""
    torch.manual_seed(seed)
    best = untrained(HIDDEN, np.random.default_rng(seed))
    scorer = Scorer(best)
    optimizer = torch.optim.Adam(scorer.parameters(), lr=RATE)
    trials = [(10**6 + seed * TRIED + n, 0) for n in range(TRIED)]
    began = monotonic()
    base = np.array([one.mean for one in pool.map(partial(trip, best), trials)])
    lessons = [(2 * 10**6 + seed * LESSONS + n, 0) for n in range(LESSONS)]
    taught = list(pool.map(partial(trip, best, taught=True), lessons))
    told = imitate(scorer, optimizer, taught)
    print(f"the teacher's choices: {told:.2f} probable", file=sys.stderr, flush=True)
    curve: list[list[float]] = []
    least, updates = np.inf, 0
    while (spent := (monotonic() - began) / 60) < minutes:
        workload = seed * 10**5 + updates
        tasks = [(workload, n) for n in range(RUNS)]
        trips = list(pool.map(partial(trip, scorer.network()), tasks))
        left = 1 - spent / minutes
        mixed = learn(scorer, optimizer, trips, LAST_ENTROPY + (ENTROPY - LAST_ENTROPY) * left)
        print(
            f"update {updates + 1}: mean completion {np.mean([one.mean for one in trips]):.0f} s,"
            f" {sum(len(one.counts) for one in trips)} choices, entropy {mixed:.2f}",
            file=sys.stderr,
            flush=True,
        )
        updates += 1
        if updates % TRY_EVERY != 1:
            continue
        means = np.array([one.mean for one in pool.map(partial(trip, scorer.network()), trials)])
        ratio = float(np.mean(means / base))
        curve.append([round(spent, 1), updates, ratio])
        print(f"| {spent:.1f} | {updates} | {ratio:.3f} |", flush=True)
        if ratio < least:
            best, least = scorer.network(), ratio
    return best, curve


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/train-drl", description=__doc__.split("\n")[0])
    parser.add_argument("--to", type=Path, default=NETWORK, metavar="FILE")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    if not SHARED.is_dir():
        print(f"{SHARED} is not there: the published workloads are not part of this repository")
        return 1
    NETWORK.parent.mkdir(exist_ok=True)
    if not chosen.to.parent.is_dir():
        parser.error(f"--to: there is no folder {chosen.to.parent}")
    torch.set_num_threads(1)
    print("| minutes | updates | completion, of the untrained one's |\n|---|---|---|", flush=True)
    with ProcessPoolExecutor(chosen.processes) as pool:
        best, curve = train(chosen.minutes, chosen.seed, pool)
    told = {**best.written(), "seed": chosen.seed, "minutes": chosen.minutes, "curve": curve}
    chosen.to.write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
