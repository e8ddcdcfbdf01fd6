"""The accounting of the simulated Slurm: the runs of jobs, which slurmdbd learns of later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from ones.slurm_ext.accounting import Held, Run
from ones.slurm_ext.simulated.job import Job, folded, whole
from ones.slurm_ext.usage import Usage


@dataclass(slots=True, kw_only=True)
class _Row:
    """One run. What it holds is a list of (since when, nodes, GPUs), the last one present."""

    job: int
    ordinal: int
    started: float
    holds: list[tuple[float, tuple[str, ...], int]]
    cpus: int
    memory_asked: float | None
    time_limit: float | None
    memory_used: float | None
    ended: float | None = None
    state: str = "RUNNING"


@dataclass(slots=True)
class Accounting:
    """What slurmdbd will have written of each run."""

    _rows: dict[int, list[_Row]] = field(default_factory=dict)

    def begin(self, job: Job, now: float) -> None:
        parts = job.parts.values()
        row = _Row(
            job=job.id,
            ordinal=job.restarts,
            started=now,
            holds=[(now, job.nodes, job.gpus)],
            cpus=sum(part.cpus for part in parts),
            memory_asked=float(max((part.memory for part in parts), default=0)) or None,
            time_limit=job.time_limit,
            memory_used=job.memory_used,
        )
        self._rows.setdefault(job.id, []).append(row)

    def resize(self, job: Job, now: float) -> None:
        self._rows[job.id][-1].holds.append((now, job.nodes, job.gpus))

    def end(self, job: Job, now: float, state: str) -> None:
        rows = self._rows.get(job.id)
        if rows and rows[-1].ended is None:
            rows[-1].ended, rows[-1].state = now, state

    def runs(self, jobs: Iterable[int], known: float) -> list[Run]:
        """As slurmdbd has them when it knows what was so at the time `known`."""
        found: dict[tuple[int, int], Run] = {}
        for number in sorted(set(jobs)):
            for row in self._rows.get(number, ()):
                if row.started <= known:
                    # As with sacct, of two jobs of one number only the later one's runs are told.
                    found[number, row.ordinal] = _run(row, known)
        return [found[key] for key in sorted(found)]

    def usage(self, jobs: Iterable[int], known: float) -> list[Usage]:
        return [
            _usage(row, row.ended)
            for number in sorted(set(jobs))
            for row in self._rows.get(number, ())
            if row.ended is not None and row.ended <= known
        ]

    def purge(self, *, before: float) -> None:
        """Forget the jobs whose last run ended before that time, as slurmdbd's PurgeJobAfter."""
        for number, rows in list(self._rows.items()):
            if all(row.ended is not None and row.ended < before for row in rows):
                del self._rows[number]


def _run(row: _Row, known: float) -> Run:
    holds = [hold for hold in row.holds if hold[0] <= known]
    ended = row.ended if row.ended is not None and row.ended <= known else None
    _, nodes, gpus = holds[-1]
    return Run(
        job=row.job,
        ordinal=row.ordinal,
        started=whole(row.started),
        ended=None if ended is None else whole(ended),
        state="RUNNING" if ended is None else row.state,
        nodes=folded(nodes),
        gpus=gpus,
        before=tuple(
            Held(until=whole(until), nodes=folded(nodes), gpus=gpus)
            for (_, nodes, gpus), (until, *_) in pairwise(holds)
        ),
    )


def _usage(row: _Row, ended: float) -> Usage:
    return Usage(
        job=row.job,
        ordinal=row.ordinal,
        state=row.state,
        started=whole(row.started),
        ended=whole(ended),
        nodes=max(len(row.holds[-1][1]), 1),
        cpus=row.cpus,
        memory_asked=row.memory_asked,
        time_limit=row.time_limit,
        memory=row.memory_used,
        cpu_seconds=row.cpus * max(ended - row.started, 0.0),
    )
