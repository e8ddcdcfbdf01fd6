"""What a resize stops a training for, with 100 MB of state: live, by restarts, and under peers.

usage: scripts/benchmark-live [--most N] [--repeats N] [--restarts N]
                               [--torchrun N] [--torchft N]

A pause lasts from the end of the last step of the old size to the start of the first one of the new
size, on the member for which it is longest. Workers are processes on this machine, over gloo.
Restarts are ours (a checkpoint, and new workers under ones-run) and those of torchrun, which stops
and starts all workers when another agent joins. torchft resizes within a step, so that its pause
can't be told from it: what is compared is the time that a change takes from training beyond the
steps' usual times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from resized_trainings import Change, Resized, Trainings, has_torchft

T = TypeVar("T")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-live", description=__doc__)
    parser.add_argument("--most", type=int, default=4, help="workers; sizes are 1, half, and all")
    parser.add_argument("--repeats", type=int, default=4, help="walks through all sizes")
    parser.add_argument("--restarts", type=int, default=2, help="restarts of each kind")
    parser.add_argument("--torchrun", type=int, default=1, help="growths from 1 to 2 by torchrun")
    parser.add_argument("--torchft", type=int, default=2, help="walks through all sizes by torchft")
    chosen = parser.parse_args(arguments)
    if chosen.most < 4:
        parser.error("--most is at least 4: sizes are 1, half of it, and all of it")
    if chosen.torchft and not has_torchft():
        print(f"torchft is left out; {sys.executable} -m pip install torchft", file=sys.stderr)
        chosen.torchft = 0
    with tempfile.TemporaryDirectory(prefix="ones-live-") as folder:
        trainings = Trainings(Path(folder), chosen.most)
        live = trainings.live(chosen.repeats)
        restarts = trainings.restarts(chosen.restarts)
        torchft = trainings.torchft(chosen.torchft)
        elastic = [trainings.torchrun() for _ in range(chosen.torchrun)]
    print(
        "| change | n | live: median pause | p95 | most | to the end of the first new step"
        " | time lost: live | by torchft | restart: pause | a step before, after |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for change in sorted(live, key=lambda pair: (pair[0] > pair[1], pair)):
        before, after = change
        print(
            row(f"{before} to {after}", live[change], torchft.get(change, ()), restarts.get(change))
        )
    for name, grows in (("all growth", True), ("all shrinking", False)):
        print(row(name, of(live, grows), of(torchft, grows), of(restarts, grows)))
    if elastic:
        print(
            f"\ntorchrun --nnodes=1:2, 1 to 2, n = {len(elastic)}: median {median(elastic):.1f} s"
        )
    return 0


def of(found: dict[Change, list[T]], grows: bool) -> list[T]:
    return [one for (a, b), every in found.items() for one in every if (a < b) == grows]


def row(
    name: str,
    live: Sequence[Resized],
    torchft: Sequence[Resized],
    restarts: Sequence[float] | None,
) -> str:
    pauses = sorted(one.pause for one in live)
    late = pauses[min(len(pauses) - 1, round(0.95 * (len(pauses) - 1)))]
    return (
        f"| {name} | {len(pauses)} | {median(pauses):.3f} s | {late:.3f} s | {pauses[-1]:.3f} s"
        f" | {median(one.to_first_end for one in live):.2f} s"
        f" | {median(one.lost for one in live):.2f} s"
        f" | {f'{median(one.lost for one in torchft):.2f} s' if torchft else '-'}"
        f" | {f'{median(restarts):.2f} s' if restarts else '-'}"
        f" | {median(one.usual[0] for one in live):.2f},"
        f" {median(one.usual[1] for one in live):.2f} s |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
