"""`scontrol update JobId=...` on the simulated Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ones.slurm_ext.command_reader import seconds_of
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.simulated.job import ALIVE, Job, Wants, expanded
from ones.slurm_ext.simulated.lifecycle import shrink, watch_time_limit
from ones.slurm_ext.simulated.state import State
from ones.slurm_ext.snapshot import MARK, SATELLITE_MARK, STAGE_MARK
from ones.slurm_ext.tres import gpus_by_type

NUMBERS = {
    "NumTasks": "tasks",
    "NumCPUs": "cpus",
    "MinCPUsNode": "cpus_per_node",
    "CpusPerTask": "cpus_per_task",
    "MinMemoryNode": "memory",
}
TEXTS = {
    "TresPerNode": "tres_per_node",
    "TresPerJob": "tres_per_job",
    "TresPerTask": "tres_per_task",
    "Features": "features",
}
NODES = {"ReqNodeList": "required", "ExcNodeList": "excluded"}
ONLY_PENDING = frozenset({*NUMBERS, *TEXTS, *NODES, "NumNodes", "StartTime", "Account"})
NOT_PENDING = "Job is no longer pending execution"


def update(state: State, job: Job, fields: Mapping[str, str], command: str, *, root: bool) -> None:
    """Change the job as the fields say: all of it, or none. Raises SlurmError."""

    def refuse(words: str) -> SlurmError:
        return SlurmError(command, f"{words} for job {job.id}")

    if job.state not in ALIVE:
        raise refuse("Job has already finished")
    if "AdminComment" in fields and not root:
        raise refuse("Access/permission denied")
    if "AdminComment" in fields:
        kept = keep_mark(job.admin_comment, fields["AdminComment"])
        fields = {**fields, "AdminComment": kept}
    if job.state != "PENDING":
        _running(state, job, fields, refuse)
        return
    if "NodeList" in fields:
        raise refuse("Job is pending execution")
    wants, others = _changed(state, job.wants, fields, refuse)
    for name, value in others.items():
        setattr(job, name, value)
    job.wants = wants
    if "StartTime" in fields:  # such as `now` and `now+60`
        later = fields["StartTime"].removeprefix("now").removeprefix("+")
        job.begin = job.eligible = state.now + (_number(later, refuse) if later else 0)
    if job.reason == "BadConstraints":
        # Slurm tries such a job again once anything of it has changed.
        job.held, job.held_by, job.locked, job.reason = False, "", False, "None"
    state.touch(job)
    state.wake()


def _changed(
    state: State, wants: Wants, fields: Mapping[str, str], refuse: Any
) -> tuple[Wants, dict[str, object]]:
    changes: dict[str, Any] = {}
    others: dict[str, object] = {}
    for name, value in fields.items():
        if name in NUMBERS:
            changes[NUMBERS[name]] = _number(value, refuse)
        elif name in TEXTS:
            changes[TEXTS[name]] = value
        elif name in NODES:
            changes[NODES[name]] = _names(state, value, refuse)
        elif name == "NumNodes":
            least, _, most = value.partition("-")
            changes["nodes"] = (_number(least, refuse), _number(most or least, refuse))
            if changes["nodes"][0] > changes["nodes"][1]:
                raise refuse("Requested node configuration is not available")
        elif name != "StartTime":
            others |= _other(state, name, value, refuse)
    new = replace(wants, **changes)
    _check_types(new, refuse)
    return new, others


def _other(state: State, name: str, value: str, refuse: Any) -> dict[str, object]:
    match name:
        case "Partition" if value in state.partitions:
            return {"partition": value}
        case "Partition":
            raise refuse("Invalid partition name specified")
        case "Account" if value in state.users.values():
            return {"account": value}
        case "Account":
            raise refuse("Invalid account or account/partition combination specified")
        case "QOS" if value in state.qos:
            return {"qos": value}
        case "QOS":
            raise refuse("Invalid qos specification")
        case "Requeue":
            return {"requeue": value == "1"}
        case "TimeLimit":
            return {"time_limit": _limit(value, refuse)}
        case "Comment":
            return {"comment": value}
        case "Dependency":
            return {"dependency": value}
        case "Priority":
            return {"given": _number(value, refuse)}
        case "ReservationName" if {*filter(None, value.split(","))} <= state.reservations.keys():
            return {"reservation": value}
        case "ReservationName":
            raise refuse("Requested reservation is invalid")
        case "AdminComment":
            return {"admin_comment": value}
    raise refuse(f"Update of this parameter is not supported: {name}")


def keep_mark(before: str, comment: str) -> str:
    """As job_submit.lua: who writes an AdminComment does not take the mark away by that."""
    marks = (MARK, SATELLITE_MARK, STAGE_MARK)
    if comment and before.startswith(marks) and not comment.startswith(marks):
        return f"{before.split(maxsplit=1)[0]} {comment}"
    return comment


def _running(state: State, job: Job, fields: Mapping[str, str], refuse: Any) -> None:
    """Nodes are taken away at once, also where the rest of the update is then refused."""
    listed = fields.get("NodeList", fields.get("ReqNodeList"))
    if listed is not None:
        keep = frozenset(_names(state, listed, refuse))
        if not keep <= {*job.parts} or job.nodes[0] not in keep or job.flags:
            raise refuse("Invalid node name specified")
        if keep != {*job.parts}:
            shrink(state, job, keep)
    if ONLY_PENDING & fields.keys() - {"ReqNodeList"}:
        raise refuse(NOT_PENDING)
    changes: dict[str, object] = {}
    for name, value in fields.items():
        if name not in ("NodeList", "ReqNodeList"):
            changes |= _other(state, name, value, refuse)
    for name, changed in changes.items():
        setattr(job, name, changed)
    if "time_limit" in changes and job.state == "RUNNING":
        watch_time_limit(state, job)
    state.touch(job)


def _names(state: State, text: str, refuse: Any) -> tuple[str, ...]:
    try:
        names = expanded(text)
    except ValueError:
        raise refuse("Invalid node name specified") from None
    if any(name not in state.nodes for name in names):
        raise refuse("Invalid node name specified")
    return tuple(sorted(names, key=state.rank.__getitem__))


def _number(text: str, refuse: Any) -> int:
    if not text.isdecimal():
        raise refuse("Invalid number")
    return int(text)


def _limit(text: str, refuse: Any) -> float | None:
    if text.upper() == "UNLIMITED":
        return None
    if text.isdecimal():
        return 60.0 * int(text)
    seconds = seconds_of(text)
    if seconds is None:
        raise refuse("Invalid time limit specified")
    return seconds


def _check_types(wants: Wants, refuse: Any) -> None:
    found = [
        kind
        for text in (wants.tres_per_job, wants.tres_per_node, wants.tres_per_task)
        for kind in gpus_by_type(text)
    ]
    if "" in found and any(found):
        raise refuse("Invalid GRES specification (with and without type identification)")
