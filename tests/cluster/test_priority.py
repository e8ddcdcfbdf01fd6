"""Slurm's order on a real Slurm: what our code makes of it is what sprio shows, and it is heard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from steering import IMPATIENT, Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

CONF = "/etc/slurm/slurm.conf"
WEIGHTS = """
PriorityWeightAge=1000000
PriorityWeightFairShare=10000
PriorityWeightJobSize=5000
PriorityWeightPartition=2000
PriorityWeightQOS=3000
PriorityWeightAssoc=700
PriorityWeightTRES=CPU=100,Mem=200,GRES/gpu=4000
PriorityMaxAge=0-01:00:00
PriorityCalcPeriod=1
PriorityDecayHalfLife=0-01:00:00
PartitionName=low Nodes=n[1-4] DefMemPerCPU=500 PriorityJobFactor=10
PartitionName=high Nodes=n[1-4] DefMemPerCPU=500 PriorityJobFactor=40 PriorityTier=5
"""
EIGHT = ("--elastic=8", "--gpus=v100:8", "--ntasks=8")  # all of their type
COUNTING = ("/home/jobs/counting.sbatch",)
ACCOUNTING = """
sacctmgr -iQ add qos fast priority=50
sacctmgr -iQ modify qos normal set priority=10
sacctmgr -iQ modify user alice set qos+=fast
sacctmgr -iQ modify user alice set priority=7
sacctmgr -iQ modify user bob set priority=20
sacctmgr -iQ modify account vision set fairshare=3
"""
AS_BEFORE = """
sacctmgr -iQ modify account vision set fairshare=1
sacctmgr -iQ modify user alice,bob set priority=-1
sacctmgr -iQ modify user alice set qos-=fast
sacctmgr -iQ modify qos normal set priority=0
sacctmgr -iQ delete qos fast
"""


@pytest.fixture(scope="module")
def onesd(cluster: Cluster) -> Iterator[Steering]:
    """A cluster with weights, QOS and tiers of its own, for as long as these tests take."""
    steering = Steering(cluster)
    steering.prepare()
    cluster.run("ctl", f"cp {CONF} {CONF}.before && sed -i /^PriorityType/d {CONF}")
    cluster.run("ctl", f"cat >> {CONF}", stdin=f"PriorityType=priority/multifactor{WEIGHTS}")
    cluster.run("ctl", ACCOUNTING)
    cluster.reconfigure()
    yield steering
    steering.prepare()
    cluster.run("ctl", f"mv {CONF}.before {CONF}")
    cluster.reconfigure()
    cluster.run("ctl", AS_BEFORE, check=False)


@dataclass(frozen=True, slots=True)
class Sprio:
    """What sprio shows of a job that waits."""

    priority: int
    age: float  # as a share of PriorityMaxAge


def sprio(onesd: Steering) -> dict[int, Sprio]:
    """Of a job of several partitions the largest."""
    found: dict[int, Sprio] = {}
    for line in onesd.cluster.run("ctl", "sprio -h -o '%i|%Y|%a'").stdout.splitlines():
        job, priority, age = line.split("|")
        if int(job) not in found or found[int(job)].priority < int(priority):
            found[int(job)] = Sprio(int(priority), float(age))
    return found


def ours(onesd: Steering, *asked: str) -> Any:
    python = ["runuser", "-u", "ones", "--", "/opt/ones/bin/python", "/home/jobs/order_of.py"]
    return json.loads(onesd.cluster.run("ctl", [*python, *asked]).stdout)


def wait_for_sprio(onesd: Steering, jobs: list[int]) -> dict[int, Sprio]:
    """Until slurmctld has reckoned their priorities after the last of them came."""
    onesd.cluster.eventually(
        lambda: all(sprio(onesd).get(job, Sprio(0, 0.0)).age > 0 for job in jobs),
        within=150,
        what="priorities with an age",
    )
    return sprio(onesd)


def test_priorities_of_waiting_jobs_are_sprios_and_held_ones_have_the_same(onesd: Steering) -> None:
    slept = "--wrap=sleep 3000"
    runs = onesd.submit("bob", "-N4", "--gres=gpu:4", slept)
    onesd.wait(runs, ["RUNNING"], within=20)
    waiting = [
        onesd.submit("alice", "--gpus=2", slept),
        onesd.submit("alice", "-phigh", "--qos=fast", "-N2", "--gres=gpu:2", slept),
        onesd.submit("alice", "-plow", "--nice=50", "-c4", "--mem=4000", "--gres=gpu:1", slept),
        onesd.submit("alice", "--gpus=v100:2", slept),
        onesd.submit("carol", "--gpus=2", slept),
        onesd.submit("carol", "-phigh,low", "--gpus=2", slept),
    ]
    held = onesd.submit("alice", "--hold", "--gpus=2", slept)
    shown = wait_for_sprio(onesd, waiting)
    assert held not in shown
    ages = {job: 3600.0 * shown[job].age for job in waiting}
    asked = [f"{job}:0:{age}" for job, age in ages.items()]
    found = ours(onesd, *asked, f"{held}:2:{ages[waiting[0]]}")
    assert not found["trouble"]
    for job in waiting:
        assert abs(found["jobs"][str(job)][0] - shown[job].priority) <= 1, job
    assert abs(found["jobs"][str(held)][0] - shown[waiting[0]].priority) <= 1
    assert [found["jobs"][str(job)][1] for job in waiting] == [1, 5, 1, 1, 1, 5]
    for job in (runs, *waiting, held):
        onesd.cluster.run("ctl", f"scancel {job}")


def test_an_elastic_job_of_a_higher_tier_starts_in_the_place_of_a_lower_one(
    onesd: Steering,
) -> None:
    onesd.prepare()
    onesd.start("--policy", "ones")
    low = onesd.submit("alice", *EIGHT, "--job-name=low", *COUNTING, "100000", "40")
    onesd.wait(low, ["RUNNING"], within=30)
    high = onesd.submit("bob", *EIGHT, "-phigh", "--job-name=high", *COUNTING, "200", "40")
    onesd.wait(high, ["RUNNING"], within=60)
    assert onesd.state(low) == "PENDING"
    onesd.wait(high, ["COMPLETED"], within=60)
    onesd.wait(low, ["RUNNING"], within=60)
    onesd.prepare()


def test_in_strict_order_the_better_priority_goes_first(onesd: Steering) -> None:
    onesd.prepare()
    onesd.configure(f"{IMPATIENT}\n[order]\nstrictness = 1.0\n")
    blocker = onesd.submit("oper", "-N4", "--gres=gpu:4", "--wrap=sleep 3000")
    onesd.wait(blocker, ["RUNNING"], within=20)
    first = onesd.submit("alice", *EIGHT, "--job-name=a", *COUNTING, "200", "40")
    better = onesd.submit("alice", *EIGHT, "-qfast", "--job-name=b", *COUNTING, "200", "40")
    onesd.start("--policy", "ones")
    onesd.cluster.run("ctl", f"scancel {blocker}")
    onesd.wait(better, ["RUNNING"], within=60)
    assert onesd.state(first) == "PENDING"
    onesd.prepare()


def is_said(onesd: Steering) -> bool:
    said = onesd.cluster.run("ctl", "onesctl status --json", check=False).stdout or "{}"
    problems = json.loads(said).get("problems", [])
    return any("Slurm's order of jobs: sshare" in each for each in problems)


def test_while_sshare_is_down_status_says_so_and_jobs_start(onesd: Steering) -> None:
    onesd.prepare()
    onesd.cluster.run("ctl", "mv /usr/bin/sshare /usr/bin/sshare.away")
    try:
        onesd.start("--policy", "ones", ready=False)
        onesd.cluster.eventually(lambda: is_said(onesd), within=90, what="sshare in onesd's status")
        job = onesd.counting("alice", "1-4", 2, 100)
        onesd.wait(job, ["COMPLETED", "RUNNING"], within=60)
    finally:
        onesd.cluster.run("ctl", "mv /usr/bin/sshare.away /usr/bin/sshare")
    onesd.prepare()


def test_an_elastic_job_uses_what_a_coming_wide_job_leaves_idle(onesd: Steering) -> None:
    """Slurm itself would let it wait behind the wide one, on an idle node, until a time-out."""
    onesd.prepare()
    blocker = onesd.submit("bob", "-w", "n1", "--gres=gpu:4", "--wrap=sleep 3000")
    onesd.wait(blocker, ["RUNNING"], within=20)
    wide = onesd.submit("bob", "-N2", "--gres=gpu:v100:4", "--wrap=sleep 3000")
    # Or what bob's jobs have used in other tests could put alice's job before it.
    onesd.cluster.run("ctl", f"scontrol update JobId={wide} Nice=-100000")
    onesd.cluster.eventually(
        lambda: onesd.slurm(wide, "Reason") == "Resources", within=60, what="the wide job waits"
    )
    onesd.start("--policy", "ones")
    options = ("--elastic=1-4", "--gpus=v100:4", "--ntasks=4", "--job-name=between")
    job = onesd.submit("alice", *options, *COUNTING, "100000", "40")
    onesd.wait(job, ["RUNNING"], within=40)
    assert onesd.slurm(job, "NodeList") == "n2"
    onesd.cluster.run("ctl", f"scancel {blocker}")
    onesd.wait(wide, ["RUNNING"], within=60)
    onesd.prepare()
