"""How much earlier a job's first GPU step is when its data were staged in before.

usage: scripts/benchmark-stage-in [--pairs N] [--megabytes M] [--rate MB/S]

On the container cluster, with the policy fifo. A plain job holds all GPUs; an elastic one that
needs M MB from a slow store waits behind it. The slow store is emulated: a copy that reads RATE
MB/s, the same program in both arms (ones-stage-in with `[staging] most_rate`). Without --stage-in
the job copies before its first step, holding its GPUs; with it the data are there. Counted is from
the end of the plain job to the first step.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

from on_cluster import clock, steered, table
from steering import Steering

NODES = ("n1", "n2", "n3", "n4")
BOUNDS = "/etc/ones/ones.d/stage.toml"
PROGRAM = "/opt/ones/bin/python -m ones.slurm_ext.stage_in --here"
# Without staged data the job copies them itself, with the same program at the same pace.
SCRIPT = (
    f'if [ -z "$ONES_STAGE_IN" ]; then mkdir -p /tmp/own; {PROGRAM} /tmp/own $HOME/data data'
    " && ONES_STAGE_IN=/tmp/own/$SLURM_JOB_ID/data; fi;"
    " cat $ONES_STAGE_IN/* > /dev/null && date +%s.%N > step-$SLURM_JOB_ID"
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-stage-in", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--rate", type=float, default=6.0, help="MB/s that a copy reads")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    draw = random.Random(chosen.seed)
    pairs = []
    with steered() as onesd:
        for node in NODES:
            text = f"[staging]\nmost_rate = {chosen.rate}\n"
            onesd.cluster.run(node, f"mkdir -p /etc/ones/ones.d; cat > {BOUNDS}", stdin=text)
        make = f"rm -rf data; mkdir data; head -c {chosen.megabytes}000000 /dev/urandom > data/a"
        onesd.cluster.run("ctl", make, "alice")
        for _ in range(chosen.pairs):
            length = 25 + draw.uniform(0, 10)
            pair = [wait(onesd, stage, length) for stage in (False, True)]
            print(f"without {pair[0]:.1f} s, staged {pair[1]:.1f} s", file=sys.stderr)
            pairs.append(pair)
        for node in NODES:
            onesd.cluster.run(node, f"rm -f {BOUNDS}; rm -rf /tmp/own")
    table(
        f"from free GPUs to the first step, {chosen.megabytes} MB at {chosen.rate:g} MB/s",
        ["copied by the job", "staged in"],
        pairs,
    )
    return 0


def wait(onesd: Steering, stage: bool, length: float) -> float:
    """Seconds from the plain job's last deed to the first step of the one that waits."""
    onesd.prepare()
    onesd.start("--policy", "fifo")
    blocker = onesd.submit(
        "bob", "--nodes=4", "--gpus-per-node=4", "--time=2",
        f"--wrap=sleep {length:.2f}; date +%s.%N > end-$SLURM_JOB_ID",
    )  # fmt: skip
    onesd.wait(blocker, ["RUNNING"], within=20)
    options = ["--stage-in=data"] if stage else []
    waiting = onesd.submit("alice", "--elastic=4", "--gpus=4", *options, f"--wrap={SCRIPT}")
    ended = clock(onesd, "bob", f"end-{blocker}")
    return clock(onesd, "alice", f"step-{waiting}") - ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
