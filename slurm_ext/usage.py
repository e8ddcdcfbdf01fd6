"""What runs asked for and what they used, as Slurm's accounting has it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.counts import count_in
from ones.slurm_ext.sacct import sacct_rows

_COLUMNS = (
    "JobIDRaw",
    "Restarts",
    "State",
    "Start",
    "End",
    "ElapsedRaw",
    "NNodes",
    "NTasks",
    "AllocCPUS",
    "ReqMem",
    "TotalCPU",
    "MaxRSS",
    "TimelimitRaw",
)
KIB = {"": 1 / 1024, "K": 1.0, "M": 1024.0, "G": 1024.0**2, "T": 1024.0**3, "P": 1024.0**4}
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([KMGTP]?)B?([cn]?)", re.IGNORECASE)
_TIME = re.compile(
    r"(?:([0-9]{1,9})-)?(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,9}(?:\.[0-9]{1,9})?)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One run that has ended. Memory in MiB, of each node; None where Slurm doesn't know it."""

    job: int
    ordinal: int  # restarts before it
    state: str
    started: float
    ended: float
    nodes: int
    cpus: int  # of all nodes
    memory_asked: float | None = None
    time_limit: float | None = None  # seconds
    memory: float | None = None
    cpu_seconds: float | None = None

    @property
    def seconds(self) -> float:
        return max(self.ended - self.started, 0.0)


def usage_of(commands: Commands, jobs: Iterable[int]) -> list[Usage]:
    """The ended runs of these jobs. Raises SlurmError."""
    wanted = set(jobs)  # for the number of one task of an array, sacct tells of them all
    runs: list[Usage] = []
    ended = False  # whether the steps that follow are those of the last run in the list
    for of in sacct_rows(commands, wanted, _COLUMNS):
        if count_in(of["JobIDRaw"]) is not None:
            run = _run(of)
            ended = run is not None
            if run is not None:
                runs.append(run)
        elif ended:
            runs[-1] = _with_step(runs[-1], of)
    return [run for run in runs if run.job in wanted]


def _run(of: dict[str, str]) -> Usage | None:
    """None for what has not ended, or never ran."""
    job, started, ended = (count_in(of[name]) for name in ("JobIDRaw", "Start", "End"))
    if job is None or started is None or ended is None:
        return None
    nodes = max(_count(of["NNodes"]), 1)
    return Usage(
        job=job,
        ordinal=_count(of["Restarts"]),
        state=of["State"].split(" ", 1)[0],  # CANCELLED by UID
        started=float(started),
        ended=float(ended),
        nodes=nodes,
        cpus=_count(of["AllocCPUS"]),
        memory_asked=_asked(of["ReqMem"], nodes=nodes, cpus=_count(of["AllocCPUS"])),
        time_limit=60.0 * _count(of["TimelimitRaw"]) or None,
        cpu_seconds=seconds_in(of["TotalCPU"]),
    )


def _with_step(run: Usage, of: dict[str, str]) -> Usage:
    """MaxRSS is of the largest task; each node is taken to have had its share of such tasks."""
    mebibytes = size_in(of["MaxRSS"])
    if mebibytes is None:
        return run
    tasks, nodes = max(_count(of["NTasks"]), 1), max(_count(of["NNodes"]), 1)
    return replace(run, memory=max(run.memory or 0.0, mebibytes * tasks / min(tasks, nodes)))


def _asked(text: str, *, nodes: int, cpus: int) -> float | None:
    """ReqMem is of the whole job; older Slurm says n or c for that of each node or CPU."""
    match = _SIZE.fullmatch(text.strip())
    mebibytes = size_in(text)
    if match is None or not mebibytes:
        return None
    match match[3].lower():
        case "n":
            return mebibytes
        case "c":
            return mebibytes * cpus / nodes
        case _:
            return mebibytes / nodes


def size_in(text: str) -> float | None:
    """MiB in what Slurm writes as 4096K or 2.5G; None where there is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    return float(match[1]) * KIB[match[2].upper()] / 1024.0


def seconds_in(text: str) -> float | None:
    """Seconds in what Slurm writes as [D-][HH:]MM:SS[.mmm]; None where there is no time."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _count(text: str) -> int:
    return count_in(text) or 0
