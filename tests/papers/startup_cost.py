"""What starting our commands costs: CPU seconds of each, the median of several calls.

usage: scripts/benchmark-startup [--calls N] [--training PYTHON]

`onesd` answers here on a simulated cluster, in this process, and is not counted. With --training,
the Python of an environment with torch and ones-slurm-runtime: what a training pays for the latter.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from shutil import which
from statistics import median

from ones.daemon.config import load_config
from ones.daemon.onesd.assembly import assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.doors.http import Api
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.settings import NodeSpec, Settings, Site
from ones.slurm_ext.simulated.world import World, gpus

HERE = Path(sys.executable).parent
NODES, JOBS = 80, 40
COMPLETE = "a Tab press: "
TRAINING = (
    "import torch",
    "import torch, ones",
    # The same, and what ones.init() loads for a worker of several.
    "import torch, ones, ones.slurm_ext.runtime.start, ones.slurm_ext.runtime.torch_framework",
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-startup", description=__doc__)
    parser.add_argument("--calls", type=int, default=11)
    parser.add_argument("--training", type=Path, metavar="PYTHON")
    given = parser.parse_args(arguments)
    calls = given.calls
    if given.training is not None:
        print(training_table(given.training, calls))
        return 0
    with a_served_onesd() as (config, job):
        print("| command | CPU s |\n|---|---|")
        for name, words, environment in commands(job):
            asked = {"ONES_CONF": str(config), **environment}
            seconds = median(cpu_seconds(words, asked) for _ in range(calls))
            print(f"| `{name}` | {seconds:.3f} |", flush=True)
    return 0


def commands(job: int) -> Iterator[tuple[str, Sequence[str], Mapping[str, str]]]:
    """Name, words and environment of each."""
    yield "python -c pass", (sys.executable, "-c", "pass"), {}
    for line in (
        *("onesctl --version", "onesctl --help", "onesctl status", "onesctl jobs"),
        *(f"onesctl job {job}", f"onesctl explain {job}", "onesctl plan", "onesctl nodes"),
        *("onesctl sharing", "onesctl report needs", f"onesctl estimate {job}"),
        *("onesctl policy show", "onesctl policy list", "onesctl replay --help"),
        *("onesctl solve --help", "ones-run --help", "ones-release --help"),
        *("ones-stage-in", "ones-agent --version", "onesd --version"),
    ):
        program, *words = line.split()
        yield line, (str(HERE / program), *words), {}
    for line in ("onesctl jo", f"onesctl job {str(job)[:1]}", "onesctl policy set on"):
        words = line.split()
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        environment = {"_ONESCTL_COMPLETE": "bash_complete", **asked}
        yield f"{COMPLETE}{line}", (str(HERE / "onesctl"),), environment
    if squeue := which("squeue"):
        yield "squeue", (squeue,), {}


def training_table(python: Path, calls: int) -> str:
    """One of each after the other, so that what else the machine does falls on all alike."""
    rounds = [
        [cpu_seconds((str(python), "-c", line), {"PYTHONPATH": ""}) for line in TRAINING]
        for _ in range(calls)
    ]
    own, *_ = middle = [median(each) for each in zip(*rounds, strict=True)]
    rows = [
        f"| `{line}` | {seconds:.3f} | {seconds - own:.3f} |"
        for line, seconds in zip(TRAINING, middle, strict=True)
    ]
    return "\n".join(["| | CPU s | beyond torch's own |", "|---|---|---|", *rows])


def cpu_seconds(words: Sequence[str], environment: Mapping[str, str]) -> float:
    """Of one call, in itself and in the kernel."""
    nowhere = [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in (0, 1, 2)]
    child = os.posix_spawn(words[0], words, {**os.environ, **environment}, file_actions=nowhere)
    _, _, used = os.wait4(child, 0)
    return used.ru_utime + used.ru_stime


@contextmanager
def a_served_onesd() -> Iterator[tuple[Path, int]]:
    """Its configuration, and the number of a job."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config = Path(folder) / "ones.toml"
        config.write_text(
            f'controller = "localhost:{free.getsockname()[1]}"\nsocket = "{folder}/onesd.sock"\n'
            'policy = "fifo"\n[daemon]\naddress = "127.0.0.1"\n'
        )
        free.close()
        nodes = tuple(NodeSpec(name=f"n{number:02}") for number in range(1, NODES + 1))
        world = World(Site(nodes=nodes, users={"alice": "vision"}), Settings(), rng=Random(1))
        world.new_jobs_are_held(lambda: True)
        jobs = [world.submit("alice", wants=gpus(4), elastic="1-16") for _ in range(JOBS)]
        world.step(10.0)
        loop, ready = asyncio.new_event_loop(), threading.Event()
        stop = asyncio.Event()

        async def serve() -> None:
            loaded = load_config(config)
            onesd = assemble(
                loaded, SimulatedCluster(world), Store(":memory:"), clock=lambda: world.now
            )
            onesd.rounds.round()
            runner = await Api(onesd.service).serve()
            ready.set()
            await stop.wait()
            await runner.cleanup()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        ready.wait()
        try:
            yield config, jobs[0]
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
