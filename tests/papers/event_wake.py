"""How soon after a job's end onesd starts the next one, with events and without.

usage: scripts/benchmark-events [--pairs N] [--round SECONDS]

On the container cluster, with the policy fifo: a plain job holds all GPUs for a while, an elastic
one waits. Both write down the time, one as its last deed, the other as its first. Both runs of a
pair have blockers of the same length, drawn so that they end anywhere in a round.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

from on_cluster import clock, steered, table
from steering import Steering

WHOLE = ("--nodes=4", "--gpus-per-node=4")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-events", description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--round", type=float, default=15.0, help="of onesd, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    draw = random.Random(chosen.seed)
    pairs = []
    with steered() as onesd:
        for _ in range(chosen.pairs):
            length = 8 + draw.uniform(0, chosen.round)
            pair = [gap(onesd, wake, chosen.round, length) for wake in ("false", "true")]
            print(f"without {pair[0]:.1f} s, with {pair[1]:.1f} s", file=sys.stderr)
            pairs.append(pair)
    table(
        f"from a job's end to the next one's start, rounds of {chosen.round:g} s",
        ["without events", "with events"],
        pairs,
    )
    return 0


def gap(onesd: Steering, wake: str, every: float, length: float) -> float:
    """Seconds from the blocker's last deed to the next job's first."""
    onesd.prepare()
    onesd.configure(f"round = {every}\n[guard]\ngrace_time = 3.0\n[events]\nwake = {wake}\n")
    onesd.start("--policy", "fifo")
    blocker = onesd.submit(
        "bob", *WHOLE, f"--wrap=sleep {length:.2f}; date +%s.%N > end-$SLURM_JOB_ID"
    )
    waiting = onesd.submit(
        "alice", "--elastic=4", "--gpus=4", "--ntasks=4",
        "--wrap=date +%s.%N > start-$SLURM_JOB_ID; sleep 1",
    )  # fmt: skip
    ended = clock(onesd, "bob", f"end-{blocker}")
    return clock(onesd, "alice", f"start-{waiting}") - ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
