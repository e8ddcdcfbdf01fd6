"""Run on the controller: what readings of Slurm cost with each reader, as one line of JSON.

Arguments: how many readings, and the readers. Of each reading the seconds that passed, the CPU
seconds of this process, of the programs that it started and of slurmctld. The first one is told
apart: the reader by commands asks later only for what has changed. RPCs are those of the later.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from slurmctld_load import Watched, cpu_of_slurmctld

from ones.slurm_ext.choose import choose_reader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.slurm import Slurm


def cost(slurm: Slurm) -> dict[str, float]:
    """Of one reading."""
    began, before, served = time.monotonic(), spent(), cpu_of_slurmctld()
    snapshot = slurm.snapshot()
    passed, after = time.monotonic() - began, spent()
    return {
        "passed": passed,
        "own": after[0] - before[0],
        "programs": after[1] - before[1],
        "slurmctld": cpu_of_slurmctld() - served,
        "jobs": len(snapshot.jobs),
    }


def spent() -> tuple[float, float]:
    """CPU seconds of this process, and of programs: those that ended, and those that go on."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = sum(alive(pid) for pid in children())
    own = time.process_time()
    return own, ended.ru_utime + ended.ru_stime + times


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def alive(pid: str) -> float:
    """CPU seconds of a child that goes on, such as the worker that calls libslurm."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def costs(slurm: Slurm, readings: int) -> dict[str, Any]:
    """Of so many readings, one after the other."""
    found = [cost(slurm)]
    watched = Watched()
    for _ in range(readings - 1):
        found.append(cost(slurm))
        watched.look()
    return {"readings": found, "rpcs": watched.rpcs()}


def main() -> None:
    readings, names = int(sys.argv[1]), sys.argv[2:]
    commands = Commands(timeout=120.0)
    print(
        json.dumps(
            {
                name: costs(Slurm(commands, choose_reader(name, commands)), readings)
                for name in names
            }
        )
    )


if __name__ == "__main__":
    main()
