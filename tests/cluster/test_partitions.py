"""Elastic jobs in several partitions, in one that is down, and preempted, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

CONF = "/etc/slurm/slurm.conf"
PARTITIONS = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=left Nodes=n[1-2] DefMemPerCPU=500
PartitionName=right Nodes=n[2-4] DefMemPerCPU=500
PartitionName=low Nodes=n[1-2] DefMemPerCPU=500 PriorityTier=1
PartitionName=lost Nodes=n[1-2] DefMemPerCPU=500 PriorityTier=1 PreemptMode=CANCEL
PartitionName=high Nodes=n[1-2] DefMemPerCPU=500 PriorityTier=10 PreemptMode=OFF
"""
SUSPENDING = """
PartitionName=below Nodes=n[1-2] DefMemPerCPU=500 PriorityTier=1 OverSubscribe=FORCE:1
PartitionName=above Nodes=n[1-2] PriorityTier=10 OverSubscribe=FORCE:1 PreemptMode=OFF
"""
OVERSUBSCRIBED = """
PartitionName=twice Nodes=n[1-2] DefMemPerCPU=500 OverSubscribe=FORCE:2
"""
IMPATIENT = """
round = 2.0
[guard]
grace_time = 3.0
[slurm]
limits_every = 2.0
"""
COUNTING = "/home/jobs/counting.sbatch"


@pytest.fixture(scope="module")
def onesd(cluster: Cluster) -> Iterator[Steering]:
    """A cluster with partitions of its own, for as long as these tests take."""
    steering = Steering(cluster)
    with configured(steering, PARTITIONS):
        yield steering


@contextmanager
def configured(steering: Steering, lines: str, *, change: str = "true") -> Iterator[None]:
    """These lines at the end of slurm.conf, after a change of what stands there."""
    run = steering.cluster.run
    steering.prepare()
    before = run("ctl", f"cat {CONF}").stdout
    run("ctl", f"{change} && cat >> {CONF}", stdin=lines)
    steering.cluster.reconfigure()
    yield
    steering.prepare()
    run("ctl", f"cat > {CONF}", stdin=before)
    steering.cluster.reconfigure()


def fresh(onesd: Steering) -> None:
    onesd.prepare()
    onesd.configure(IMPATIENT)


def on_four_gpus(onesd: Steering, partition: str, samples: int, sizes: str = "4") -> int:
    """An elastic job that runs, on the GPUs of one node."""
    options = ("-p", partition, f"--elastic={sizes}", "--gpus=4", "--ntasks=4")
    job = onesd.submit("alice", *options, COUNTING, str(samples), "40")
    onesd.wait(job, ["RUNNING"], within=60)
    return job


def test_a_job_of_two_partitions_runs_on_nodes_of_one(onesd: Steering, cluster: Cluster) -> None:
    """n1 is of the one, n3 and n4 of the other: together no allocation can have them."""
    fresh(onesd)
    onesd.start("--policy", "ones")
    jobs = [
        onesd.submit(
            "alice", "-p", "left,right", "--elastic=1-12", "--gpus=2", "--ntasks=2",
            COUNTING, "3000", "40",
        )
        for _ in range(2)
    ]  # fmt: skip
    seen: set[frozenset[str]] = set()

    def over() -> bool:
        for job in jobs:
            nodes = onesd.slurm(job, "NodeList")
            if nodes and onesd.state(job) == "RUNNING":
                names = cluster.run("ctl", f"scontrol show hostnames {nodes}").stdout.split()
                seen.add(frozenset(names))
        return all(onesd.state(job) == "COMPLETED" for job in jobs)

    cluster.eventually(over, within=300, what="both completed")
    assert all(nodes <= {"n1", "n2"} or nodes <= {"n2", "n3", "n4"} for nodes in seen)
    assert [onesd.ask("job", str(job))["refused"] for job in jobs] == [[], []]


def test_a_partition_that_is_down_starts_nothing_and_stops_nobody(
    onesd: Steering, cluster: Cluster
) -> None:
    fresh(onesd)
    onesd.start("--policy", "ones")
    runs = onesd.submit(
        "alice", "-p", "left", "--elastic=1-8", "--gpus=2", "--ntasks=2", COUNTING, "100000", "40"
    )
    onesd.wait(runs, ["RUNNING"], within=60)
    cluster.run("ctl", "scontrol update PartitionName=left State=DOWN")
    try:
        onesd.settle(within=120)
        restarts = onesd.slurm(runs, "RestartCnt")
        waits = onesd.submit(
            "bob", "-p", "left", "--elastic=1-8", "--gpus=2", "--ntasks=2", COUNTING, "400", "40"
        )

        def told() -> bool:
            said = cluster.run("ctl", f"onesctl explain {waits}", "bob", check=False).stdout
            return "partition left is DOWN" in said

        cluster.eventually(told, within=60, what="the reason told")
        assert (onesd.state(runs), onesd.slurm(runs, "RestartCnt")) == ("RUNNING", restarts)
        # Partitions are read every two seconds; in between one start may have been in vain.
        moves = onesd.ask("job", str(waits))["moves"]
        assert len(moves) <= 1
        assert all(move["outcome"] != "done" for move in moves)
        assert onesd.state(waits) == "PENDING"
    finally:
        cluster.run("ctl", "scontrol update PartitionName=left State=UP")
    onesd.wait(waits, ["COMPLETED"], within=120)


def test_a_job_that_slurm_preempts_is_planned_anew_and_goes_on(onesd: Steering) -> None:
    """Slurm puts it back for a job of a higher tier; its runs are told as Slurm counts them."""
    fresh(onesd)
    onesd.start("--policy", "fifo")
    job = on_four_gpus(onesd, "low", 4000)
    node = onesd.slurm(job, "NodeList")
    urgent = onesd.submit("bob", "-p", "high", "--gpus=4", "-w", node, "--wrap=sleep 600")
    onesd.wait(urgent, ["RUNNING"], within=60)
    onesd.requeued_without_delay(job, within=30)
    onesd.wait(job, ["RUNNING"], within=60)
    assert {onesd.slurm(job, "NodeList"), node} == {"n1", "n2"}
    assert onesd.slurm(job, "RestartCnt") == "1"
    onesd.wait(job, ["COMPLETED"], within=120)
    runs = onesd.ask("job", str(job))["runs"]
    assert [run["state"] for run in runs] == ["PREEMPTED", "COMPLETED"]


def test_a_job_that_slurm_cancels_for_another_is_over_and_nobody_else_is(onesd: Steering) -> None:
    fresh(onesd)
    onesd.start("--policy", "fifo")
    job = on_four_gpus(onesd, "lost", 2000)
    node = onesd.slurm(job, "NodeList")
    beside = on_four_gpus(onesd, "low", 2000)
    urgent = onesd.submit("bob", "-p", "high", "--gpus=4", "-w", node, "--wrap=sleep 600")
    onesd.wait(urgent, ["RUNNING"], within=60)
    onesd.wait(job, ["PREEMPTED"], within=60)
    onesd.wait(beside, ["COMPLETED"], within=180)
    assert onesd.slurm(beside, "RestartCnt") == "0"
    assert [run["state"] for run in onesd.ask("job", str(job))["runs"]] == ["PREEMPTED"]
    assert onesd.state(urgent) == "RUNNING"


def test_cpus_that_slurm_gives_to_two_jobs_keep_nobody_from_gpus(onesd: Steering) -> None:
    """OverSubscribe=FORCE:2: a job that has all CPUs of a node leaves them to another."""
    with configured(onesd, OVERSUBSCRIBED):
        fresh(onesd)
        beside = [
            onesd.submit("bob", "-p", "twice", "-w", node, "-c16", "--mem=1000", "--wrap=sleep 600")
            for node in ("n1", "n2")
        ]
        for other in beside:
            onesd.wait(other, ["RUNNING"], within=60)
        onesd.start("--policy", "ones")
        job = on_four_gpus(onesd, "twice", 400)
        onesd.wait(job, ["COMPLETED"], within=120)
        assert {onesd.state(other) for other in beside} == {"RUNNING"}


@pytest.fixture
def suspending(onesd: Steering) -> Iterator[None]:
    """Partitions of which the one suspends the jobs of the other."""
    change = f"sed -i s/^PreemptMode=REQUEUE/PreemptMode=SUSPEND,GANG/ {CONF}"
    with configured(onesd, SUSPENDING, change=change):
        yield


@pytest.mark.usefixtures("suspending")
def test_a_job_that_slurm_suspends_is_left_alone_until_it_is_resumed(
    onesd: Steering, cluster: Cluster
) -> None:
    """Its GPUs stay its own for Slurm; the other job gets its CPUs."""
    fresh(onesd)
    onesd.start("--policy", "ones")
    job = on_four_gpus(onesd, "below", 4000, sizes="1-4")
    node = onesd.slurm(job, "NodeList")
    urgent = onesd.submit(
        "bob", "-p", "above", "-c16", "--mem=4000", "-w", node, "--wrap=sleep 600"
    )
    onesd.wait(job, ["SUSPENDED"], within=60)
    # Another elastic job is planned around it meanwhile.
    other = onesd.submit(
        "alice", "-p", "below", "--elastic=1-8", "--gpus=2", "--ntasks=2", COUNTING, "400", "40"
    )
    onesd.wait(other, ["COMPLETED"], within=180)
    assert onesd.state(job) == "SUSPENDED"
    assert "it is suspended" in cluster.run("ctl", f"onesctl explain {job}", "alice").stdout
    assert (onesd.slurm(job, "NodeList"), onesd.slurm(job, "RestartCnt")) == (node, "0")
    cluster.run("ctl", f"scancel {urgent}")
    onesd.wait(job, ["RUNNING"], within=60)
    onesd.wait(job, ["COMPLETED"], within=300)
    assert {run["state"] for run in onesd.ask("job", str(job))["runs"]} <= {"COMPLETED", "REQUEUED"}
