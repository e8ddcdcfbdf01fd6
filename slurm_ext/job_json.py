"""Jobs and nodes out of the JSON of Slurm's programs (data_parser v0.0.40 and later)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from ones.slurm_ext.errors import RecordFault
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.snapshot import ALIVE, ENDED, HOLDING, JobRecord, NodeRecord, Reservation
from ones.slurm_ext.tres import gpus_by_type, gpus_in, shards_in, shared_gpus

Json = Mapping[str, Any]
Record = TypeVar("Record", JobRecord, NodeRecord, Reservation)

# What a record that is not as Slurm writes it can be the cause of.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_MOST = 2**64  # of any of Slurm's numbers
_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
}


def job_record(job: Json) -> JobRecord:
    """One entry of `jobs` as squeue and scontrol print it. Raises RecordFault."""
    try:
        return checked(_job_record(job))
    except MALFORMED as fault:
        name = job.get("job_id") if isinstance(job, Mapping) else None
        raise RecordFault(f"job {str(name)[:20]}", fault) from None


def node_record(node: Json) -> NodeRecord:
    """One entry of `nodes` as scontrol prints it. Raises RecordFault.

    A node with GPUs of several types carries all their names, so that no job that names one type
    is taken to fit it.
    """
    try:
        return checked(_node_record(node))
    except MALFORMED as fault:
        name = node.get("name") if isinstance(node, Mapping) else None
        raise RecordFault(f"node {str(name)[:80]}", fault) from None


def reservation_record(reservation: Json) -> Reservation:
    """One entry of `reservations` as scontrol prints it. Raises RecordFault."""
    try:
        return checked(_reservation(reservation))
    except MALFORMED as fault:
        name = reservation.get("name") if isinstance(reservation, Mapping) else None
        raise RecordFault(f"reservation {str(name)[:80]}", fault) from None


def checked(record: Record) -> Record:
    """The record, if its fields are of their kinds; null is no text. Raises ValueError."""
    empty: dict[str, Any] = {}
    for each in fields(record):
        value, kinds = getattr(record, each.name), _KINDS.get(str(each.type))
        if kinds is None:
            continue
        if value is None and kinds == (str,):
            empty[each.name] = ""
            continue
        fair = isinstance(value, kinds)
        least = -_MOST if each.name == "nice" else 0
        if not fair or (isinstance(value, int | float) and not least <= value < _MOST):
            raise ValueError(f"its {each.name} is {value!r:.60}")
    return replace(record, **empty) if empty else record


def _job_record(job: Json) -> JobRecord:
    states = _words(job["job_state"])
    state = next((state for state in states if state in ENDED | ALIVE), states[0])
    nodes = job["nodes"]
    count, most = number(job["node_count"]), number(job["max_nodes"])
    limit, ending = job["time_limit"], job["exit_code"]
    ran = state != "PENDING" and bool(nodes)
    return JobRecord(
        id=job["job_id"],
        name=job["name"],
        user=job["user_name"],
        account=job["account"],
        partition=job["partition"],
        qos=job["qos"],
        state=state,
        flags=frozenset(states) - {state},
        # squeue shows the description where there is one, such as "job requeued in held state".
        reason=job.get("state_description") or job["state_reason"],
        priority=number(job["priority"]),
        nice=int(job.get("nice", 0)),
        held=number(job["priority"]) == 0,
        restarts=job["restart_cnt"],
        submitted=number(job["submit_time"]),
        eligible=number(job["eligible_time"]),
        expected=number(job["start_time"]) if state == "PENDING" else 0.0,
        started=number(job["start_time"]) if ran else 0.0,
        ended=number(job["end_time"]) if state in ENDED else 0.0,
        exit_code=number(ending["return_code"]) if state in ENDED else 0,
        exit_signal=number(ending["signal"]["id"]) if state in ENDED else 0,
        time_limit=number(limit) * 60.0 if limit["set"] and not limit["infinite"] else None,
        nodes_wanted=(count, max(count, most)),
        tasks=number(job["tasks"]) or count,
        cpus_per_task=number(job["cpus_per_task"]) or 1,
        tasks_per_node=number(job["tasks_per_node"]),
        cpus=number(job["cpus"]),
        tres_per_job=job["tres_per_job"],
        tres_per_node=job["tres_per_node"],
        tres_per_task=job["tres_per_task"],
        tres=job.get("tres_alloc_str") or job.get("tres_req_str", ""),
        cpus_per_gpu=job["cpus_per_tres"],
        memory=number(job["memory_per_cpu"]) or number(job["memory_per_node"]),
        memory_of=next((of for of in ("cpu", "node") if job[f"memory_per_{of}"]["set"]), ""),
        memory_per_gpu=job["memory_per_tres"],
        licenses=job["licenses"],
        features=job["features"],
        dependency=job["dependency"],
        required_nodes=job["required_nodes"],
        excluded_nodes=job["excluded_nodes"],
        nodes=nodes,
        gpus_on=gpus_on_nodes(nodes, job["gres_detail"]) if state in HOLDING else {},
        shares=shares_on_nodes(nodes, job["gres_detail"]) if state in HOLDING else {},
        batch_host=job["batch_host"],
        admin_comment=job["admin_comment"],
        requeue=job["requeue"],
        array_job=number(job["array_job_id"]),
        array_task=_task(job),
        reservation=job["resv_name"],
    )


def _task(job: Json) -> str:
    """The index of an array's task, or those of the tasks that still wait as one job."""
    together, index = job.get("array_task_string") or "", job.get("array_task_id")
    if together or not isinstance(index, Mapping) or not index["set"]:
        return str(together)
    return str(number(index))


def gpus_on_nodes(nodes: str, detail: list[str | None]) -> dict[str, int]:
    """Which node holds how many GPUs; empty where Slurm's answer does not tell them apart.

    A GPU of which the job holds shards is one of them. Of a node without any Slurm says None.
    """
    names = expand(nodes)
    if len(names) != len(detail):
        return {}
    counts = ((name, gpus_used(text or "")) for name, text in zip(names, detail, strict=True))
    return {name: gpus for name, gpus in counts if gpus}


def shares_on_nodes(nodes: str, detail: list[str | None]) -> dict[str, tuple[int, ...]]:
    """Of which GPUs of which node the job holds shards."""
    names = expand(nodes)
    if len(names) != len(detail):
        return {}
    found = ((name, shared_gpus(text or "")) for name, text in zip(names, detail, strict=True))
    return {name: gpus for name, gpus in found if gpus}


def gpus_used(text: str) -> int:
    """GPUs that are in use, whole or in shards. Slurm counts one in shards as no GPU at all."""
    return gpus_in(text) + len(shared_gpus(text))


def shards_per_gpu(gres: str) -> int:
    """Of a node; 0 where it has none, or its GPUs have unequal numbers of them."""
    gpus, shards = gpus_in(gres), shards_in(gres)
    return shards // gpus if gpus and shards % gpus == 0 else 0


def _node_record(node: Json) -> NodeRecord:
    types = gpus_by_type(node["gres"])
    return NodeRecord(
        name=node["name"],
        states=frozenset(_words(node["state"])),
        reason=node["reason"],
        gpu_type="+".join(sorted(kind or "gpu" for kind in types)),
        gpus=sum(types.values()),
        gpus_used=gpus_used(node["gres_used"]),
        shards_per_gpu=shards_per_gpu(node["gres"]),
        cpus=number(node.get("effective_cpus", 0)),
        cpus_used=number(node.get("alloc_cpus", 0)),
        memory=memory_known(number(node.get("real_memory", 0))),
        memory_used=number(node.get("alloc_memory", 0)),
        partitions=frozenset(_words(node["partitions"])),
        features=frozenset(_words(node["active_features"])),
    )


def memory_known(mib: int) -> int:
    """A node's memory, of which Slurm says 1 where nobody has told it; then 0."""
    return mib if mib > 1 else 0


def _reservation(reservation: Json) -> Reservation:
    flags = frozenset(_words(reservation["flags"]))
    cores = reservation["core_specializations"] and "SPEC_NODES" not in flags
    start, end = number(reservation["start_time"]), number(reservation["end_time"])
    if not reservation["name"]:
        raise ValueError("it has no name")
    if start >= end:
        raise ValueError(f"it ends at {end}, and begins at {start}")
    return Reservation(
        name=reservation["name"],
        nodes=frozenset(expand(reservation["node_list"] or "")),
        start=float(start),
        end=float(end),
        flags=flags,
        users=_listed(reservation["users"]),
        accounts=_listed(reservation["accounts"]),
        groups=reservation["groups"],
        part=f"{number(reservation['core_count'])} cores" if cores else "",
        licenses=reservation["licenses"],
    )


def _listed(text: str | None) -> frozenset[str]:
    return frozenset(filter(None, (text or "").split(",")))


def _words(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{value!r:.60} is no list of words")
    return value


def number(value: Any) -> int:
    """Slurm's numbers come bare or as {set, infinite, number}; unset and infinite are 0."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value["set"] and not value["infinite"] else 0
    return int(value)
