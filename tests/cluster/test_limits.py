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
    "MaxTRESPerUser=gres/gpu=-1,node=-1,mem=-1 MaxTRESPerJob=gres/gpu=-1,mem=-1"
    " GrpTRES=gres/gpu=-1,cpu=-1,mem=-1 MaxTRESPerNode=mem=-1 MinTRESPerJob=mem=-1"
    " MaxJobsPerUser=-1 GrpJobs=-1 MaxWall=-1 GrpTRESMins=gres/gpu=-1"
)
NO_ASSOCIATION = (
    "GrpTRESMins=gres/gpu=-1 GrpTRES=gres/gpu=-1,mem=-1 GrpJobs=-1 MaxJobs=-1"
    " MaxTRESPerJob=gres/gpu=-1"
)
NO_PARTITION = "MaxNodes=UNLIMITED QoS= MaxMemPerNode=0 DefMemPerCPU=500"


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    """With limits enforced, and none set; so again afterwards, but for the enforcing."""
    steering = Steering(cluster)
    _unlimited(cluster)
    cluster.run("ctl", ENFORCE.format("limits,qos", CONFIG))
    cluster.reconfigure()
    steering.prepare()
    steering.configure(IMPATIENT + QUICKLY)
    yield steering
    steering.prepare()
    _unlimited(cluster)
    cluster.run("ctl", ENFORCE.format("associations", CONFIG))
    cluster.reconfigure()


def _unlimited(cluster: Cluster) -> None:
    manage(cluster, f"modify qos normal set {NO_QOS}")
    for account in ("vision", "language"):
        manage(cluster, f"modify account {account} set {NO_ASSOCIATION}")
    for user in ("alice", "bob", "carol"):
        manage(cluster, f"modify user {user} set {NO_ASSOCIATION}")
    cluster.run("ctl", f"scontrol update PartitionName=gpu {NO_PARTITION}", check=False)
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


def training(onesd: Steering, user: str, sizes: str, gpus: int, *options: str) -> int:
    """A job of one task a GPU, that has no end here."""
    asks = [f"--elastic={sizes}", f"--gpus={gpus}", f"--ntasks={gpus}", *options]
    return onesd.submit(user, *asks, "/home/jobs/counting.sbatch", "1000000", "40")


def grown_to(onesd: Steering, job: int, gpus: int, told: str) -> None:
    """The job grows to its limit, is never stopped for more, and says why."""
    reach(onesd, [job], gpus, within=90)
    restarts = onesd.slurm(job, "RestartCnt")
    stay(onesd, [job], gpus, 20)
    assert (onesd.gpus(job), onesd.slurm(job, "RestartCnt")) == (gpus, restarts)
    assert told in explained(onesd, job)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (("--mem-per-gpu=1000",), 4000),
        (("--mem-per-cpu=500", "--cpus-per-task=2"), 4000),
        (("--mem=3000",), 3000),  # of each node: it has all four GPUs of one
        ((), 2000),  # DefMemPerCPU=500
        (("--mem=0",), 32000),  # all of each node
    ],
)
def test_a_job_grows_to_the_memory_of_its_user_however_it_asks_for_it(
    onesd: Steering, cluster: Cluster, options: tuple[str, ...], most: int
) -> None:
    manage(cluster, f"modify qos normal set MaxTRESPerUser=mem={most}")
    onesd.start("--policy", "ones")
    job = training(onesd, "alice", "1-8", 2, *options)
    size = f"{most}M" if most % 1024 else f"{most // 1024}G"
    told = f"QOS normal allows {size} of memory a user; alice has {size}"
    grown_to(onesd, job, 4, told)


def test_memory_by_default_per_gpu_counts_though_slurm_shows_it_late(
    onesd: Steering, cluster: Cluster
) -> None:
    """Until it has tried to start the job, Slurm takes it for one of all its node's memory."""
    change = "sed -i s/{}/{}/ " + CONFIG
    cluster.run("ctl", change.format("DefMemPerCPU=500", "DefMemPerGPU=700"))
    cluster.reconfigure()
    try:
        manage(cluster, "modify qos normal set MaxTRESPerUser=mem=2800")
        onesd.start("--policy", "ones")
        job = training(onesd, "alice", "1-8", 2)
        grown_to(onesd, job, 4, "QOS normal allows 2800M of memory a user; alice has 2800M")
    finally:
        onesd.prepare()
        cluster.run("ctl", change.format("DefMemPerGPU=700", "DefMemPerCPU=500"))
        cluster.reconfigure()


def test_the_memory_of_plain_jobs_counts_and_the_plan_uses_what_is_left(
    onesd: Steering, cluster: Cluster
) -> None:
    manage(cluster, "modify account vision set GrpTRES=mem=6000")
    plain = onesd.submit("bob", "--mem=2000", "--wrap=sleep 600")
    onesd.wait(plain, ["RUNNING"], within=30)
    onesd.start("--policy", "fifo")
    jobs = [training(onesd, "alice", "1", 1, "--mem=1000") for _ in range(6)]
    other = training(onesd, "carol", "1", 1, "--mem=1000")
    reach(onesd, jobs, 4)
    stay(onesd, jobs, 4)
    assert onesd.gpus(other) == 1
    waiting = next(job for job in jobs if onesd.state(job) == "PENDING")
    assert "account vision allows 6000M of memory; it has 6000M" in explained(onesd, waiting)


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("MaxTRESPerJob=mem=4000", "QOS normal allows 4000M of memory a job"),
        ("MaxTRESPerNode=mem=2000", "QOS normal allows 2000M of memory of one node"),
    ],
)
def test_the_memory_of_one_job_and_of_a_node_of_it_is_limited(
    onesd: Steering, cluster: Cluster, limit: str, told: str
) -> None:
    manage(cluster, f"modify qos normal set {limit}")
    onesd.start("--policy", "ones")
    job = training(onesd, "alice", "1-8", 1, "--mem-per-gpu=1000")
    grown_to(onesd, job, 4, told)


def test_a_job_that_asks_for_too_little_memory_is_given_more_gpus(
    onesd: Steering, cluster: Cluster
) -> None:
    manage(cluster, "modify qos normal set MinTRESPerJob=mem=4000")
    onesd.start("--policy", "fifo")
    job = training(onesd, "alice", "1-4", 1, "--mem-per-gpu=1000")
    reach(onesd, [job], 4)
    assert refused(onesd) == []


def test_a_partition_allows_so_much_memory_of_a_node(onesd: Steering, cluster: Cluster) -> None:
    cluster.run("ctl", "scontrol update PartitionName=gpu MaxMemPerNode=2000")
    onesd.start("--policy", "ones")
    job = training(onesd, "alice", "1-4", 2, "--mem-per-cpu=1000")
    told = "partition gpu allows 2000M of memory of one node"
    reach(onesd, [job], 4, within=90)  # on two nodes
    stay(onesd, [job], 4)
    assert told in explained(onesd, job)


@pytest.fixture
def licensed(onesd: Steering, cluster: Cluster) -> Iterator[Steering]:
    """The cluster has four licences of matlab, which limits may name."""
    tres = "s/^AccountingStorageTRES=.*/&,license\\/matlab/"
    cluster.run("ctl", f"echo Licenses=matlab:4 >> {CONFIG}; sed -i '{tres}' {CONFIG}")
    cluster.reconfigure()
    yield onesd
    onesd.prepare()
    cluster.run("ctl", "scontrol delete reservation=kept", check=False)
    for what in ("GrpTRES", "MaxTRESPerUser"):
        manage(cluster, f"modify qos normal set {what}=license/matlab=-1")
    cluster.run("ctl", f"sed -i '/^Licenses=/d; s/,license.matlab//' {CONFIG}")
    cluster.reconfigure()


def test_jobs_have_the_licences_of_the_cluster_between_them(
    licensed: Steering, cluster: Cluster
) -> None:
    plain = licensed.submit("bob", "--licenses=matlab", "--wrap=sleep 600")
    licensed.wait(plain, ["RUNNING"], within=30)
    licensed.start("--policy", "fifo")
    jobs = [training(licensed, "alice", "1", 1, "--licenses=matlab") for _ in range(5)]
    others = [training(licensed, "alice", "1", 1) for _ in range(3)]
    reach(licensed, jobs, 3)
    reach(licensed, others, 3)
    stay(licensed, jobs, 3)
    waiting = next(job for job in jobs if licensed.state(job) == "PENDING")
    assert "the cluster has 4 matlab licences; jobs have 4" in explained(licensed, waiting)


def test_a_job_with_licences_grows_and_one_that_would_lose_them_is_not_stopped(
    licensed: Steering, cluster: Cluster
) -> None:
    """It gives them back at every restart, and a job that waits for them would have them first."""
    licensed.start("--policy", "ones")
    job = training(licensed, "alice", "1-8", 2, "--licenses=matlab:3")
    reach(licensed, [job], 8, within=90)
    assert refused(licensed) == []
    cluster.run("ctl", f"scancel {job}")
    job = training(licensed, "alice", "2-8", 2, "--licenses=matlab:3")
    licensed.wait(job, ["RUNNING"], within=30)
    plain = licensed.submit("bob", "--licenses=matlab:2", "--wrap=sleep 600")
    cluster.eventually(
        lambda: licensed.slurm(plain, "Reason") == "Licenses", within=30, what="one that waits"
    )
    restarts, gpus = licensed.slurm(job, "RestartCnt"), licensed.gpus(job)
    stay(licensed, [job], gpus, 30)
    assert (licensed.gpus(job), licensed.slurm(job, "RestartCnt")) == (gpus, restarts)


def test_a_reservation_keeps_licences_from_others(licensed: Steering, cluster: Cluster) -> None:
    cluster.run(
        "ctl",
        "scontrol create reservation=kept starttime=now+30minutes duration=60 licenses=matlab:3"
        " users=bob flags=LICENSE_ONLY",
    )
    licensed.start("--policy", "fifo")
    long = training(licensed, "alice", "1", 1, "--licenses=matlab:2", "--time=60")
    short = training(licensed, "alice", "1", 1, "--licenses=matlab:2", "--time=10")
    reach(licensed, [short], 1)
    stay(licensed, [long], 0)
    told = "the cluster has 4 matlab licences, 3 of them reserved; jobs have 2"
    assert told in explained(licensed, long)


def test_licences_are_a_limit_of_a_qos_too(licensed: Steering, cluster: Cluster) -> None:
    manage(cluster, "modify qos normal set GrpTRES=license/matlab=2")
    licensed.start("--policy", "ones")
    jobs = [training(licensed, "alice", "1", 1, "--licenses=matlab") for _ in range(4)]
    reach(licensed, jobs, 2)
    stay(licensed, jobs, 2)
    waiting = next(job for job in jobs if licensed.state(job) == "PENDING")
    told = "QOS normal allows 2 matlab licences in all; it has 2"
    assert told in explained(licensed, waiting)
