"""GPUs beside which others hold the CPUs or the memory of their node, on a real Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def onesd(cluster: Cluster) -> Steering:
    steering = Steering(cluster)
    steering.prepare()
    return steering


def taken(onesd: Steering, *options: str) -> int:
    """A job outside onesd's hands that runs for long."""
    job = onesd.submit("bob", *options, "--wrap=sleep 900")
    onesd.wait(job, ["RUNNING"], within=60)
    return job


def counting(onesd: Steering, sizes: str, samples: int, *options: str) -> int:
    """An elastic job that asks for one GPU."""
    script = ("/home/jobs/counting.sbatch", str(samples), "40")
    return onesd.submit("alice", f"--elastic={sizes}", "--gpus=1", *options, *script)


@pytest.mark.parametrize("all_of_it", ["--cpus-per-task=16", "--mem=32000"])
def test_gpus_without_cpus_or_memory_beside_them_are_not_free(
    onesd: Steering, cluster: Cluster, all_of_it: str
) -> None:
    """Slurm would start nobody there: nobody is stopped for them, nor let go onto them."""
    holds = taken(onesd, "--nodelist=n1", "--gpus=1", "--ntasks=1", all_of_it)
    taken(onesd, "--nodelist=n[3-4]", "--gpus=8", "--ntasks=8")
    onesd.start("--policy", "ones")
    runs = onesd.counting("alice", "1-8", 4, 100_000)
    onesd.wait(runs, ["RUNNING"], within=60)
    waits = onesd.counting("alice", "4", 4, 400)
    onesd.settle(within=120)
    assert (onesd.slurm(runs, "NodeList"), onesd.slurm(runs, "RestartCnt")) == ("n2", "0")
    for job in (runs, waits):
        moves = onesd.ask("job", str(job))["moves"]
        assert [move["outcome"] for move in moves if move["outcome"] != "done"] == []
    cluster.run("ctl", f"scancel {holds}")
    onesd.wait(waits, ["RUNNING", "COMPLETED"], within=120)


def test_a_job_has_as_many_gpus_as_there_are_cpus_for(onesd: Steering) -> None:
    """Of n1 others leave 3 GPUs and 4 CPUs, and the job takes 2 for each GPU."""
    taken(onesd, "--nodelist=n1", "--gpus=1", "--ntasks=1", "--cpus-per-task=12")
    taken(onesd, "--nodelist=n[2-4]", "--gpus=12", "--ntasks=12")
    onesd.start("--policy", "ones")
    job = counting(onesd, "1-4", 100_000, "--cpus-per-gpu=2")
    onesd.cluster.eventually(lambda: onesd.gpus(job) == 2, within=120, what="grown to 2 GPUs")
    onesd.settle(within=120)
    assert (onesd.gpus(job), onesd.slurm(job, "NodeList")) == (2, "n1")
    assert {move["outcome"] for move in onesd.ask("job", str(job))["moves"]} == {"done"}


def test_jobs_that_need_each_others_cpus_are_not_put_together(onesd: Steering) -> None:
    """12 CPUs each: one of them on each node, whatever GPUs are free there."""
    onesd.start("--policy", "ones")
    jobs = [counting(onesd, "1", 1000, "--ntasks=1", "--cpus-per-task=12") for _ in range(6)]
    for job in jobs:
        onesd.wait(job, ["COMPLETED"], within=300)
    for job in jobs:
        assert [move["outcome"] for move in onesd.ask("job", str(job))["moves"]] == ["done"]


@pytest.mark.parametrize("gpus", [["--gpus=1"], []])
def test_elastic_jobs_make_way_for_the_cpus_of_a_plain_job(
    onesd: Steering, gpus: list[str]
) -> None:
    """Grown to three GPUs with 5 CPUs each, the job leaves one of both; rigid it would leave 11."""
    taken(onesd, "--nodelist=n[2-4]", "--gpus=12", "--ntasks=12", "--cpus-per-task=4")
    onesd.start("--policy", "ones")
    grown = counting(onesd, "1-3", 100_000, "--cpus-per-gpu=5")
    onesd.cluster.eventually(lambda: onesd.gpus(grown) == 3, within=120, what="grown to 3 GPUs")
    plain = onesd.submit("bob", *gpus, "--cpus-per-task=8", "--wrap=sleep 600")
    onesd.wait(plain, ["RUNNING"], within=120)
    onesd.cluster.eventually(lambda: onesd.gpus(grown) == 1, within=120, what="shrunk to 1 GPU")
    onesd.settle(within=120)
    assert onesd.state(plain) == "RUNNING"
