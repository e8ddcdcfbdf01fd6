"""How near the policy `slurm` of replays comes to a real slurmctld with the same jobs.

usage: scripts/benchmark-slurm-policy [JOBS [SEED ...]]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from on_cluster import steered
from slurm_decisions import Decisions
from slurm_peer import Agreement, last_decay, on_slurm, recipe, replayed, scheduling


def main(arguments: Sequence[str]) -> int:
    jobs, *seeds = [int(each) for each in arguments] or [200]
    print(
        "| seed | jobs | decided otherwise | mean start, Slurm | mean start, replay | difference"
        " | in the other order |"
    )
    print("|---|---|---|---|---|---|---|")
    for seed in seeds or [1]:
        with steered() as onesd, scheduling(onesd.cluster):
            ran = on_slurm(onesd.cluster, recipe(jobs, seed))
            counted = last_decay(onesd.cluster)
        decided = Decisions.of(ran, counted=counted)
        found = Agreement.of(ran, replayed(ran, counted=counted))
        print(
            f"| {seed} | {found.jobs} | {decided.differing} | {found.real_start:.1f} s"
            f" | {found.replayed_start:.1f} s"
            f" | {found.replayed_start / found.real_start - 1:+.1%}"
            f" | {found.swapped} of {found.pairs} pairs |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
