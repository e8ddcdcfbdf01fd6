"""Jobs of a real Slurm, as `sacct --json` and `sacct -P` print them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low

from ones.daemon.replay import sacct_json, sacct_table
from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.recorded import Recorded, speedup
from ones.daemon.replay.sacct_record import Record
from ones.daemon.replay.tables import Row
from ones.daemon.replay.workload import TraceJob
from ones.policies.model import Seconds
from ones.policies.sizes import Sizes

LONGEST_RUN: Seconds = 1000 * 86400.0  # of a job
LONGEST_SPAN: Seconds = 3650 * 86400.0  # from the first submission to the last
SENSELESS = 0.1  # of the records: a file with more of them is not what it seems


def is_records(text: str) -> bool:
    """Whether `sacct` has printed this."""
    return text.lstrip().startswith("{") or sacct_table.is_parsable(text)


def jobs(path: Path, text: str, note: Callable[[str], None]) -> Iterator[tuple[Row, TraceJob]]:
    """The jobs that ran on GPUs and have ended. `note` is told of what is left out.

    Raises TraceError where it is not what sacct prints, or much of it makes no sense.
    """
    reader = sacct_json if text.lstrip().startswith("{") else sacct_table
    found = _Found()
    for record in reader.records(path, text):
        found.take(record)
    together = found.together()
    if found.faults and len(found.faults) > SENSELESS * found.seen:
        raise found.faults[0]
    earliest = min((one.submitted for one in together), default=0.0)
    for one in together:
        yield one.first.row, one.job(earliest)
    if found.left_out:
        note(
            f"{path}: {found.left_out} records that never ran, still run or had no GPUs are left"
            " out"
        )
    if found.faults:
        note(
            f"{path}: {len(found.faults)} records that make no sense are left out; the first:"
            f" {found.faults[0]}"
        )


@dataclass(slots=True)
class _Together:
    """A job's runs put together."""

    name: str  # its number, and which one with this number it is
    first: Record
    runs: list[tuple[int, Seconds]]  # GPUs and time of each
    submitted: Seconds

    def job(self, earliest: Seconds) -> TraceJob:
        mark, terms = self.first.mark, self.first.terms
        gpus = mark.request if mark else self.runs[-1][0]
        sizes = mark.sizes if mark else Sizes((gpus,))
        work = sum(seconds * speedup(count) for count, seconds in self.runs)
        seconds = work / speedup(gpus)
        return TraceJob(
            name=self.name,
            user=self.first.user,
            family=self.first.name,
            account=self.first.account,
            submitted=self.submitted - earliest,
            application=Recorded(name=self.first.name, gpus=gpus, seconds=seconds, sizes=sizes),
            requested=gpus,
            batch=None,
            sizes=sizes,
            declared=False,
            opted_in=mark is not None,
            # Slurm's is for each run, and this is one run that stands for all.
            time_limit=None if terms.time_limit is None else max(terms.time_limit, seconds),
            partition=terms.partition,
            qos=terms.qos,
            reservation=terms.reservation,
            nodes=terms.nodes if mark is None and terms.nodes <= gpus else 0,
            memory=terms.memory * gpus / (self.runs[0][0] or gpus),
            licenses=terms.licenses,
        )


@dataclass(slots=True)
class _Found:
    """What the records tell, as far as they have been read."""

    seen: int = 0
    left_out: int = 0
    faults: list[TraceError] = field(default_factory=list)
    _jobs: dict[tuple[str, ...], _Together] = field(default_factory=dict)
    _numbers: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    _parts: list[Record] = field(default_factory=list)
    _running: set[tuple[str, ...]] = field(default_factory=set)

    def take(self, record: Record | TraceError) -> None:
        self.seen += 1
        if isinstance(record, TraceError):
            self.faults.append(record)
            return
        # Slurm begins with its numbers anew after the last, or where it has lost its state.
        who = (record.key, record.user, record.account, record.name)
        if not record.ended:
            self._running.add(who)
        if record.seconds > LONGEST_RUN:
            days = record.seconds / 86400
            self.faults.append(record.fault(f"it ran for {days:,.0f} days, which no job does"))
        elif not record.gpus or record.seconds <= 0:
            self.left_out += 1
        elif record.base:
            self._parts.append(record)
        elif who in self._jobs:
            same = self._jobs[who]
            same.runs.append((record.gpus, record.seconds))
            same.submitted = min(same.submitted, record.submitted)
        else:
            numbers = self._numbers.setdefault(record.key, [])
            numbers.append(who)
            name = record.key if len(numbers) == 1 else f"{record.key}#{len(numbers)}"
            runs = [(record.gpus, record.seconds)]
            self._jobs[who] = _Together(name, record, runs, record.submitted)

    def together(self) -> list[_Together]:
        """The jobs with all of their runs."""
        for part in self._parts:
            # A job that was resized live ran on these GPUs as well.
            if part.base in self._numbers:
                base = self._jobs[self._numbers[part.base][0]]
                base.runs.append((part.gpus, part.seconds))
            else:
                self.left_out += 1
        self._parts.clear()
        for who in self._running & self._jobs.keys():
            self.left_out += len(self._jobs.pop(who).runs)
        return self._near(self._jobs.values())

    def _near(self, found: Iterable[_Together]) -> list[_Together]:
        """Without those whose submission is years away from the others'."""
        found = list(found)
        middle = median_low(one.submitted for one in found) if found else 0.0
        near = []
        for one in found:
            years = abs(one.submitted - middle) / (365.25 * 86400)
            if abs(one.submitted - middle) <= LONGEST_SPAN:
                near.append(one)
            else:
                told = f"it was submitted {years:,.0f} years from the others"
                self.faults.append(one.first.fault(told))
        return near
