"""Jobs as `sacct -P` prints them, with the columns

sacct -P -X -D --format=JobIDRaw,JobName,User,Account,Submit,ElapsedRaw,State,AllocTRES,AdminComment

Partition, QOS, TimelimitRaw, Reservation and NNodes may follow: what Slurm's own rules go by.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ones.daemon.replay.faults import TraceError, quoted
from ones.daemon.replay.sacct_record import Record, Terms
from ones.daemon.replay.tables import Row, rows_or_faults
from ones.policies.model import Seconds
from ones.slurm_ext.tres import gpus_by_type, memory_in

UNKNOWN = ("", "Unknown", "None", "N/A", "0", "INVALID")
UNFINISHED = ("RUNNING", "PENDING", "SUSPENDED")
_LICENSE = re.compile(r"\blicense/([^=,]{1,128})=([0-9]{1,9})\b")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


def is_parsable(text: str) -> bool:
    """Whether the first line is the heading of `sacct -P` or `-p`."""
    heading = text.split("\n", 1)[0].strip().split("|")
    return len(heading) > 1 and bool({"JobID", "JobIDRaw"} & set(heading))


def records(path: Path, text: str) -> Iterator[Record | TraceError]:
    """Each run, or what makes no sense about it. Raises TraceError where it is no such table."""
    heading = text.split("\n", 1)[0].strip().split("|")
    identity = "JobIDRaw" if "JobIDRaw" in heading else "JobID"
    required = [identity, "Submit", "AllocTRES"]
    if "ElapsedRaw" not in heading and "Elapsed" not in heading:
        required += ["Start", "End"]
    for row in rows_or_faults(path, required, text, delimiter="|", quoting=False):
        if isinstance(row, TraceError):
            yield row
            continue
        try:
            key = row.text(identity)
            if "." not in key:  # a step of a job
                yield _record(row, key)
        except TraceError as fault:
            yield fault


def _record(row: Row, key: str) -> Record:
    gpus = _gpus(row.cells["AllocTRES"])
    state = row.cells.get("State", "").split(" ", 1)[0]
    ended = state not in UNFINISHED
    submitted = _moment(row, "Submit") if gpus else 0.0
    if submitted is None:
        raise row.fault("Submit", "names no time")
    return Record(
        row=row,
        key=key,
        name=row.cells.get("JobName", "").strip() or key,
        user=row.cells.get("User", "").strip(),
        account=row.cells.get("Account", "").strip(),
        admin_comment=row.cells.get("AdminComment", ""),
        submitted=submitted,
        gpus=gpus,
        seconds=_seconds(row) if gpus and ended else 0.0,
        ended=ended,
        terms=_terms(row) if gpus else Terms(),
    )


def _terms(row: Row) -> Terms:
    cells = {name: row.cells.get(name, "").strip() for name in ("Partition", "QOS", "Reservation")}
    limit = row.cells.get("TimelimitRaw", "").strip()
    nodes = row.cells.get("NNodes", "").strip()
    return Terms(
        partition=cells["Partition"],
        qos=cells["QOS"],
        reservation=cells["Reservation"],
        # Otherwise it is UNLIMITED or Partition_Limit.
        time_limit=60 * row.number("TimelimitRaw") if limit.isdecimal() and int(limit) else None,
        nodes=row.count("NNodes") if nodes.isdecimal() else 0,
        memory=memory_in(row.cells["AllocTRES"]),
        licenses=tuple((name, int(n)) for name, n in _LICENSE.findall(row.cells["AllocTRES"])),
    )


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
