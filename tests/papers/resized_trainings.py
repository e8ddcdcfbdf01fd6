"""One training, resized in four ways: live, by our restarts, by torchft and by torchrun."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeAlias

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.orders import order

HERE = Path(__file__).resolve().parent
Change: TypeAlias = tuple[int, int]  # workers before and after


@dataclass(frozen=True, slots=True)
class Step:
    """As rank 0 tells it; `over` is when the next one could begin."""

    size: int
    begun: float
    ended: float
    over: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """One change of size, in seconds.

    `pause` is measured by the workers; `lost` is what the steps from the order to the first one of
    the new size took beyond the usual.
    """

    pause: float
    to_first_end: float
    lost: float
    usual: tuple[float, float]  # a step before, and one after


def has_torchft() -> bool:
    return importlib.util.find_spec("torchft") is not None


class Trainings:
    """Starts and resizes the training in one folder: 1 worker, half of `most`, and all."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        # Every growth and every shrink between three sizes.
        self._sizes = (1, most // 2, most, most // 2, 1, most, 1)
        self._steps = folder / "steps"
        self._environment = {
            **os.environ,
            "CHECKPOINTS": str(folder / "checkpoints"),
            "STEPS": str(self._steps),
            "OMP_NUM_THREADS": "1",
            # With torch 2.13 two agents on one host don't find each other otherwise.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }

    def live(self, walks: int) -> dict[Change, list[Resized]]:
        def resize(size: int) -> float:
            ordered = time.time()
            order(self._folder, {"op": "resize", "workers": size}, timeout=120.0)
            return ordered

        workers = (f"--workers={self._sizes[0]}", f"--slots={max(self._sizes)}")
        with self._ours("--live", *workers, f"--folder={self._folder}"):
            ordered = self._walk(walks, resize)
            told = order(self._folder, {"op": "status"})["resizes"][1:]
        return self._resized(ordered, [float(each["pause"]) for each in told])

    def torchft(self, walks: int) -> dict[Change, list[Resized]]:
        """Replicas that are ready wait to join; its own pauses can't be told, and count 0."""
        if not walks:
            return {}
        with contextlib.ExitStack() as running:
            port = free_port()
            lighthouse = Path(sys.executable).with_name("torchft_lighthouse")
            running.enter_context(
                self._process(
                    [
                        str(lighthouse),
                        f"--bind=127.0.0.1:{port}",
                        "--min_replicas=1",
                        # What the join timeout is, growth waits for at the least: with 100 ms
                        # replicas healed each other in turns and never trained together.
                        "--join_timeout_ms=1000",
                        "--heartbeat_timeout_ms=2000",
                    ],
                    told=subprocess.DEVNULL,  # several lines a step
                )
            )
            self._environment["TORCHFT_LIGHTHOUSE"] = f"http://localhost:{port}"
            names = map(str, itertools.count())
            members: list[Path] = []

            def resize(size: int) -> float:
                ordered = time.time()
                newcomers = [next(names) for _ in range(size - len(members))]
                for name in newcomers:
                    script = str(HERE / "torchft_training.py")
                    command = [sys.executable, script, str(self._folder), name]
                    running.enter_context(self._process(command, told=subprocess.DEVNULL))
                for name in newcomers:
                    wait_until((self._folder / f"ready-{name}").exists, "a replica isn't ready")
                    members.append(self._folder / f"go-{name}")
                for name in newcomers:
                    (self._folder / f"go-{name}").touch()
                while len(members) > size:
                    members.pop().unlink()
                wait_until(lambda: self._size() == size, f"torchft doesn't come to {size} replicas")
                return ordered

            self._steps.unlink(missing_ok=True)
            resize(self._sizes[0])
            ordered = self._walk(walks, resize)
        return self._resized(ordered, [0.0] * len(ordered))

    def restarts(self, repeats: int) -> dict[Change, list[float]]:
        """From the end of the last step to the start of the first one after a restart."""
        pauses: dict[Change, list[float]] = {}
        for before, after in itertools.pairwise(self._sizes[:5]) if repeats else ():
            for _ in range(repeats):
                with self._ours(f"--workers={before}") as job:
                    self._wait_for_steps(2)
                    job.send_signal(signal.SIGTERM)
                    job.wait(timeout=60)
                last = self._read()[-1]
                with self._ours(f"--workers={after}"):
                    self._wait_for_steps(1)
                pauses.setdefault((before, after), []).append(self._read()[0].begun - last.ended)
        return pauses

    def torchrun(self) -> float:
        """The same for torchrun, whose workers save a checkpoint when they are stopped."""
        port = free_port()
        command = (
            *(sys.executable, "-m", "torch.distributed.run"),
            "--nnodes=1:2",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=localhost:{port}",
            f"--rdzv-id={port}",
            "--rdzv-conf=last_call_timeout=1",
            "--monitor-interval=0.1",
            str(HERE / "live_training.py"),
        )
        self._steps.unlink(missing_ok=True)
        with self._process(command, told=subprocess.DEVNULL):  # a trace for each agent's end
            self._wait_for_steps(2)
            with self._process(command, told=subprocess.DEVNULL):
                wait_until(lambda: self._size() == 2, "torchrun makes no step with 2 workers")
                steps = self._read()
        first = next(step for step in steps if step.size == 2)
        return first.begun - [step for step in steps if step.size == 1][-1].ended

    def _walk(self, walks: int, resize: Callable[[int], float]) -> list[tuple[float, Change]]:
        """When which change was ordered."""
        ordered = []
        for _ in range(walks):
            for before, after in itertools.pairwise(self._sizes):
                self._wait_for_steps(5)
                ordered.append((resize(after), (before, after)))
        self._wait_for_steps(5)
        return ordered

    def _resized(
        self, ordered: Sequence[tuple[float, Change]], pauses: Sequence[float]
    ) -> dict[Change, list[Resized]]:
        steps = self._read()
        usual = {
            size: median(step.ended - step.begun for step in steps if step.size == size)
            for size in {step.size for step in steps}
        }
        found: dict[Change, list[Resized]] = {}
        for (at, change), pause in zip(ordered, pauses, strict=True):
            before, after = change
            since = [step for step in steps if step.over > at]
            first = next(index for index, step in enumerate(since) if step.size == after)
            old = [step for step in steps if step.begun < since[first].begun and step.over <= at]
            last = since[first - 1] if first else old[-1]
            lost = sum(step.over - step.begun - usual[step.size] for step in since[: first + 1])
            found.setdefault(change, []).append(
                Resized(
                    pause=pause,
                    to_first_end=since[first].ended - last.ended,
                    lost=lost,
                    usual=(usual[before], usual[after]),
                )
            )
        return found

    def _ours(self, *options: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        self._steps.unlink(missing_ok=True)
        launcher = ("-m", "ones.slurm_ext.runtime.launcher")
        return self._process([sys.executable, *launcher, *options, str(HERE / "live_training.py")])

    @contextlib.contextmanager
    def _process(
        self, command: Sequence[str], told: int | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            command, env=self._environment, start_new_session=True, stdout=told, stderr=told
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait_for_steps(self, more: int) -> None:
        begun = self._count()
        wait_until(lambda: self._count() >= begun + more, "the training makes no steps")

    def _count(self) -> int:
        return self._steps.read_bytes().count(b"\n") if self._steps.exists() else 0

    def _size(self) -> int | None:
        steps = self._read()
        return steps[-1].size if steps else None

    def _read(self) -> list[Step]:
        if not self._steps.exists():
            return []
        whole, _, _ = self._steps.read_text().rpartition("\n")
        return [Step(*json.loads(line)) for line in whole.splitlines()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def wait_until(done: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + 120
    while not done():
        if time.monotonic() > until:
            raise OnesError(otherwise)
        time.sleep(0.02)
