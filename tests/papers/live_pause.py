"""What a live resize stops the training for, with a state of about 100 MB, and what a restart does.

usage: scripts/benchmark-live [--repeats N] [--restarts N] [--torchrun N]

A pause lasts from the end of the last step of the old size to the start of the first one of the new
size, on the member for which it is longest. Workers are processes on this machine, over gloo.
Restarts are ours (a checkpoint, and new workers under ones-run) and those of torchrun, which stops
and starts all workers when another agent joins.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.orders import order

WALK = (1, 2, 4, 2, 1, 4, 1)  # every growth and every shrink between 1, 2 and 4 workers
SCRIPT = """
import json, os, sys, time
import torch
from ones.slurm_ext import runtime as ones

torch.set_num_threads(1)
job = ones.init(checkpoints=os.environ["CHECKPOINTS"])
torch.manual_seed(1)
width = 380  # 60 layers of 145,000 parameters, with Adam: 104 MB
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(60)])
ddp = job.ddp(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-4)
job.track(optimizer)
data = torch.utils.data.TensorDataset(torch.randn(4096, width), torch.randn(4096, width))
loader = job.loader(data, batch_size=32)
job.warm_up(lambda batch: torch.nn.functional.mse_loss(ddp(batch[0]), batch[1]))
begun = time.time()
for epoch in job.epochs(10**6):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.step(loss=loss)
        now = time.time()
        if job.rank == 0:
            with open(os.environ["STEPS"], "a") as file:
                file.write(json.dumps([job.world_size, begun, now]) + "\\n")
        begun = time.time()
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-live", description=__doc__)
    parser.add_argument("--repeats", type=int, default=4, help="walks through all sizes")
    parser.add_argument("--restarts", type=int, default=2, help="restarts of each kind")
    parser.add_argument("--torchrun", type=int, default=1, help="growths from 1 to 2 by torchrun")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ones-live-") as folder:
        bench = Bench(Path(folder))
        live, steps = bench.live(chosen.repeats)
        restarts = bench.restarts(chosen.restarts)
        elastic = [bench.torchrun() for _ in range(chosen.torchrun)]
    print("| change | n | live: median | p95 | max | restart: median | a step before, after |")
    print("|---|---|---|---|---|---|---|")
    for change in sorted(live, key=lambda pair: (pair[0] > pair[1], pair)):
        print(row(f"{change[0]} to {change[1]}", live[change], restarts.get(change), steps, change))
    for name, grows in (("all growth", True), ("all shrinking", False)):
        pauses = [p for (a, b), found in live.items() for p in found if (a < b) == grows]
        whole = [p for (a, b), found in restarts.items() for p in found if (a < b) == grows]
        print(row(name, pauses, whole, steps, None))
    if elastic:
        print(
            f"\ntorchrun --nnodes=1:2, 1 to 2, n = {len(elastic)}: median {median(elastic):.1f} s"
        )
    return 0


def row(
    name: str,
    pauses: Sequence[float],
    restarts: Sequence[float] | None,
    steps: dict[int, float],
    change: tuple[int, int] | None,
) -> str:
    ordered = sorted(pauses)
    late = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    whole = f"{median(restarts):.2f} s" if restarts else "-"
    normal = f"{steps[change[0]]:.2f}, {steps[change[1]]:.2f} s" if change else ""
    return (
        f"| {name} | {len(pauses)} | {median(pauses):.3f} s | {late:.3f} s | {ordered[-1]:.3f} s"
        f" | {whole} | {normal} |"
    )


class Bench:
    """One training script, resized live and by restarts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps = folder / "steps"
        (folder / "train.py").write_text(SCRIPT)
        self._environment = {
            **os.environ,
            "CHECKPOINTS": str(folder / "checkpoints"),
            "STEPS": str(self._steps),
            "OMP_NUM_THREADS": "1",
            # With torch 2.13 two agents on one host don't find each other otherwise.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }

    def live(self, walks: int) -> tuple[dict[tuple[int, int], list[float]], dict[int, float]]:
        """The pauses of each change, and the median of the steps at each size."""
        pauses: dict[tuple[int, int], list[float]] = {}
        options = [f"--workers={WALK[0]}", f"--slots={max(WALK)}", f"--folder={self._folder}"]
        with self._started("--live", *options):
            for _ in range(walks):
                for size in WALK[1:]:
                    self._wait_for_steps(3)
                    order(self._folder, {"op": "resize", "workers": size}, timeout=120.0)
            for each in order(self._folder, {"op": "status"})["resizes"][1:]:
                change = int(each["before"]), int(each["workers"])
                pauses.setdefault(change, []).append(float(each["pause"]))
        steps: dict[int, list[float]] = {}
        for line in self._steps.read_text().splitlines():
            size, begun, ended = json.loads(line)
            steps.setdefault(size, []).append(ended - begun)
        return pauses, {size: median(found) for size, found in steps.items()}

    def restarts(self, repeats: int) -> dict[tuple[int, int], list[float]]:
        """From the end of the last step to the start of the first one after a restart."""
        pauses: dict[tuple[int, int], list[float]] = {}
        for before, after in ((1, 2), (2, 4), (4, 2), (2, 1)) if repeats else ():
            for _ in range(repeats):
                with self._started(f"--workers={before}") as job:
                    self._wait_for_steps(2)
                    job.send_signal(signal.SIGTERM)
                    job.wait(timeout=60)
                last = json.loads(self._steps.read_text().splitlines()[-1])
                with self._started(f"--workers={after}"):
                    self._wait_for_steps(1)
                first = json.loads(self._steps.read_text().splitlines()[0])
                pauses.setdefault((before, after), []).append(first[1] - last[2])
        return pauses

    def torchrun(self) -> float:
        """The same for torchrun, whose workers save a checkpoint when they are stopped."""
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        options = (
            "--nnodes=1:2",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=localhost:{port}",
            f"--rdzv-id={port}",
            "--rdzv-conf=last_call_timeout=1",
            "--monitor-interval=0.1",
        )
        with self._started(*options, module="torch.distributed.run"):
            self._wait_for_steps(2)
            kept = self._steps.read_text()
            with self._started(*options, module="torch.distributed.run"):
                self._steps.write_text(kept)
                until = time.monotonic() + 120
                while True:
                    found = [json.loads(line) for line in self._steps.read_text().splitlines()]
                    grown = [each for each in found if each[0] == 2]
                    if grown:
                        last = [each for each in found if each[0] == 1][-1]
                        return float(grown[0][1] - last[2])
                    if time.monotonic() > until:
                        raise OnesError("torchrun makes no step with 2 workers")
                    time.sleep(0.1)

    @contextlib.contextmanager
    def _started(
        self, *options: str, module: str = "ones.slurm_ext.runtime.launcher"
    ) -> Iterator[subprocess.Popen[bytes]]:
        self._steps.unlink(missing_ok=True)
        job = subprocess.Popen(
            [sys.executable, "-m", module, *options, str(self._folder / "train.py")],
            env=self._environment,
            start_new_session=True,
        )
        try:
            yield job
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()

    def _wait_for_steps(self, more: int) -> None:
        begun, until = self._count(), time.monotonic() + 60
        while self._count() < begun + more:
            if time.monotonic() > until:
                raise OnesError("the training makes no steps")
            time.sleep(0.02)

    def _count(self) -> int:
        return self._steps.read_bytes().count(b"\n") if self._steps.exists() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
