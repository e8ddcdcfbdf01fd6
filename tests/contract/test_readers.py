"""Both readers on a real Slurm: each is right, and they agree on every job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from slurm_jobs import Slurm, slurm_with_a_heartbeat

__all__ = ["slurm_with_a_heartbeat"]  # the fixture `slurm`
pytestmark = pytest.mark.cluster

READERS = ("commands", "pyslurm")
EVIL = "x\n99999|RUNNING|root\t'\"; é 日本 %j"
ENDS = "#!/bin/bash\nexit "


@pytest.fixture(scope="module")
def zoo(slurm: Slurm) -> Iterator[dict[str, int]]:
    """Jobs in all states and forms, by what is odd about them."""
    slurm.clean()
    jobs = {
        "completed": slurm.submit(script=ENDS + "0"),
        "failed": slurm.submit(script=ENDS + "3"),
        "killed": slurm.submit(script="#!/bin/bash\nkill -USR1 $$"),
        "cancelled": slurm.submit("--hold", "--gpus=1"),
        "running per job": slurm.submit("--gpus=v100:4", "-n4", f"--job-name={EVIL}"),
        "running per node": slurm.submit("-N2", "--gpus-per-node=k80:2", "--time=12:31:00"),
        "running plain": slurm.submit("-c2", user="carol"),
        "preempted": slurm.submit("--elastic=1-4", "--gpus=2"),
        "held by onesd": slurm.submit("--elastic=2-8:2", "--gpus-per-task=1", "-n4", "-c2"),
        "held by user": slurm.submit(
            "--hold", "-N1-3", "--gres=gpu:1", "--ntasks-per-node=2", "-tUNLIMITED"
        ),
        "later": slurm.submit("--begin=now+1hour", "--gpus=1"),
        "array": slurm.submit("--array=1-3", "--hold", "--gpus=1"),
        "excluding": slurm.submit("--hold", "--gpus=1", "--exclude=n[2-3]", "--mem-per-gpu=100"),
        "too big": slurm.submit("-N4", "--gpus-per-node=4", "--nice=5"),
    }
    after = f"--dependency=afterok:{jobs['later']}"
    jobs["depends"] = slurm.submit(after, "--gpus=1", user="dave")
    slurm.root("scancel", str(jobs["cancelled"]))
    for name in ("running per job", "running per node", "running plain"):
        slurm.wait(jobs[name], "RUNNING")
    for name, state in (("completed", "COMPLETED"), ("failed", "FAILED"), ("killed", "FAILED")):
        slurm.wait(jobs[name], state)
    assert slurm.move(jobs["preempted"], "start@n2:2", "preempt") == ["done", "done"]
    yield jobs
    slurm.clean()


def snapshot(slurm: Slurm, reader: str) -> Any:
    found = slurm.read(reader)[reader]
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.mark.parametrize("reader", READERS)
def test_shards_are_read_with_the_gpu_that_they_are_of(slurm: Slurm, reader: str) -> None:
    """Slurm puts the second beside the first, and the third on the next GPU."""
    slurm.clean()
    snapshot(slurm, reader)
    jobs = []
    for _ in range(3):
        jobs.append(slurm.submit("--gres=shard:1", "-w", "n2"))
        slurm.wait(jobs[-1], "RUNNING")
    found = snapshot(slurm, reader)
    by_number = {job["id"]: job for job in found["jobs"].values()}
    shares = [by_number[number]["shares"] for number in jobs]
    assert shares == [{"n2": [0]}, {"n2": [0]}, {"n2": [1]}]
    assert all(by_number[number]["gpus_on"] == {"n2": 1} for number in jobs)
    node = found["nodes"]["n2"]
    assert (node["gpus"], node["gpus_used"], node["shards_per_gpu"]) == (4, 2, 2)
    assert (node["cpus"], node["memory"]) == (16, 32000)
    slurm.clean()


@pytest.mark.parametrize("reader", READERS)
def test_what_jobs_hold_of_a_node_beside_its_gpus_is_read(slurm: Slurm, reader: str) -> None:
    slurm.clean()
    snapshot(slurm, reader)
    jobs = [
        slurm.submit("--gpus=1", "--cpus-per-task=5", "--mem=700", "-w", "n2"),
        slurm.submit("--cpus-per-task=2", "--mem=300", "-w", "n2"),
    ]
    for job in jobs:
        slurm.wait(job, "RUNNING")
    nodes = snapshot(slurm, reader)["nodes"]
    assert (nodes["n2"]["cpus_used"], nodes["n2"]["memory_used"]) == (7, 1000)
    assert (nodes["n1"]["cpus_used"], nodes["n1"]["memory_used"]) == (0, 0)
    slurm.clean()


@pytest.fixture(scope="module", params=READERS)
def seen(slurm: Slurm, zoo: Mapping[str, int], request: pytest.FixtureRequest) -> Any:
    """What one reader makes of the zoo."""
    found = snapshot(slurm, request.param)
    by_number = {job["id"]: job for job in found["jobs"].values()}
    return found | {"zoo": {name: by_number[number] for name, number in zoo.items()}}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("completed", {"state": "COMPLETED", "gpus_on": {}, "flags": []}),
        ("failed", {"state": "FAILED", "account": "vision", "exit_code": 3, "exit_signal": 0}),
        ("killed", {"state": "FAILED", "exit_code": 0, "exit_signal": 10}),
        ("cancelled", {"state": "CANCELLED", "started": 0.0, "nodes": ""}),
        (
            "running per job",
            {
                "state": "RUNNING",
                "name": EVIL,
                "user": "alice",
                "tasks": 4,
                "nodes_wanted": [1, 1],
                "tres_per_job": "gres/gpu:v100:4",
                "tres_per_node": "",
                "admin_comment": "",
                "held": False,
            },
        ),
        (
            "running per node",
            {
                "nodes": "n[3-4]",
                "gpus_on": {"n3": 2, "n4": 2},
                "tres_per_node": "gres/gpu:k80:2",
                "batch_host": "n3",
                "ended": 0.0,
                "time_limit": 45060.0,
            },
        ),
        ("running plain", {"user": "carol", "gpus_on": {}, "cpus_per_task": 2}),
        ("preempted", {"state": "PENDING", "held": True, "restarts": 1, "required_nodes": ""}),
        (
            "held by onesd",
            {
                "admin_comment": "ONES1:sizes=2-8:2;request=4;held=1;tasks=4;nodes=1;"
                "mem=no;cpu=yes",
                "held": True,
                "requeue": True,
                "tres_per_task": "cpu=2,gres/gpu=1",
                "tasks": 4,
            },
        ),
        (
            "held by user",
            {"held": True, "reason": "JobHeldUser", "tasks_per_node": 2, "time_limit": None},
        ),
        ("depends", {"reason": "Dependency", "account": "language", "held": False}),
        ("later", {"reason": "BeginTime", "started": 0.0}),
        ("array", {"state": "PENDING"}),
        ("excluding", {"excluded_nodes": "n[2-3]"}),
        ("too big", {"nodes_wanted": [4, 4], "cpus": 4, "time_limit": 3600.0}),
    ],
)
def test_a_job_is_read_as_it_was_submitted(seen: Any, name: str, facts: dict[str, Any]) -> None:
    job = seen["zoo"][name]
    assert {key: job[key] for key in facts} == facts


def test_an_array_is_known_as_one(seen: Any) -> None:
    job = seen["zoo"]["array"]
    assert job["array_job"] == job["id"]
    assert seen["zoo"]["too big"]["array_job"] == 0


def test_nodes_are_read_with_their_gpus_and_switches(seen: Any) -> None:
    nodes = seen["nodes"]
    assert sorted(nodes) == ["n1", "n2", "n3", "n4"]
    assert [(nodes[name]["gpu_type"], nodes[name]["gpus"]) for name in ("n2", "n3")] == [
        ("v100", 4),
        ("k80", 4),
    ]
    v100 = seen["zoo"]["running per job"]["gpus_on"]
    assert sum(v100.values()) == 4
    assert {name: nodes[name]["gpus_used"] for name in v100} == v100
    assert nodes["n3"]["gpus_used"] == 2
    assert nodes["n1"]["partitions"] == ["gpu"]
    assert seen["switches"]["n1"] == ["s1", "s0"]
    assert seen["switches"]["n4"] == ["s2", "s0"]


def test_the_readers_agree_on_every_job_and_node(slurm: Slurm, zoo: Mapping[str, int]) -> None:
    for reader in READERS:
        snapshot(slurm, reader)
    different: dict[str, Any] = {}

    def agree() -> bool:
        both = slurm.read(*READERS)
        left, right = both["commands"], both["pyslurm"]
        different.clear()
        for kind in ("jobs", "nodes", "switches"):
            for key in left[kind].keys() | right[kind].keys():
                one, other = left[kind].get(key), right[kind].get(key)
                if kind == "jobs" and one and other and not one["memory_of"]:
                    other = other | {"memory_of": ""}  # of what, no column says
                if one != other:
                    different[f"{kind} {key}"] = (one, other)
        return not different

    try:
        # Slurm goes on between the two: they must come to agree, not to read in one instant.
        slurm.cluster.eventually(agree, within=15, what="the readers agree")
    except BaseException:
        print(different)
        raise


@pytest.mark.parametrize("reader", READERS)
def test_memory_is_told_as_it_was_asked_for(slurm: Slurm, reader: str) -> None:
    """Of a job that waits the columns have an amount, and no word of what it is of; the total is
    that of its submission, whatever it asks for since."""
    slurm.clean()
    snapshot(slurm, reader)
    forms = {
        "node": ("--mem=2G",),
        "cpu": ("--mem-per-cpu=1G", "--cpus-per-task=2"),
        "gpu": ("--mem-per-gpu=1500",),
        "whole": ("--mem=0",),
        "default": (),
    }
    jobs = {name: slurm.submit("--hold", "--gpus=1", *form) for name, form in forms.items()}
    wider = ("NumNodes=2-2", "NumTasks=2", "NumCPUs=4", "TresPerJob=gres/gpu:2")
    slurm.root("scontrol", "update", f"JobId={jobs['cpu']}", *wider)
    by_number = {job["id"]: job for job in snapshot(slurm, reader)["jobs"].values()}
    found = {name: by_number[number] for name, number in jobs.items()}
    memory = {name: job["memory"] for name, job in found.items()}
    assert memory == {"node": 2048, "cpu": 1024, "gpu": 1500, "whole": 0, "default": 500}
    told = ("", "", "") if reader == "commands" else ("node", "cpu", "cpu")
    assert tuple(found[name]["memory_of"] for name in ("node", "cpu", "default")) == told
    assert found["gpu"]["memory_per_gpu"] == "gres/gpu:1500"
    assert "mem=2G," in found["cpu"]["tres"]
    assert "mem=32000M," in found["whole"]["tres"]
    slurm.clean()
