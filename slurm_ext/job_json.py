"""Jobs and nodes out of the JSON of Slurm's programs (data_parser v0.0.40 and later)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.snapshot import JobRecord, NodeRecord
from ones.slurm_ext.tres import gpus_by_type, gpus_in, shards_in, shared_gpus

Json = Mapping[str, Any]

ENDED = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
    | {"DEADLINE", "OUT_OF_MEMORY"}
)
HOLDING = frozenset({"RUNNING", "SUSPENDED"})  # the states in which a job holds its GPUs
BASE_STATES = ENDED | HOLDING | {"PENDING"}


def job_record(job: Json) -> JobRecord:
    """One entry of `jobs` as squeue and scontrol print it."""
    states = [str(state) for state in job["job_state"]]
    state = next((state for state in states if state in BASE_STATES), states[0])
    nodes = job["nodes"]
    count, most = number(job["node_count"]), number(job["max_nodes"])
    limit = job["time_limit"]
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
        held=number(job["priority"]) == 0,
        restarts=job["restart_cnt"],
        submitted=number(job["submit_time"]),
        eligible=number(job["eligible_time"]),
        started=number(job["start_time"]) if ran else 0.0,
        ended=number(job["end_time"]) if state in ENDED else 0.0,
        time_limit=number(limit) * 60.0 if limit["set"] and not limit["infinite"] else None,
        nodes_wanted=(count, max(count, most)),
        tasks=number(job["tasks"]) or count,
        cpus_per_task=number(job["cpus_per_task"]) or 1,
        tasks_per_node=number(job["tasks_per_node"]),
        cpus=number(job["cpus"]),
        tres_per_job=job["tres_per_job"],
        tres_per_node=job["tres_per_node"],
        tres_per_task=job["tres_per_task"],
        per_gpu=",".join(filter(None, (job["cpus_per_tres"], job["memory_per_tres"]))),
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
    )


def gpus_on_nodes(nodes: str, detail: list[str]) -> dict[str, int]:
    """Which node holds how many GPUs; empty where Slurm's answer does not tell them apart.

    A GPU of which the job holds shards is one of them.
    """
    names = expand(nodes)
    if len(names) != len(detail):
        return {}
    counts = ((name, gpus_used(text)) for name, text in zip(names, detail, strict=True))
    return {name: gpus for name, gpus in counts if gpus}


def shares_on_nodes(nodes: str, detail: list[str]) -> dict[str, tuple[int, ...]]:
    """Of which GPUs of which node the job holds shards."""
    names = expand(nodes)
    if len(names) != len(detail):
        return {}
    found = ((name, shared_gpus(text)) for name, text in zip(names, detail, strict=True))
    return {name: gpus for name, gpus in found if gpus}


def gpus_used(text: str) -> int:
    """GPUs that are in use, whole or in shards. Slurm counts one in shards as no GPU at all."""
    return gpus_in(text) + len(shared_gpus(text))


def shards_per_gpu(gres: str) -> int:
    """Of a node; 0 where it has none, or its GPUs have unequal numbers of them."""
    gpus, shards = gpus_in(gres), shards_in(gres)
    return shards // gpus if gpus and shards % gpus == 0 else 0


def node_record(node: Json) -> NodeRecord:
    """One entry of `nodes` as scontrol prints it.

    A node with GPUs of several types carries all their names, so that no job that names one type
    is taken to fit it.
    """
    types = gpus_by_type(node["gres"])
    return NodeRecord(
        name=node["name"],
        states=frozenset(node["state"]),
        reason=node["reason"],
        gpu_type="+".join(sorted(kind or "gpu" for kind in types)),
        gpus=sum(types.values()),
        gpus_used=gpus_used(node["gres_used"]),
        shards_per_gpu=shards_per_gpu(node["gres"]),
        partitions=frozenset(node["partitions"]),
        features=frozenset(node["active_features"]),
    )


def number(value: Any) -> int:
    """Slurm's numbers come bare or as {set, infinite, number}; unset and infinite are 0."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value["set"] and not value["infinite"] else 0
    return int(value)
