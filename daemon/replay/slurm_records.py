"""Jobs of a real Slurm, as `sacct --json` and `sacct -P` print them; the columns for the latter:

sacct -P -X --format=JobIDRaw,JobName,User,Account,Submit,ElapsedRaw,State,AllocTRES,AdminComment

Partition, QOS, TimelimitRaw, Reservation and NNodes may follow: what Slurm's own rules go by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import Any

from ones.daemon.replay.faults import TraceError, quoted
from ones.daemon.replay.recorded import Recorded, speedup
from ones.daemon.replay.tables import Row, rows
from ones.daemon.replay.workload import TraceJob
from ones.policies.model import Seconds
from ones.policies.sizes import Sizes
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.satellites import Tie
from ones.slurm_ext.tres import gpus_by_type, memory_in

UNKNOWN = ("", "Unknown", "None", "N/A", "0", "INVALID")
LONGEST_RUN: Seconds = 1000 * 86400.0  # of a job
LONGEST_SPAN: Seconds = 3650 * 86400.0  # from the first submission to the last
_LICENSE = re.compile(r"\blicense/([^=,]{1,128})=([0-9]{1,9})\b")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What Slurm's own scheduling goes by."""

    partition: str = ""
    qos: str = ""
    reservation: str = ""
    time_limit: Seconds | None = None
    nodes: int = 0
    memory: float = 0.0  # MiB of all nodes
    licenses: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class _Record:
    """A job's runs put together."""

    row: Row
    key: str
    name: str
    user: str
    account: str
    mark: Mark | None
    base: str  # the job whose satellite it is, or ''
    submitted: Seconds
    runs: list[tuple[int, Seconds]]  # GPUs and time of each
    terms: _Terms

    def fault(self, reason: str) -> TraceError:
        """What makes no sense about it; a line of JSON has no number."""
        line = self.row.line if self.row.cells else None
        return TraceError(self.row.file, f"job {quoted(self.key)}: {reason}", line=line)

    def job(self, earliest: Seconds) -> TraceJob:
        gpus = self.mark.request if self.mark else self.runs[-1][0]
        sizes = self.mark.sizes if self.mark else Sizes((gpus,))
        work = sum(seconds * speedup(count) for count, seconds in self.runs)
        return TraceJob(
            name=self.key,
            user=self.user,
            family=self.name,
            account=self.account,
            submitted=self.submitted - earliest,
            application=Recorded(
                name=self.name, gpus=gpus, seconds=work / speedup(gpus), sizes=sizes
            ),
            requested=gpus,
            batch=None,
            sizes=sizes,
            declared=False,
            opted_in=self.mark is not None,
            time_limit=self.terms.time_limit,
            partition=self.terms.partition,
            qos=self.terms.qos,
            reservation=self.terms.reservation,
            nodes=self.terms.nodes if self.mark is None and self.terms.nodes <= gpus else 0,
            memory=self.terms.memory * gpus / (self.runs[0][0] or gpus),
            licenses=self.terms.licenses,
        )


def is_parsable(text: str) -> bool:
    """Whether the first line is the heading of `sacct -P` or `-p`."""
    heading = text.split("\n", 1)[0].strip().split("|")
    return len(heading) > 1 and bool({"JobID", "JobIDRaw"} & set(heading))


def jobs(path: Path, text: str, note: Callable[[str], None]) -> Iterator[tuple[Row, TraceJob]]:
    """The jobs that ran on GPUs and have ended. Raises TraceError."""
    records: dict[str, _Record] = {}
    parts: list[_Record] = []
    left_out = 0
    runs = _from_json(path, text) if text.lstrip().startswith("{") else _from_table(path, text)
    for key, record in runs:
        gpus, seconds = record.runs[0]
        if seconds > LONGEST_RUN:
            raise record.fault(f"it ran for {seconds / 86400:,.0f} days, which no job does")
        if not gpus or seconds <= 0:
            left_out += 1
        elif record.base:
            parts.append(record)
        elif key in records:
            records[key].runs += record.runs
            records[key].submitted = min(records[key].submitted, record.submitted)
        else:
            records[key] = record
    for part in parts:
        # A job that was resized live ran on these GPUs as well.
        if part.base in records:
            records[part.base].runs += part.runs
        else:
            left_out += 1
    _check_span(records.values())
    earliest = min((record.submitted for record in records.values()), default=0.0)
    for record in records.values():
        yield record.row, record.job(earliest)
    if left_out:
        note(f"{path}: {left_out} records that never ran, still run or had no GPUs are left out")


def _check_span(records: Collection[_Record]) -> None:
    """Raises TraceError where a submission is years away from the others."""
    if not records:
        return
    middle = median_low(record.submitted for record in records)
    for record in records:
        if abs(record.submitted - middle) > LONGEST_SPAN:
            years = abs(record.submitted - middle) / (365.25 * 86400)
            raise record.fault(f"it was submitted {years:,.0f} years from the others")


def _from_table(path: Path, text: str) -> Iterator[tuple[str, _Record]]:
    heading = text.split("\n", 1)[0].strip().split("|")
    identity = "JobIDRaw" if "JobIDRaw" in heading else "JobID"
    required = [identity, "Submit", "AllocTRES"]
    if "ElapsedRaw" not in heading and "Elapsed" not in heading:
        required += ["Start", "End"]
    for row in rows(path, required, text=text, delimiter="|", quoting=False):
        key = row.text(identity)
        if "." in key:  # a step of a job
            continue
        name = row.cells.get("JobName", "").strip() or key
        state = row.cells.get("State", "").split(" ", 1)[0]
        submitted = _moment(row, "Submit")
        if submitted is None:
            raise row.fault("Submit", "names no time")
        unfinished = state in ("RUNNING", "PENDING", "SUSPENDED")
        yield (
            key,
            _Record(
                row=row,
                key=key,
                name=name,
                user=row.cells.get("User", "").strip(),
                account=row.cells.get("Account", "").strip(),
                mark=Mark.parse(row.cells.get("AdminComment", "")),
                base=_base(row.cells.get("AdminComment", "")),
                submitted=submitted,
                runs=[(_gpus(row.cells["AllocTRES"]), 0.0 if unfinished else _seconds(row))],
                terms=_terms(row),
            ),
        )


def _terms(row: Row) -> _Terms:
    cells = {name: row.cells.get(name, "").strip() for name in ("Partition", "QOS", "Reservation")}
    limit = row.cells.get("TimelimitRaw", "").strip()
    nodes = row.cells.get("NNodes", "").strip()
    return _Terms(
        partition=cells["Partition"],
        qos=cells["QOS"],
        reservation=cells["Reservation"],
        # Otherwise it is UNLIMITED or Partition_Limit.
        time_limit=60 * row.number("TimelimitRaw") if limit.isdecimal() and int(limit) else None,
        nodes=row.count("NNodes") if nodes.isdecimal() else 0,
        memory=memory_in(row.cells["AllocTRES"]),
        licenses=tuple((name, int(n)) for name, n in _LICENSE.findall(row.cells["AllocTRES"])),
    )


def _base(admin_comment: str) -> str:
    tie = Tie.read(admin_comment)
    return "" if tie is None else str(tie.base)


def _seconds(row: Row) -> Seconds:
    """How long the run took; 0 where it never started or has not ended."""
    if "ElapsedRaw" in row.cells:
        return row.number("ElapsedRaw", least=0.0) if row.has("ElapsedRaw") else 0.0
    if "Elapsed" in row.cells:
        if row.cells["Elapsed"].strip() in UNKNOWN:
            return 0.0
        match = _ELAPSED.fullmatch(row.text("Elapsed"))
        if match is None:
            raise row.fault("Elapsed", f"{quoted(row.text('Elapsed'))} is not [D-]HH:MM:SS")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    started, ended = _moment(row, "Start"), _moment(row, "End")
    if started is None or ended is None:
        return 0.0
    if ended < started:
        raise row.fault("End", "lies before Start")
    return ended - started


def _moment(row: Row, column: str) -> Seconds | None:
    """Seconds since the epoch, or of local time where Slurm printed that; None: not yet."""
    text = row.cells[column].strip()
    if text in UNKNOWN:
        return None
    if text.isascii() and text.isdecimal():
        return row.number(column)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise row.fault(column, f"{quoted(text)} is not a time as sacct prints it") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _gpus(tres: str) -> int:
    """Slurm writes the total beside each type's part, where it accounts for types."""
    found = gpus_by_type(tres)
    return found.get("") or sum(found.values())


def _from_json(path: Path, text: str) -> Iterator[tuple[str, _Record]]:
    try:
        answer = json.loads(text)
    except json.JSONDecodeError as fault:
        raise TraceError(path, f"is not JSON: {fault.msg}", line=fault.lineno) from None
    except ValueError as fault:  # a number of too many digits
        raise TraceError(path, f"is not JSON: {fault}") from None
    except RecursionError:
        raise TraceError(path, "is nested too deeply to be what sacct --json prints") from None
    listed = answer.get("jobs") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        raise TraceError(path, "has no list of jobs; sacct --json prints one")
    for number, job in enumerate(listed, start=1):
        row = Row(path, 1, {})
        where = f"jobs[{number - 1}]"
        if not isinstance(job, dict):
            raise TraceError(path, f"{where} is no job")
        times = job.get("time")
        if not isinstance(times, dict):
            raise TraceError(path, f"{where} has no times", column="time")
        submitted, started, ended = (
            _number(path, f"{where}.time.{key}", times.get(key))
            for key in ("submission", "start", "end")
        )
        if not submitted:
            raise TraceError(path, f"{where} names no time", column="time.submission")
        if ended and started and ended < started:
            raise TraceError(path, f"{where} ends before it starts", column="time.end")
        key = str(job.get("job_id") or number)
        name = str(job.get("name") or key)
        comment = job.get("comment")
        said = comment.get("administrator") if isinstance(comment, dict) else None
        yield (
            key,
            _Record(
                row=row,
                key=key,
                name=name,
                user=str(job.get("user") or ""),
                account=str(job.get("account") or ""),
                mark=Mark.parse(said) if isinstance(said, str) else None,
                base=_base(said) if isinstance(said, str) else "",
                submitted=submitted,
                runs=[(_gpus_in(path, where, job), ended - started if started and ended else 0.0)],
                terms=_json_terms(path, where, job, times),
            ),
        )


def _json_terms(path: Path, where: str, job: dict[str, Any], times: dict[str, Any]) -> _Terms:
    said = job.get("reservation")
    limit = times.get("limit")
    if isinstance(limit, dict) and limit.get("infinite"):
        limit = None
    minutes = _number(path, f"{where}.time.limit", limit)
    return _Terms(
        partition=str(job.get("partition") or ""),
        qos=str(job.get("qos") or ""),
        reservation=str(said.get("name") or "") if isinstance(said, dict) else "",
        time_limit=60 * minutes or None,
        nodes=int(_number(path, f"{where}.allocation_nodes", job.get("allocation_nodes"))),
        memory=_allocated(path, where, job, "mem").get("", 0),
        licenses=(*_allocated(path, where, job, "license").items(),),
    )


def _gpus_in(path: Path, where: str, job: dict[str, Any]) -> int:
    """GPUs in the list of resources that it held."""
    found = _allocated(path, where, job, "gres")
    typed = (count for name, count in found.items() if name.startswith("gpu:"))
    return found.get("gpu") or sum(typed)


def _allocated(path: Path, where: str, job: dict[str, Any], kind: str) -> dict[str, int]:
    """What it held of one type of resources, by name."""
    tres = job.get("tres")
    listed = tres.get("allocated") if isinstance(tres, dict) else None
    if not isinstance(listed, list):
        raise TraceError(path, f"{where} has no list of resources", column="tres.allocated")
    return {
        str(entry.get("name") or ""): int(
            _number(path, f"{where}.tres.allocated", entry.get("count"))
        )
        for entry in listed
        if isinstance(entry, dict) and entry.get("type") == kind
    }


def _number(path: Path, where: str, value: Any) -> float:
    """Newer versions wrap their numbers; one that is not set counts as 0."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else 0
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TraceError(path, f"{quoted(str(value))} is not a number of 0 or more", column=where)
    return float(value)
