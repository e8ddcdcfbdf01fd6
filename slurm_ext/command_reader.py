"""Reads Slurm through its commands: four calls a round, however long the queue is.

All jobs come as columns of one squeue; only those that hold GPUs, or are between two states, come
once more as JSON, which alone says how many GPUs they hold on which node. With 500 pending and 4
running jobs a whole snapshot takes 55 ms (two cores, Slurm 24.11), where all of it as JSON would
take 730 ms and 4 MB. slurmctld is asked for its jobs twice and for its nodes once; its topology is
read again every ten minutes, or when other nodes appear than it was read for.

A job whose columns are those of the last time is the same record as then, and one that runs is not
asked for again as JSON: that alone would take longer than all else on a large cluster. It is more
calls only where hundreds of jobs have started since, as for the first reading.

squeue shows the waiting tasks of one array as one job, also those that have become jobs of their
own. That is enough of plain ones; the tasks of elastic arrays are read as JSON, too.

A job's name may hold anything, line ends and forged columns included. So the columns are set
apart by a token drawn anew for each call, which nobody can have put into a name.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.counts import count_in
from ones.slurm_ext.errors import RecordFault, SlurmError, SlurmUnreachable
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.job_json import job_record, node_record, reservation_record
from ones.slurm_ext.snapshot import (
    ENDED,
    HOLDING,
    MARK,
    JobRecord,
    NodeRecord,
    Reservation,
    Snapshot,
)
from ones.slurm_ext.usage import size_in

log = logging.getLogger(__name__)
_Record = TypeVar("_Record")
TOPOLOGY_LIFETIME = 600.0  # seconds
MOST_DETAILS = 500  # jobs that are read as JSON by one command
DETAILS_LIFETIME = 600.0  # seconds for which a job's GPUs are those read before, if its row is
_COLUMNS = (
    "JobID",
    "Name",
    "UserName",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Reason",
    "PriorityLong",
    "Nice",
    "RestartCnt",
    "SubmitTime",
    "EligibleTime",
    "StartTime",
    "EndTime",
    "exit_code",
    "TimeLimit",
    "NumNodes",
    "MaxNodes",
    "NumTasks",
    "cpus-per-task",
    "NTPerNode",
    "NumCPUs",
    "tres-per-job",
    "tres-per-node",
    "tres-per-task",
    "cpus-per-tres",
    "mem-per-tres",
    "MinMemory",
    "Licenses",
    "tres-alloc",
    "Feature",
    "Dependency",
    "ReqNodes",
    "ExcNodes",
    "NodeList",
    "BatchHost",
    "admin_comment",
    "Requeue",
    "JobArrayID",
    "ArrayJobID",
    "Reservation",
)
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None assigned"})
_UNSET = 0xFFFFFFF0  # Slurm prints its NO_VAL and INFINITE as numbers from here on
_SWITCH = re.compile(r"^ *SwitchName=(\S+) Level=([0-9]{1,9}) .*?Nodes=(\S*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Known:
    """A job as last read: with the same columns it is the same record, details included."""

    columns: tuple[str, ...]
    record: JobRecord
    detailed: float | None = None  # when its details were read; None: the columns say it all

    def holds(self, row: Mapping[str, str], now: float) -> bool:
        fresh = self.detailed is None or 0 <= now - self.detailed < DETAILS_LIFETIME
        return fresh and self.columns == tuple(row.values())


class CommandReader:
    """Reads Slurm through squeue and scontrol."""

    name = "commands"

    def __init__(self, commands: Commands, *, clock: Callable[[], float] = time.time) -> None:
        self._commands = commands
        self._clock = clock
        self._switches: Mapping[str, tuple[str, ...]] = {}
        self._switches_of: frozenset[str] = frozenset()
        self._switches_read: float | None = None
        self._known: dict[str, _Known] = {}  # by job number

    def snapshot(self) -> Snapshot:
        taken = self._clock()
        unread: dict[str, str] = {}
        jobs = self._jobs(unread, taken)
        nodes = self._nodes(unread)
        return Snapshot(
            taken=taken,
            jobs=jobs,
            nodes=nodes,
            switches=self._topology(nodes, taken),
            unread=unread,
        )

    def _jobs(self, unread: dict[str, str], now: float) -> dict[int, JobRecord]:
        token = f"~{secrets.token_hex(8)}~"
        layout = ",".join(f"{column}:{token}" for column in _COLUMNS)
        text = self._commands.run(
            "squeue", "--all", "--local", "--noheader", "--states=all", f"--Format={layout}"
        )
        jobs: dict[int, JobRecord] = {}
        known: dict[str, _Known] = {}
        wanted, detailed = [], dict[int, dict[str, str]]()
        for row in rows_of(text, token):
            before = self._known.get(row["JobID"])
            if before is not None and before.holds(row, now):
                known[row["JobID"]] = before
                jobs[before.record.id] = before.record
                continue
            try:
                record = record_of(row)
            except RecordFault as fault:
                unread[fault.record] = fault.reason
                continue
            jobs[record.id] = record
            if record.array_job and record.marked:
                wanted.append(record.array_job)
            elif needs_detail(row):
                wanted.append(record.id)
                if row["State"] in HOLDING:
                    detailed[record.id] = row
            else:
                known[row["JobID"]] = _Known(tuple(row.values()), record)
        for found in read_jobs(self._commands, dict.fromkeys(wanted)):
            try:
                record = job_record(found)
            except RecordFault as fault:
                unread[fault.record] = fault.reason
                # Its columns alone would say that it holds no GPUs.
                jobs.pop(found["job_id"], None)
                continue
            jobs[record.id] = record
            row_then = detailed.get(record.id)
            if row_then is not None and _alike(record, row_then):
                columns = tuple(row_then.values())
                known[row_then["JobID"]] = _Known(columns, record, now)
        self._known = known
        return jobs

    def _nodes(self, unread: dict[str, str]) -> dict[str, NodeRecord]:
        text = self._commands.run("scontrol", "show", "node", "--json")
        found = entries(text, "nodes", "scontrol show node")
        return {record.name: record for record in _sound(found, node_record, unread)}

    def _topology(
        self, nodes: Mapping[str, NodeRecord], now: float
    ) -> Mapping[str, tuple[str, ...]]:
        read = self._switches_read
        if read is None or now - read > TOPOLOGY_LIFETIME or nodes.keys() != self._switches_of:
            try:
                text = self._commands.run("scontrol", "show", "topology")
            except SlurmError:
                text = ""  # no topology plugin; one that is briefly unreachable fails elsewhere
            self._switches = switches_of(text)
            self._switches_of = frozenset(nodes)
            self._switches_read = now
        return self._switches


def _alike(record: JobRecord, row: Mapping[str, str]) -> bool:
    """Whether nothing has happened to a job between its columns and its details."""
    return (
        not record.flags
        and (record.state, record.nodes) == (row["State"], row["NodeList"])
        and record.restarts == _number(row["RestartCnt"])
    )


def read_jobs(commands: Commands, wanted: Iterable[int]) -> list[Mapping[str, Any]]:
    """These jobs as JSON, without those that Slurm has forgotten. Raises SlurmError.

    So many at a time, for a job is 45 kB of it: all that run on a large cluster would take longer
    than a command may.

    By squeue: `scontrol show job --json` gives the same empty list, and exit status 0, for a job
    that is forgotten and for a slurmctld that is down.
    """
    numbers = list(map(str, wanted))
    return [
        job
        for begin in range(0, len(numbers), MOST_DETAILS)
        for job in _some_jobs(commands, ",".join(numbers[begin : begin + MOST_DETAILS]))
    ]


def _some_jobs(commands: Commands, numbers: str) -> list[Mapping[str, Any]]:
    command = ("squeue", "--all", "--local", "--states=all", "--json", f"--jobs={numbers}")
    try:
        text = commands.run(*command)
    except SlurmUnreachable:
        raise
    except SlurmError as fault:
        if "Invalid job id" in fault.reason:
            return []
        raise
    found = entries(text, "jobs", "squeue --json")
    return [job for job in found if isinstance(job, Mapping) and isinstance(job.get("job_id"), int)]


def entries(text: str, what: str, command: str) -> list[Any]:
    """The jobs or nodes in a program's answer. Raises SlurmError where it is no list of them."""
    answer = parse_json(text, command)
    found = answer.get(what) if isinstance(answer, Mapping) else None
    if not isinstance(found, list):
        raise SlurmError(command, f"its answer is no list of {what}")
    return found


def read_reservations(commands: Commands, unread: dict[str, str]) -> dict[str, Reservation]:
    """All reservations; `unread` gets those that make no sense, and why. Raises SlurmUnreachable.

    Where Slurm answers in words that can't be read, reserved nodes are left alone.
    """
    command = ("scontrol", "--all", "show", "reservation", "--json")
    try:
        found = entries(commands.run(*command), "reservations", "scontrol show reservation")
    except SlurmUnreachable:
        raise
    except SlurmError as fault:
        unread["reservations"] = str(fault)
        return {}
    return {record.name: record for record in _sound(found, reservation_record, unread)}


def _sound(
    found: Iterable[Any], record_of: Callable[[Any], _Record], unread: dict[str, str]
) -> Iterator[_Record]:
    """The records of those that make sense; `unread` gets the others, and why."""
    for each in found:
        try:
            record = record_of(each)
        except RecordFault as fault:
            unread[fault.record] = fault.reason
        else:
            yield record


def parse_json(text: str, command: str) -> Any:
    """Raises SlurmError where a program's answer is not JSON, as after a broken upgrade."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise SlurmError(command, f"its answer is not JSON: {fault}") from None


def rows_of(text: str, token: str) -> list[dict[str, str]]:
    """The rows of a squeue whose every column ends in `token`; text in between may be anything."""
    fields = text.split(token)
    fields.pop()  # the line end behind the last row
    width = len(_COLUMNS)
    if len(fields) % width:
        raise SlurmError("squeue", f"{len(fields)} columns are no whole number of jobs")
    rows = []
    for at in range(0, len(fields), width):
        row = dict(zip(_COLUMNS, fields[at : at + width], strict=True))
        row["JobID"] = row["JobID"].strip()  # the line end of the row before
        rows.append(row)
    return rows


def needs_detail(row: Mapping[str, str]) -> bool:
    """Whether the columns don't say it all: jobs that hold GPUs, or are between two states."""
    state = row["State"]
    if state == "PENDING" or state in ENDED:
        return False
    marked = row["admin_comment"].startswith(MARK)
    return (
        marked
        or "gres/gpu" in row["tres-alloc"]
        or "gres/shard" in row["tres-alloc"]
        or state not in HOLDING
    )


def record_of(row: Mapping[str, str]) -> JobRecord:
    """What the columns say of a job. Raises RecordFault."""
    number = count_in(row["JobID"])
    if number is None:
        raise RecordFault(f"job {row['JobID'][:20]}", ValueError("that is no job's number"))
    clean = {name: "" if value in _NOTHING else value for name, value in row.items()}
    state, nodes = row["State"], clean["NodeList"]
    count, most = _number(row["NumNodes"]), _number(row["MaxNodes"])
    priority = _number(row["PriorityLong"])
    ran = state != "PENDING" and bool(nodes)
    code, _, by = row["exit_code"].partition(":")
    return JobRecord(
        id=number,
        name=row["Name"],
        user=row["UserName"],
        account=clean["Account"],
        partition=row["Partition"],
        qos=clean["QOS"],
        state=state,
        reason=row["Reason"],
        priority=priority,
        nice=nice_in(row["Nice"]),
        held=priority == 0,
        restarts=_number(row["RestartCnt"]),
        submitted=_number(row["SubmitTime"]),
        eligible=_number(row["EligibleTime"]),
        expected=_number(row["StartTime"]) if state == "PENDING" else 0.0,
        started=_number(row["StartTime"]) if ran else 0.0,
        ended=_number(row["EndTime"]) if state in ENDED else 0.0,
        exit_code=_number(code) if state in ENDED else 0,
        exit_signal=_number(by) if state in ENDED else 0,
        time_limit=seconds_of(row["TimeLimit"]),
        nodes_wanted=(count, max(count, most)),
        tasks=_number(row["NumTasks"]) or count,
        cpus_per_task=_number(row["cpus-per-task"]) or 1,
        tasks_per_node=_number(row["NTPerNode"]),
        cpus=_number(row["NumCPUs"]),
        tres_per_job=clean["tres-per-job"],
        tres_per_node=clean["tres-per-node"],
        tres_per_task=clean["tres-per-task"],
        tres=clean["tres-alloc"],
        cpus_per_gpu=clean["cpus-per-tres"],
        memory=round(size_in(row["MinMemory"]) or 0),  # of what, no column says
        memory_per_gpu=clean["mem-per-tres"],
        licenses=clean["Licenses"],
        features=clean["Feature"],
        dependency=clean["Dependency"],
        required_nodes=clean["ReqNodes"],
        excluded_nodes=clean["ExcNodes"],
        nodes=nodes,
        batch_host=clean["BatchHost"],
        admin_comment=clean["admin_comment"],
        requeue=row["Requeue"] == "1",
        array_job=_number(row["ArrayJobID"]) if "_" in row["JobArrayID"] else 0,
        array_task=row["JobArrayID"].partition("_")[2].strip("[]"),
        reservation=clean["Reservation"],
    )


def nice_in(text: str) -> int:
    """Slurm's only number that may be below 0; 0 where it is none."""
    below = text.startswith("-")
    value = _number(text.removeprefix("-"))
    return -value if below else value


def _number(text: str) -> int:
    value = count_in(text) or 0
    return value if value < _UNSET else 0


def seconds_of(text: str) -> float | None:
    """`1-02:03:04`, `02:03:04` or `03:04` in seconds; None for UNLIMITED and the like."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    counts = [count_in(part) for part in (days or "0", *parts)]
    if not 2 <= len(parts) <= 3 or None in counts:
        return None
    whole, *clocked = (count or 0 for count in counts)
    seconds = 0
    for count in clocked:
        seconds = seconds * 60 + count
    return float(whole * 86400 + seconds)


def switches_of(text: str) -> dict[str, tuple[str, ...]]:
    """Node -> the switches above it, leaf first, from `scontrol show topology`."""
    above: dict[str, list[tuple[int, str]]] = {}
    for match in _SWITCH.finditer(text):
        switch, level, nodes = match.groups()
        try:
            names = expand(nodes)
        except ValueError as fault:
            log.warning("the topology's switch %s is left out: %s", switch[:80], fault)
            continue
        for node in names:
            above.setdefault(node, []).append((int(level), switch))
    return {node: tuple(name for _, name in sorted(found)) for node, found in above.items()}
