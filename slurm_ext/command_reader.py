"""Reads Slurm through its commands: four calls a round at most, however long the queue is.

All jobs come as columns of one squeue; only those that hold GPUs, or are between two states, come
once more as JSON, which alone says how many GPUs they hold on which node. With 500 pending and 4
running jobs a whole snapshot takes 55 ms (two cores, Slurm 24.11), where all of it as JSON would
take 730 ms and 4 MB. slurmctld is asked for its jobs twice and for its nodes once; its topology is
read again every ten minutes, or when other nodes appear than it was read for.

squeue shows the waiting tasks of one array as one job, which is enough: arrays are never elastic.

A job's name may hold anything, line ends and forged columns included. So the columns are set
apart by a token drawn anew for each call, which nobody can have put into a name.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.job_json import ENDED, HOLDING, job_record, node_record
from ones.slurm_ext.snapshot import MARK, JobRecord, NodeRecord, Snapshot

TOPOLOGY_LIFETIME = 600.0  # seconds
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
    "RestartCnt",
    "SubmitTime",
    "EligibleTime",
    "StartTime",
    "EndTime",
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
)
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None assigned"})
_UNSET = 0xFFFFFFF0  # Slurm prints its NO_VAL and INFINITE as numbers from here on
_SWITCH = re.compile(r"SwitchName=(\S+) Level=(\d+) .*?Nodes=(\S*)")


class CommandReader:
    """Reads Slurm through squeue and scontrol."""

    name = "commands"

    def __init__(self, commands: Commands, *, clock: Callable[[], float] = time.time) -> None:
        self._commands = commands
        self._clock = clock
        self._switches: Mapping[str, tuple[str, ...]] = {}
        self._switches_of: frozenset[str] = frozenset()
        self._switches_read: float | None = None

    def snapshot(self) -> Snapshot:
        taken = self._clock()
        jobs = self._jobs()
        nodes = self._nodes()
        return Snapshot(taken=taken, jobs=jobs, nodes=nodes, switches=self._topology(nodes, taken))

    def _jobs(self) -> dict[int, JobRecord]:
        token = f"~{secrets.token_hex(8)}~"
        layout = ",".join(f"{column}:{token}" for column in _COLUMNS)
        text = self._commands.run(
            "squeue", "--all", "--local", "--noheader", "--states=all", f"--Format={layout}"
        )
        rows = rows_of(text, token)
        jobs = {record.id: record for record in map(record_of, rows)}
        wanted = [int(row["JobID"]) for row in rows if needs_detail(row)]
        detailed = map(job_record, read_jobs(self._commands, wanted))
        return jobs | {record.id: record for record in detailed}

    def _nodes(self) -> dict[str, NodeRecord]:
        text = self._commands.run("scontrol", "show", "node", "--json")
        nodes = parse_json(text, "scontrol show node")["nodes"]
        return {node["name"]: node_record(node) for node in nodes}

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


def read_jobs(commands: Commands, wanted: Iterable[int]) -> list[Mapping[str, Any]]:
    """These jobs as JSON, without those that Slurm has forgotten. Raises SlurmError.

    By squeue: `scontrol show job --json` gives the same empty list, and exit status 0, for a job
    that is forgotten and for a slurmctld that is down.
    """
    numbers = ",".join(map(str, wanted))
    if not numbers:
        return []
    command = ("squeue", "--all", "--local", "--states=all", "--json", f"--jobs={numbers}")
    try:
        text = commands.run(*command)
    except SlurmUnreachable:
        raise
    except SlurmError as fault:
        if "Invalid job id" in fault.reason:
            return []
        raise
    found: list[Mapping[str, Any]] = parse_json(text, "squeue --json")["jobs"]
    return found


def parse_json(text: str, command: str) -> Any:
    """Raises SlurmError where a program's answer is not JSON, as after a broken upgrade."""
    try:
        return json.loads(text)
    except ValueError as fault:
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
    """What the columns say of a job."""
    clean = {name: "" if value in _NOTHING else value for name, value in row.items()}
    state, nodes = row["State"], clean["NodeList"]
    count, most = _number(row["NumNodes"]), _number(row["MaxNodes"])
    priority = _number(row["PriorityLong"])
    ran = state != "PENDING" and bool(nodes)
    return JobRecord(
        id=int(row["JobID"]),
        name=row["Name"],
        user=row["UserName"],
        account=clean["Account"],
        partition=row["Partition"],
        qos=clean["QOS"],
        state=state,
        reason=row["Reason"],
        priority=priority,
        held=priority == 0,
        restarts=_number(row["RestartCnt"]),
        submitted=_number(row["SubmitTime"]),
        eligible=_number(row["EligibleTime"]),
        started=_number(row["StartTime"]) if ran else 0.0,
        ended=_number(row["EndTime"]) if state in ENDED else 0.0,
        time_limit=seconds_of(row["TimeLimit"]),
        nodes_wanted=(count, max(count, most)),
        tasks=_number(row["NumTasks"]) or count,
        cpus_per_task=_number(row["cpus-per-task"]) or 1,
        tasks_per_node=_number(row["NTPerNode"]),
        cpus=_number(row["NumCPUs"]),
        tres_per_job=clean["tres-per-job"],
        tres_per_node=clean["tres-per-node"],
        tres_per_task=clean["tres-per-task"],
        per_gpu=",".join(filter(None, (clean["cpus-per-tres"], clean["mem-per-tres"]))),
        features=clean["Feature"],
        dependency=clean["Dependency"],
        required_nodes=clean["ReqNodes"],
        excluded_nodes=clean["ExcNodes"],
        nodes=nodes,
        batch_host=clean["BatchHost"],
        admin_comment=clean["admin_comment"],
        requeue=row["Requeue"] == "1",
        array_job=_number(row["ArrayJobID"]) if "_" in row["JobArrayID"] else 0,
    )


def _number(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    return value if value < _UNSET else 0


def seconds_of(text: str) -> float | None:
    """`1-02:03:04`, `02:03:04` or `03:04` in seconds; None for UNLIMITED and the like."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if len(parts) < 2 or not all(part.isdecimal() for part in [*parts, days or "0"]):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return float(int(days or 0) * 86400 + seconds)


def switches_of(text: str) -> dict[str, tuple[str, ...]]:
    """Node -> the switches above it, leaf first, from `scontrol show topology`."""
    above: dict[str, list[tuple[int, str]]] = {}
    for match in _SWITCH.finditer(text):
        switch, level, nodes = match.groups()
        for node in expand(nodes):
            above.setdefault(node, []).append((int(level), switch))
    return {node: tuple(name for _, name in sorted(found)) for node, found in above.items()}
