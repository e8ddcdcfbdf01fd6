"""A training under torchft's HSDP, whose copies of the model come and go."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from trainings import Seen, eventually

TRAIN = Path(__file__).with_name("torchft_train.py")
REPLICA = 2  # workers of a copy


class Replicas:
    """The copies of one model, each cut over REPLICA workers, and torchft's lighthouse."""

    def __init__(self, folder: Path, *, width: int, layers: int, batch: int) -> None:
        folder.mkdir()
        self.seen = Seen(folder)
        self._folder = folder
        self._words = (str(width), str(layers), str(batch))
        self._present: list[Path] = []  # files, while which are there a copy trains
        self._names = map(str, itertools.count())
        self._running: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self._lighthouse = f"http://localhost:{port}"
        self._run(
            str(Path(sys.executable).with_name("torchft_lighthouse")),
            f"--bind=127.0.0.1:{port}",
            "--min_replicas=1",
            "--join_timeout_ms=1000",
            "--heartbeat_timeout_ms=5000",  # who leaves is waited for as long; a busy machine
        )

    def resize(self, copies: int) -> float:
        """Have so many copies train, and wait for it; when that was ordered."""
        come = [next(self._names) for _ in range(copies - len(self._present))]
        for name in come:
            for rank in range(REPLICA):
                self._run(sys.executable, str(TRAIN), str(self._folder), name, str(rank))
        ready = [self._folder / f"ready-{name}-{rank}" for name in come for rank in range(REPLICA)]
        eventually(lambda: all(each.exists() for each in ready))
        ordered = time.time()
        for name in come:
            self._present.append(self._folder / f"go-{name}")
            self._present[-1].touch()
        while len(self._present) > copies:
            self._present.pop().unlink()
        eventually(lambda: self._size() == copies * REPLICA)
        return ordered

    def steps_more(self, steps: int) -> None:
        reached = self._count() + steps
        eventually(lambda: self._count() >= reached)

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _run(self, *command: str) -> None:
        words = self._words if str(TRAIN) in command else ()
        with (self._folder / f"said.{len(self._running)}").open("w") as said:
            self._running.append(
                subprocess.Popen(
                    [*command, *words],
                    env={**os.environ, "TORCHFT_LIGHTHOUSE": self._lighthouse},
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
            )

    def _count(self) -> int:
        """Steps of the first copy, which is always there."""
        return max(map(len, self.seen.steps("torchft").values()), default=0)

    def _size(self) -> int:
        steps = max(self.seen.steps("torchft").values(), key=len, default=[])
        return steps[-1].workers if steps else 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
