"""Limits of a real Slurm, set by sacctmgr and scontrol: known beforehand, and never run into."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from steering import IMPATIENT, Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster
QUICKLY = """
[slurm]
limits_every = 2.0
[estimator]
restart_seconds = 1.0
job_seconds = 86400.0
"""
ENFORCE = "sed -i 's/^AccountingStorageEnforce=.*/AccountingStorageEnforce={}/' {}"
CONFIG = "/etc/slurm/slurm.conf"
NO_QOS = (
    "MaxTRESPerUser=gres/gpu=-1,node=-1 MaxTRESPerJob=gres/gpu=-1 GrpTRES=gres/gpu=-1,cpu=-1"
    " MaxJobsPerUser=-1 GrpJobs=-1 MaxWall=-1 GrpTRESMins=gres/gpu=-1"
)
NO_ASSOCIATION = (
    "GrpTRESMins=gres/gpu=-1 GrpTRES=gres/gpu=-1 GrpJobs=-1 MaxJobs=-1 MaxTRESPerJob=gres/gpu=-1"
)


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    """With limits enforced, and none set; so again afterwards, but for the enforcing."""
    steering = Steering(cluster)
    _unlimited(cluster)
    cluster.run("ctl", ENFORCE.format("limits,qos", CONFIG) + " && scontrol reconfigure")
    steering.prepare()
    steering.configure(IMPATIENT + QUICKLY)
    yield steering
    steering.prepare()
    _unlimited(cluster)
    cluster.run("ctl", ENFORCE.format("associations", CONFIG) + " && scontrol reconfigure")


def _unlimited(cluster: Cluster) -> None:
    manage(cluster, f"modify qos normal set {NO_QOS}")
    for account in ("vision", "language"):
        manage(cluster, f"modify account {account} set {NO_ASSOCIATION}")
    for user in ("alice", "bob", "carol"):
        manage(cluster, f"modify user {user} set {NO_ASSOCIATION}")
    cluster.run("ctl", "scontrol update PartitionName=gpu MaxNodes=UNLIMITED QoS=", check=False)
    cluster.run("ctl", "sacctmgr -i delete qos tight", check=False)
    cluster.run("ctl", "sacctmgr -i modify account vision set parent=root", check=False)
    cluster.run("ctl", "sacctmgr -i delete account science", check=False)


def manage(cluster: Cluster, words: str) -> None:
    """`sacctmgr`; it fails where nothing is changed by it."""
    cluster.run("ctl", f"sacctmgr -i {words}", check=False)


def refused(onesd: Steering) -> list[str]:
    """Starts that Slurm did not let come."""
    script = (
        "import sqlite3; database = sqlite3.connect('/var/lib/ones/ones.sqlite');"
        ' print(*(row[0] for row in database.execute("SELECT outcome FROM moves WHERE outcome'
        " LIKE '%does not start%' OR outcome LIKE 'expired%'\")), sep='\\n')"
    )
    found = onesd.cluster.run("ctl", ["/opt/ones/bin/python", "-c", script], "ones").stdout
    return [line for line in found.splitlines() if line.strip()]


def reach(onesd: Steering, jobs: list[int], gpus: int, *, within: float = 60.0) -> None:
    """The jobs get to hold so many GPUs together, and never more."""
    end = time.monotonic() + 3 * within
    while (held := sum(onesd.gpus(job) for job in jobs)) != gpus:
        assert held < gpus, f"{held} GPUs, where {gpus} are allowed"
        if time.monotonic() > end:
            pytest.fail(f"{held} of {gpus} GPUs; refused: {refused(onesd)}")
        time.sleep(0.5)


def stay(onesd: Steering, jobs: list[int], gpus: int, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert sum(onesd.gpus(job) for job in jobs) <= gpus
        time.sleep(1.0)
    assert refused(onesd) == []


def explained(onesd: Steering, job: int) -> str:
    return "\n".join(onesd.ask("explain", str(job))["lines"])


def test_a_job_grows_to_its_users_limit_and_goes_on_there(
    onesd: Steering, cluster: Cluster
) -> None:
    """One job of 1 to 8 GPUs under MaxTRESPerUser=gres/gpu=4; once it was lost to this."""
    manage(cluster, "modify qos normal set MaxTRESPerUser=gres/gpu=4")
    onesd.start("--policy", "ones")
    job = onesd.counting("alice", "1-8", 2, 1_000_000)
    reach(onesd, [job], 4, within=90)
    restarts = onesd.slurm(job, "RestartCnt")
    stay(onesd, [job], 4, 30)
    assert (onesd.gpus(job), onesd.slurm(job, "RestartCnt")) == (4, restarts)
    assert "QOS normal allows 4 GPUs a user; alice has 4" in explained(onesd, job)


def test_two_users_have_a_limit_each_and_a_plain_job_counts(
    onesd: Steering, cluster: Cluster
) -> None:
    manage(cluster, "modify qos normal set MaxTRESPerUser=gres/gpu=4")
    plain = onesd.submit("alice", "--gpus=2", "--wrap=sleep 600")
    onesd.wait(plain, ["RUNNING"], within=30)
    onesd.start("--policy", "fifo")
    alices = [onesd.counting("alice", "2", 2, 1_000_000) for _ in range(3)]
    bobs = [onesd.counting("bob", "2", 2, 1_000_000) for _ in range(3)]
    reach(onesd, bobs, 4)
    reach(onesd, alices, 2)
    stay(onesd, alices, 2)
    stay(onesd, bobs, 4)
    waiting = next(job for job in alices if onesd.state(job) == "PENDING")
    assert "QOS normal allows 4 GPUs a user; alice has 4" in explained(onesd, waiting)


def test_an_account_shares_the_limit_of_the_one_above_it(onesd: Steering, cluster: Cluster) -> None:
    manage(cluster, "add account science parent=root")
    manage(cluster, "modify account vision set parent=science")
    manage(cluster, "modify account science set GrpTRES=gres/gpu=3")
    onesd.start("--policy", "fifo")
    jobs = [onesd.counting(user, "1", 1, 1_000_000) for user in ("alice", "bob") * 3]
    reach(onesd, jobs, 3)
    stay(onesd, jobs, 3)
    waiting = next(job for job in jobs if onesd.state(job) == "PENDING")
    assert "account science allows 3 GPUs" in explained(onesd, waiting)


def test_so_many_jobs_of_a_user_run_at_once(onesd: Steering, cluster: Cluster) -> None:
    manage(cluster, "modify user alice set MaxJobs=2")
    onesd.start("--policy", "ones")
    jobs = [onesd.counting("alice", "1", 1, 1_000_000) for _ in range(4)]
    reach(onesd, jobs, 2)
    stay(onesd, jobs, 2)
    waiting = next(job for job in jobs if onesd.state(job) == "PENDING")
    told = "account vision allows alice 2 running jobs"
    cluster.eventually(lambda: told in explained(onesd, waiting), within=60, what="the limit told")


def test_a_partition_allows_so_many_nodes_a_job(onesd: Steering, cluster: Cluster) -> None:
    cluster.run("ctl", "scontrol update PartitionName=gpu MaxNodes=1")
    onesd.start("--policy", "ones")
    job = onesd.counting("alice", "1-8", 2, 1_000_000)
    reach(onesd, [job], 4, within=90)
    stay(onesd, [job], 4)
    assert "partition gpu allows 1 node a job" in explained(onesd, job)


def test_the_qos_of_a_partition_counts_for_its_jobs(onesd: Steering, cluster: Cluster) -> None:
    manage(cluster, "add qos tight")
    manage(cluster, "modify qos tight set GrpTRES=gres/gpu=2")
    cluster.run("ctl", "scontrol update PartitionName=gpu QoS=tight")
    onesd.start("--policy", "fifo")
    jobs = [onesd.counting("carol", "1", 1, 1_000_000) for _ in range(3)]
    reach(onesd, jobs, 2)
    stay(onesd, jobs, 2)


def test_a_limit_lowered_under_a_job_stops_nobody(onesd: Steering, cluster: Cluster) -> None:
    onesd.start("--policy", "ones")
    job = onesd.counting("alice", "4", 4, 1_000_000)
    reach(onesd, [job], 4)
    manage(cluster, "modify qos normal set MaxTRESPerUser=gres/gpu=1")
    restarts = onesd.slurm(job, "RestartCnt")
    stay(onesd, [job], 4, 20)
    assert (onesd.gpus(job), onesd.slurm(job, "RestartCnt")) == (4, restarts)


def test_an_account_that_has_used_up_its_gpu_minutes_starts_nothing_more(
    onesd: Steering, cluster: Cluster
) -> None:
    manage(cluster, "modify account language set GrpTRESMins=gres/gpu=0")
    onesd.start("--policy", "fifo")
    job = onesd.counting("carol", "1", 1, 1_000_000)
    other = onesd.counting("alice", "1", 1, 1_000_000)
    reach(onesd, [other], 1)
    stay(onesd, [job], 0)
    assert "account language allows 0 GPU minutes" in explained(onesd, job)
