"""Many random changes of a sharded training, with workers and launchers killed in between.

usage: scripts/soak-live --without-slurm [--resizes N] [--seed S] [--shards N] [--json]

Runs on this machine and needs no cluster, as scripts/soak-live --sharded does: a base launcher,
others that join it as satellites do, and SIGKILL for workers and for those others. With --shards
the model has further copies where there are workers for them; each slice is kept a second time by a
neighbour as well. Afterwards each step that counts must have had the samples that it has in a run
by one process, all workers must have the same parameters, those of that run, and nothing may be
left over. Exits with 1 where that is not so, and shows each step with other samples.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from live import LiveTraining
from trainings import LAUNCHER, apart, counting

SAMPLES, BATCH, MOST, COPIED = 211, 16, 6, 3
PAUSE = 1.0  # seconds after each step, until there were enough changes: an epoch has 14 of them
PATIENCE = 3600.0  # seconds for a training to end
EVENTS = ("resize", "resize", "resize", "worker", "join", "launcher")


class Soak:
    """One training, and what was done to it."""

    def __init__(self, folder: Path, seed: int, shards: int | None, epochs: int) -> None:
        more = {} if shards is None else {"shards": shards}
        self.training = LiveTraining(
            folder, samples=SAMPLES, epochs=epochs, batch=BATCH, pause=PAUSE,
            checkpoints=folder / "kept", checkpoint_seconds=5, copy_steps=COPIED, **more,
        )  # fmt: skip
        self.training.patience = PATIENCE
        self.epochs = epochs
        self.random = random.Random(seed)
        self.joined: list[subprocess.Popen[str]] = []
        self.done: Counter[str] = Counter()
        self.killed = 0

    def run(self, resizes: int) -> dict[str, Any]:
        folder = self.training.folder
        whole = self.training.start(
            seen=folder / "whole", slow=folder / "never", checkpoints=folder / "alone",
            checkpoint_seconds=PATIENCE,
        )  # fmt: skip
        job = self.training.live(2, slots=MOST)
        while sum(self.done.values()) < resizes and job.poll() is None:
            try:
                self.change(self.random.choice(EVENTS))
            except TimeoutError as fault:
                raise TimeoutError(f"{fault}; {json.dumps(self.training.status())}") from None
            time.sleep(self.random.uniform(0, 1.5))
        enough = sum(self.done.values()) >= resizes
        self.training.slow.unlink()
        code = self.training.ends(job)
        for each in self.joined:
            self.training.ends(each)
        alone = self.training.result_of(whole)
        return {"changes": dict(self.done), "ended": code, "enough": enough, **self.account(alone)}

    def change(self, event: str) -> None:
        self.joined = [each for each in self.joined if each.poll() is None]
        members = self.training.pids()
        own = sum(slot.startswith("0/") for slot in members)
        if event in ("worker", "launcher"):
            self.training.steps_more(2 * BATCH)  # then a neighbour has every slice
        match event:
            case "worker" if own > 1 and len(members) > 2:
                members = self.training.pids()
                os.kill(self.random.choice(sorted(members.values())), signal.SIGKILL)
                self.killed += 1
            case "join" if len(self.joined) < 2:
                join = str(self.training.folder / "live" / "join.json")
                count = self.random.choice((1, 2))
                self.joined.append(
                    self.training.start(*LAUNCHER, f"--join={join}", f"--workers={count}")
                )
            case "launcher" if self.joined and own > 2:
                victim = self.joined.pop()
                os.killpg(victim.pid, signal.SIGKILL)
                victim.wait()
                self.killed += 1
            case _:
                event = "resize"
                self.training.resize(self.random.randint(1, MOST))
        self.done[event] += 1
        self.settle()

    def settle(self) -> None:
        """Wait until the training is as it was told to be."""
        deadline = time.monotonic() + 300
        while not self.training.status()["settled"]:
            if time.monotonic() > deadline:
                raise TimeoutError("the training doesn't settle")
            time.sleep(0.1)

    def account(self, alone: dict[str, Any]) -> dict[str, Any]:
        """What was lost or repeated, and whether all came to the same end."""
        steps, wanted = (counting(self.training.every_step(name)) for name in ("seen", "whole"))
        lost = repeated = unwritten = 0
        for before in sorted({*steps, *wanted}):
            same = steps.get(before, [])
            due = Counter(number for step in wanted.get(before, ()) for number in step.numbers)
            done = Counter(number for step in same for number in step.numbers)
            missing = (due - done).total()
            if same and len(same) < same[0].workers:
                # Who was killed after a step was committed could not write down its samples.
                unwritten += missing
            else:
                lost += missing
            repeated += (done - due).total()
            if missing or done - due:
                print(f"step after {before}: {same}", file=sys.stderr)
        results = self.training.results()
        return {
            "killed": self.killed,
            "repeated": repeated,
            "lost": lost,
            "unwritten": unwritten,
            "equal": all(each["digest"] == results[0]["digest"] for each in results),
            "apart": apart(results[0]["digest"], alone["digest"]) if results else None,
            "left": left_over(self.training.folder),
        }


def left_over(folder: Path) -> int:
    """Processes that still work on this training."""
    mine = str(folder).encode()
    found = 0
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += mine in each.read_bytes()
        except OSError:
            continue
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak-live --without-slurm", description=__doc__)
    parser.add_argument("--resizes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ones-soak-") as folder:
        # An epoch for each change, so that there are enough; what is left is done quickly.
        epochs = 2 + given.resizes
        soak = Soak(Path(folder), given.seed, given.shards, epochs)
        try:
            found = soak.run(given.resizes)
        finally:
            soak.training.end()
    good = (
        found["enough"] and not found["ended"] and found["equal"]
        and not (found["lost"] or found["repeated"] or found["left"])
        and found["apart"] < 1e-2
    )  # fmt: skip
    if given.json:
        print(json.dumps({"good": good, **found}))
    else:
        for name, value in found.items():
            print(f"{name}: {value}")
        print("good" if good else "NOT good")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
