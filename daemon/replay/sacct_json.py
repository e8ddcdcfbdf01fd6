"""Jobs as `sacct --json` prints them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ones.daemon.replay.faults import TraceError, quoted
from ones.daemon.replay.sacct_record import Record, Terms
from ones.daemon.replay.tables import Row
from ones.policies.model import Seconds


def records(path: Path, text: str) -> Iterator[Record | TraceError]:
    """Each run, or what makes no sense about it. Raises TraceError where it is no such JSON."""
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
    for number, job in enumerate(listed):
        try:
            yield _record(path, number, job)
        except TraceError as fault:
            yield fault


def _record(path: Path, number: int, job: Any) -> Record:
    where = f"jobs[{number}]"
    if not isinstance(job, dict):
        raise TraceError(path, f"{where} is no job")
    times = job.get("time")
    if not isinstance(times, dict):
        raise TraceError(path, f"{where} has no times", column="time")
    gpus = _gpus(path, where, job)
    key = str(job.get("job_id") or number + 1)
    comment = job.get("comment")
    said = comment.get("administrator") if isinstance(comment, dict) else None
    submitted, seconds, ended = _times(path, where, times) if gpus else (0.0, 0.0, True)
    return Record(
        row=Row(path, 1, {}),
        key=key,
        name=str(job.get("name") or key),
        user=str(job.get("user") or ""),
        account=str(job.get("account") or ""),
        admin_comment=said if isinstance(said, str) else "",
        submitted=submitted,
        gpus=gpus,
        seconds=seconds,
        ended=ended,
        terms=_terms(path, where, job, times) if gpus else Terms(),
    )


def _times(path: Path, where: str, times: dict[str, Any]) -> tuple[Seconds, Seconds, bool]:
    """When it was submitted, how long it ran (not suspended), and whether it has ended."""
    submitted, started, ended = (
        _number(path, f"{where}.time.{key}", times.get(key))
        for key in ("submission", "start", "end")
    )
    if not submitted:
        raise TraceError(path, f"{where} names no time", column="time.submission")
    if ended and started and ended < started:
        raise TraceError(path, f"{where} ends before it starts", column="time.end")
    seconds = ended - started if started and ended else 0.0
    if times.get("elapsed") is not None:
        seconds = min(seconds, _number(path, f"{where}.time.elapsed", times["elapsed"]))
    return submitted, seconds, bool(ended)


def _terms(path: Path, where: str, job: dict[str, Any], times: dict[str, Any]) -> Terms:
    said = job.get("reservation")
    limit = times.get("limit")
    if isinstance(limit, dict) and limit.get("infinite"):
        limit = None
    minutes = _number(path, f"{where}.time.limit", limit)
    return Terms(
        partition=str(job.get("partition") or ""),
        qos=str(job.get("qos") or ""),
        reservation=str(said.get("name") or "") if isinstance(said, dict) else "",
        time_limit=60 * minutes or None,
        nodes=int(_number(path, f"{where}.allocation_nodes", job.get("allocation_nodes"))),
        memory=_allocated(path, where, job, "mem").get("", 0),
        licenses=(*_allocated(path, where, job, "license").items(),),
    )


def _gpus(path: Path, where: str, job: dict[str, Any]) -> int:
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
        if isinstance(entry, dict)
        and entry.get("type") == kind
        and (kind != "gres" or re.fullmatch(r"gpu(:.*)?", str(entry.get("name"))))
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
