"""Run on the controller: what readings of Slurm cost with each reader, as one line of JSON.

Arguments: how many readings, and the readers. Of each reading the seconds that passed and the CPU
seconds of this process and of the programs that it started, the first one apart: the reader by
commands asks later only for what has changed.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

from ones.slurm_ext.choose import choose_reader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.snapshot import Reader


def cost(reader: Reader) -> dict[str, float]:
    """Of one reading."""
    began, before = time.monotonic(), spent()
    snapshot = reader.snapshot()
    passed, after = time.monotonic() - began, spent()
    return {
        "passed": passed,
        "own": after[0] - before[0],
        "programs": after[1] - before[1],
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


def main() -> None:
    found = {}
    for name in sys.argv[2:]:
        reader = choose_reader(name, Commands(timeout=120.0))
        found[name] = [cost(reader) for _ in range(int(sys.argv[1]))]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
