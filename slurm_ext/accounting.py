"""The runs of jobs as Slurm's accounting has them: one for each time a job was started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.sacct import sacct_rows
from ones.slurm_ext.tres import gpus_by_type, shards_in

_COLUMNS = ("JobIDRaw", "Restarts", "Start", "End", "State", "AllocTRES", "NodeList")


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
    rows = sacct_rows(commands, jobs, _COLUMNS, "--allocations")
    runs = [run for row in rows if (run := _run(row)) is not None]
    return sorted(runs, key=lambda run: (run.job, run.ordinal, run.started))


def _run(row: Mapping[str, str]) -> Run | None:
    """None for a record that never ran: pending, or cancelled while it was."""
    job, restarts, start, end, state, tres, nodes = (row[name] for name in _COLUMNS)
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
