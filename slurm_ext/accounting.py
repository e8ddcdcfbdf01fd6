"""The runs of jobs as Slurm's accounting has them: one for each time a job was started."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.tres import gpus_by_type, shards_in

_COLUMNS = ("JobIDRaw", "Restarts", "Start", "End", "State", "AllocTRES", "NodeList")
JOBS_A_CALL = 5000  # keeps the command line far below what the kernel takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a job, from its start to its end or requeue."""

    job: int
    ordinal: int  # restarts before it: 0 for the first run
    started: float
    ended: float | None  # None: it still runs
    state: str  # RUNNING REQUEUED COMPLETED CANCELLED ...
    nodes: str  # folded hostlist
    gpus: int


def runs_of(commands: Commands, jobs: Iterable[int]) -> list[Run]:
    """All runs of these jobs, by job and time. Raises SlurmError."""
    wanted = sorted(set(jobs))
    runs: list[Run] = []
    for at in range(0, len(wanted), JOBS_A_CALL):
        runs += _read(commands, wanted[at : at + JOBS_A_CALL])
    return sorted(runs, key=lambda run: (run.job, run.ordinal, run.started))


def _read(commands: Commands, jobs: Sequence[int]) -> list[Run]:
    text = commands.run(
        "sacct",
        "--duplicates",
        "--parsable2",
        "--noheader",
        "--allocations",
        "--allusers",
        "--jobs=" + ",".join(map(str, jobs)),
        "--format=" + ",".join(_COLUMNS),
    )
    return [run for line in text.splitlines() if (run := _run(line)) is not None]


def _run(line: str) -> Run | None:
    """None for a record that never ran: pending, or cancelled while it was."""
    fields = line.split("|")
    if len(fields) != len(_COLUMNS):
        raise SlurmError("sacct", f"a line has {len(fields)} fields, not {len(_COLUMNS)}")
    job, restarts, start, end, state, tres, nodes = fields
    if not (job.isdecimal() and start.isdecimal()):
        return None
    totals = gpus_by_type(tres)
    return Run(
        job=int(job),
        ordinal=int(restarts) if restarts.isdecimal() else 0,
        started=float(start),
        ended=float(end) if end.isdecimal() else None,
        state=state.split(" ", 1)[0],  # CANCELLED by UID
        nodes=nodes,
        # Slurm writes the total beside each type's part, where it accounts for types.
        gpus=totals.get("") or sum(totals.values()) or min(1, shards_in(tres)),
    )
