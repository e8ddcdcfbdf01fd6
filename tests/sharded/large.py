"""What a change of workers costs a sharded transformer, and whether it comes out right.

usage: scripts/benchmark-live --sharded [--width N] [--layers N] [--sizes N,N...]
                                        [--copies N,N...] [--restarts N] [--torchft N]
                                        [--pause SECONDS] [--json]

By default 100 million parameters in fp32 under AdamW, 1.2 GB of state, on this machine over gloo,
or NCCL where there is a GPU. There steps are so short that the training would be over before
newcomers have started: --pause has it wait after each step.
FSDP2 goes through --sizes, HSDP with two workers for each copy through --copies. A pause lasts from
the end of the last step of the old size to the start of the first one of the new, on the worker for
which it is longest. Right after each training its changes are made again by a restart, --restarts
times each, from torch.distributed.checkpoint. Memory is the largest peak of a worker in a change,
as a part of its peak in steps before or after it. Beside the pause stands how long its bytes take
by themselves: between as many processes, over gloo, that do nothing else. Losses, parameters and
samples are compared with a run by one process. Exits with 1 where they differ.

With --torchft the changes of HSDP are made by torchft as well, by whole copies, as it does it: N
times all of them. It resizes within a step, so that its pause can't be told from it; what is
compared is the time that a change takes from training beyond the steps' usual times, from the order
to the end of the first step with the new size. (Its newcomers are ready before the order.)
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from live import LiveTraining
from replicas import REPLICA, Replicas
from trainings import Seen, Step, Trainings, apart, eventually

ROUNDING = 1e-3  # relative, of sums over workers in another order, after all steps
BATCH = 8
HEAD = (
    "| model | change | pause | its bytes alone | to the end of the first new step"
    " | a step before, after | sent / least | MB sent | memory / steady | restart: pause"
    " | to the end of its first step | times the live pause | time lost: live | by torchft |"
    "\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
TRANSFER = Path(__file__).with_name("transfer.py")
BETWEEN = 1  # steps between two changes


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-live --sharded", description=__doc__)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--sizes", default="2,4,3,8,2", help="workers of FSDP2; empty: none")
    parser.add_argument("--copies", default="4,6,2", help="workers of HSDP; empty: none")
    parser.add_argument("--restarts", type=int, default=1, help="of each change")
    parser.add_argument("--torchft", type=int, default=0, help="walks of HSDP by torchft")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    model = {"width": given.width, "layers": given.layers}
    walks = [("FSDP2", sizes(given.sizes), None), ("HSDP", sizes(given.copies), 2)]
    rows: list[dict[str, Any]] = []
    if not given.json:
        print(HEAD, flush=True)
    right = True
    with tempfile.TemporaryDirectory(prefix="ones-sharded-") as folder:
        for name, walk, shards in walks:
            if walk:
                own = Path(folder) / name
                found, same = walked(own, walk, shards=shards, pause=given.pause, **model)
                for row in found:
                    row["bytes"] = transferred(own, row["before"], row["after"], shards, **model)
                    row["torchft"] = []
                    row["restarts"] = [
                        restarted(
                            own / f"{row['before']}-{row['after']}-{number}",
                            row["before"], row["after"], shards=shards, **model,
                        )
                        for number in range(given.restarts)
                    ]  # fmt: skip
                for number in range(given.torchft if shards == REPLICA else 0):
                    replicas = Replicas(own / f"torchft-{number}", batch=BATCH, **model)
                    for row, time_lost in zip(found, by_torchft(replicas, walk), strict=True):
                        row["torchft"].append(time_lost)
                rows += [{"model": name, **row} for row in found]
                if not given.json:
                    print(*(line(name, row) for row in found), sep="\n", flush=True)
                right = right and same
    if given.json:
        print(json.dumps({"changes": rows, "equal": right}))
        return 0 if right else 1
    if given.restarts:
        times = [shorter(row) for row in rows]
        print(
            f"\na restart's pause is {median(times):.0f} times the live one in the median,"
            f" {min(times):.0f} times at the least"
        )
    print(f"loss, parameters and samples as without a change: {'yes' if right else 'NO'}")
    return 0 if right else 1


def line(name: str, row: dict[str, Any]) -> str:
    sent = f"{row['sent'] / row['least']:.2f}" if row["least"] else "nothing to send"
    alone = "-" if row["bytes"] is None else f"{row['bytes']:.2f} s"
    torchft = f"{median(row['torchft']):.1f} s" if row["torchft"] else "-"
    restart = "- | - | -"
    if row["restarts"]:
        pause, first = (median(one[key] for one in row["restarts"]) for key in ("pause", "first"))
        restart = f"{pause:.1f} s | {first:.1f} s | {shorter(row):.0f}"
    return (
        f"| {name} | {row['before']} to {row['after']}"
        f" | {row['pause']:.2f} s | {alone} | {row['first']:.2f} s"
        f" | {row['usual'][0]:.2f}, {row['usual'][1]:.2f} s"
        f" | {sent} | {row['sent'] / 1e6:.0f}"
        f" | {row['memory']:.2f} | {restart} | {row['lost']:.1f} s"
        f" | {torchft} |"
    )


def shorter(row: dict[str, Any]) -> float:
    """How many times as long the same change's restart takes."""
    return float(median(each["pause"] for each in row["restarts"]) / row["pause"])


def sizes(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def walked(
    folder: Path, walk: Sequence[int], *, shards: int | None, pause: float, **model: int
) -> tuple[list[dict[str, Any]], bool]:
    """Each change of a live training, and whether the training came out as it had to."""
    folder.mkdir()
    samples = BATCH * (BETWEEN + 2) * (len(walk) + 1)
    training = LiveTraining(
        folder, samples=samples, epochs=1, batch=BATCH, pause=pause, **model,
        **({} if shards is None else {"shards": shards}),
    )  # fmt: skip
    try:
        alone = training.whole()
        job = training.live(walk[0], slots=max(walk))
        told, ordered = [], []
        for size in walk[1:]:
            training.steps_more(BATCH * BETWEEN)
            before = training.pids()
            ordered.append(time.time())
            told.append(training.resize(size)["resizes"][-1])
            present = training.pids()
            if any(before[slot] != present[slot] for slot in before.keys() & present.keys()):
                raise RuntimeError("a worker that was to stay was restarted")
        training.slow.unlink()
        if training.ends(job):
            raise RuntimeError(training.said)
        changes = [cost(training, *each) for each in zip(told, ordered, strict=True)]
        return changes, is_equal(training, alone, samples)
    finally:
        training.end()


def cost(training: Trainings, told: dict[str, Any], ordered: float) -> dict[str, Any]:
    steps = training.every_step()
    at = told["samples"]
    old = [step for step in steps if step.before < at and step.workers == told["before"]]
    new = [step for step in steps if step.before >= at and step.workers == told["workers"]]
    last = [step for step in old if step.before == max(each.before for each in old)]
    first = [step for step in new if step.before == min(each.before for each in new)]
    return {
        "before": told["before"],
        "after": told["workers"],
        "pause": told["pause"],
        "first": max(step.ended for step in first) - max(step.ended for step in last),
        "usual": [usual(old), usual(new)],
        "lost": lost(training, ordered, told["workers"]),
        "sent": told["moved"],
        "least": told["least"],
        "memory": memory(training, at),
    }


def usual(steps: Sequence[Step]) -> float:
    return median(step.ended - step.began for step in steps)


def lost(seen: Seen, ordered: float, workers: int, name: str = "seen") -> float:
    """Seconds that a change took from training, by one who was there before and after."""
    by_size: dict[int, list[Step]] = {}
    for step in seen.every_step(name):
        by_size.setdefault(step.workers, []).append(step)
    mine = max(seen.steps(name).values(), key=len)
    since = [step for step in mine if step.ended > ordered]
    last = next(index for index, step in enumerate(since) if step.workers == workers)
    expected = sum(usual(by_size[step.workers]) for step in since[: last + 1])
    return since[last].ended - since[0].began - expected


def memory(training: Trainings, at: int) -> float:
    """The largest peak of a worker in the change at these samples, as a part of its steps' peak."""
    found = [0.0]
    for steps in training.steps().values():
        for step, following in pairwise(steps):
            if step.before < at <= following.before and step.most and following.most:
                near = [
                    each.most for each in steps if each.workers in (step.workers, following.workers)
                ]
                found.append(step.change / max(near))
    return max(found)


def is_equal(training: Trainings, alone: dict[str, Any], samples: int) -> bool:
    losses, results = training.losses(), training.results()
    return (
        set(training.counted().values()) == {1}
        and len(training.counted()) == samples
        and losses.keys() == alone["losses"].keys()
        and apart(list(losses.values()), list(alone["losses"].values())) < ROUNDING
        and all(apart(each["digest"], alone["digest"]) < ROUNDING for each in results)
    )


def by_torchft(replicas: Replicas, walk: Sequence[int]) -> list[float]:
    """The seconds that each change takes from training, where whole copies come and go."""
    try:
        replicas.resize(walk[0] // REPLICA)
        ordered = []
        for size in walk[1:]:
            replicas.steps_more(BETWEEN + 2)
            ordered.append((replicas.resize(size // REPLICA), size))
        replicas.steps_more(BETWEEN + 2)
        return [lost(replicas.seen, at, size, "torchft") for at, size in ordered]
    finally:
        replicas.end()


def transferred(
    folder: Path, before: int, after: int, shards: int | None, *, width: int, layers: int
) -> float | None:
    """Seconds that the bytes of a change take by themselves; None where they could not be sent."""
    words = [before, after, shards or 0, width, layers]
    store = folder / f"store-{before}-{after}"
    processes = [
        subprocess.Popen(
            [sys.executable, str(TRANSFER), *(str(word) for word in words), str(rank), str(store)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(max(before, after))
    ]
    try:
        eventually(lambda: all(each.poll() == 0 for each in processes) or failed(processes))
        if failed(processes):
            # MPS refuses processes after others were killed, say.
            print(f"{before} to {after}: the bytes alone could not be sent", file=sys.stderr)
            return None
        return float(processes[0].communicate()[0])
    finally:
        for each in processes:  # who waits for one that has failed
            each.kill()
            each.wait()


def failed(processes: Sequence[subprocess.Popen[str]]) -> bool:
    return any(each.poll() for each in processes)


def restarted(
    folder: Path, before: int, after: int, *, shards: int | None, **model: int
) -> dict[str, float]:
    """What a restart costs: a checkpoint, and new processes that read it."""
    folder.mkdir()
    training = Trainings(
        folder, samples=1000, epochs=1, batch=BATCH, pause=0, checkpoints=folder / "kept", **model,
        **({} if shards is None else {"shards": shards}),
    )  # fmt: skip
    try:
        first = training.workers(before)
        eventually(lambda: training.reached(BATCH * BETWEEN))
        first.send_signal(signal.SIGTERM)
        if training.ends(first) != 143:
            raise RuntimeError(training.said)
        ended = max(step.ended for step in training.every_step())
        second = training.workers(after, seen=folder / "again")
        eventually(lambda: training.every_step("again"))
        time.sleep(0.5)  # until all have written of it
        second.kill()
        steps = training.every_step("again")
        begin = [step for step in steps if step.before == min(each.before for each in steps)]
        return {
            "pause": max(step.began for step in begin) - ended,
            "first": max(step.ended for step in begin) - ended,
        }
    finally:
        training.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
