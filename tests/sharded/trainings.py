"""Runs of tests/sharded/train.py as processes of this machine, and what any have left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).with_name("train.py")
LAUNCHER = ("-m", "ones.slurm_ext.runtime.launcher")
PATIENCE = 300.0  # seconds for what is sure to come


def eventually(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not come within {PATIENCE} s")
        time.sleep(0.05)


@dataclass(frozen=True)
class Step:
    """What one worker says of a step that it has committed."""

    epoch: int
    before: int
    workers: int
    numbers: list[int]
    loss: float  # this worker's part of the mean over the step's samples
    began: float  # seconds since the epoch, as the next
    ended: float
    most: int  # bytes of memory at its most in the step
    change: int  # and in job.step(), where changes are


class Seen:
    """What workers have written into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self, name: str = "seen") -> dict[str, list[Step]]:
        """The committed steps by process."""
        found = {}
        for file in self.folder.glob(f"{name}.*"):
            if file.suffix != ".result":
                lines = [line for line in file.read_text().splitlines() if line.endswith("]")]
                found[file.suffix[1:]] = [Step(*json.loads(line)) for line in lines]
        return found

    def every_step(self, name: str = "seen") -> list[Step]:
        return [step for steps in self.steps(name).values() for step in steps]

    def counted(self) -> Counter[tuple[int, int]]:
        """How often each sample of each epoch was committed."""
        return Counter((step.epoch, each) for step in self.every_step() for each in step.numbers)

    def losses(self, name: str = "seen") -> dict[int, float]:
        """The mean loss of each step, by the samples before it."""
        found: Counter[int] = Counter()
        for step in self.every_step(name):
            found[step.before] += step.loss
        return dict(sorted(found.items()))

    def pauses(self, name: str = "seen") -> list[tuple[int, int, float]]:
        """Each change of workers: before, after, and seconds in which no step was under way."""
        steps: dict[int, list[Step]] = {}
        for step in self.every_step(name):
            steps.setdefault(step.before, []).append(step)
        found = []
        for old, new in pairwise(steps[at] for at in sorted(steps)):
            before, after = old[0].workers, new[0].workers
            if before != after:
                seconds = max(each.began for each in new) - max(each.ended for each in old)
                found.append((before, after, seconds))
        return found

    def results(self, name: str = "seen") -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.folder.glob(f"{name}.*.result")]

    def reached(self, samples: int) -> bool:
        with contextlib.suppress(ValueError):
            return max(step.before for step in self.every_step()) >= samples
        return False


class Trainings(Seen):
    """Runs of one training in one folder."""

    def __init__(self, folder: Path, **options: object) -> None:
        super().__init__(folder)
        self.options = options
        self.patience = PATIENCE
        self.slow = folder / "slow"
        self.running: list[subprocess.Popen[str]] = []

    def start(
        self, *launcher: str, environment: dict[str, str] | None = None, **more: object
    ) -> subprocess.Popen[str]:
        """Start the training; without a launcher as one process."""
        options = {"seen": self.folder / "seen", "slow": self.slow, **self.options, **more}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        # Not a pipe: nobody would read it, and whoever writes into a full one stands still.
        with (self.folder / f"stderr.{len(self.running)}").open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, *launcher, str(TRAIN), *words],
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def workers(self, count: int, **more: object) -> subprocess.Popen[str]:
        return self.start(*LAUNCHER, f"--workers={count}", **more)

    def whole(self, **more: object) -> dict[str, Any]:
        """The result of the same training by one process, never resized, with its losses."""
        return self.result_of(self.start(seen=self.folder / "whole", **more))

    def result_of(self, whole: subprocess.Popen[str]) -> dict[str, Any]:
        """What has become of the training that one process has done as `whole`."""
        assert self.ends(whole) == 0, self.said
        (result,) = self.results("whole")
        return {**result, "losses": self.losses("whole")}

    def ends(self, process: subprocess.Popen[str]) -> int:
        """Its exit code, once it has ended; what it said is kept as `said`."""
        process.wait(timeout=self.patience)
        number = self.running.index(process)
        self.said = (self.folder / f"stderr.{number}").read_text(errors="replace")
        return process.returncode

    def end(self) -> None:
        """Kill whatever still runs."""
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def counting(steps: Sequence[Step]) -> dict[int, list[Step]]:
    """The steps by the samples before them; of one that was done again, its last time."""
    found: dict[int, list[Step]] = {}
    for step in steps:
        found.setdefault(step.before, []).append(step)
    return {
        before: [step for step in same if step.ended >= max(each.began for each in same)]
        for before, same in found.items()
    }


def apart(these: list[float], others: list[float]) -> float:
    """The largest relative difference of two lists of numbers."""
    pairs = zip(these, others, strict=True)
    return max(abs(one - other) / max(abs(one), abs(other), 1e-3) for one, other in pairs)
