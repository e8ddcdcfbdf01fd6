"""The runs of jobs as Slurm's accounting has them: one for each time a job was started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.counts import count_in
from ones.slurm_ext.sacct import sacct_rows
from ones.slurm_ext.tres import gpus_by_type, shards_in

RESIZED = "RESIZING"  # the state of a record that ends because its job got smaller
_COLUMNS = ("JobIDRaw", "Restarts", "Start", "End", "State", "AllocTRES", "NodeList")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a run held until it gave back nodes, or lost them."""

    until: float
    nodes: str  # folded hostlist
    gpus: int


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
    before: tuple[Held, ...] = ()  # what it held earlier, oldest first


def runs_of(commands: Commands, jobs: Iterable[int]) -> list[Run]:
    """All runs of these jobs, by job and time. Raises SlurmError."""
    wanted = set(jobs)  # for the number of one task of an array, sacct tells of them all
    rows = sacct_rows(commands, wanted, _COLUMNS, "--allocations")
    runs = [run for row in rows if (run := _run(row)) is not None and run.job in wanted]
    runs.sort(key=lambda run: (run.job, run.ordinal, run.ended is None, run.ended))
    return [_whole(list(parts)) for _, parts in groupby(runs, lambda run: (run.job, run.ordinal))]


def _whole(parts: list[Run]) -> Run:
    """Slurm writes a record whenever a run gets smaller; each says the start of the whole run.

    But one alone for all that a run held within a second: what it had before is lost then.
    """
    before = tuple(
        Held(until=part.ended, nodes=part.nodes, gpus=part.gpus)
        for part in parts[:-1]
        if part.state == RESIZED and part.ended is not None
    )
    return replace(parts[-1], before=before)


def _run(row: Mapping[str, str]) -> Run | None:
    """None for a record that never ran: pending, or cancelled while it was."""
    job, restarts, start, end, state, tres, nodes = (row[name] for name in _COLUMNS)
    number, started, ended = count_in(job), count_in(start), count_in(end)
    if number is None or started is None:
        return None
    totals = gpus_by_type(tres)
    return Run(
        job=number,
        ordinal=count_in(restarts) or 0,
        started=float(started),
        ended=None if ended is None else float(ended),
        state=state.split(" ", 1)[0],  # CANCELLED by UID
        nodes=nodes,
        # Slurm writes the total beside each type's part, where it accounts for types.
        gpus=totals.get("") or sum(totals.values()) or min(1, shards_in(tres)),
    )
