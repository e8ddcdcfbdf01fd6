"""Two real Slurms, each with its onesd: a job ends first where `onesctl where` says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from conftest import cluster_up
from steering import IMPATIENT, Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

NAMED = '[clusters]\nalpha = "ctl:7667"\nbeta = "beta:7667"\n'
COUNTING = "/home/jobs/counting.sbatch"
SAMPLES = 1600  # 40 a second on each GPU
ASKS = ("--elastic=1-8", "--gpus=4", "--ntasks=4", "--job-name=where")


def docker(*words: str, check: bool = True) -> None:
    subprocess.run(["docker", *words], check=check, capture_output=True)


@pytest.fixture(scope="module")
def other(cluster: Cluster) -> Iterator[Cluster]:
    """Another cluster, whose controller is known as beta to that of the first, and nothing else."""
    name, between = f"{cluster.name}-other", f"{cluster.name}-between"
    with cluster_up(name) as there:
        try:
            docker("network", "create", "--label", f"ones.cluster={name}", between)
            docker("network", "connect", between, f"{cluster.name}-ctl")
            docker("network", "connect", "--alias", "beta", between, f"{name}-ctl")
            yield there
        finally:
            for one in (cluster.name, name):
                docker("network", "disconnect", "--force", between, f"{one}-ctl", check=False)
            docker("network", "rm", between, check=False)


@pytest.fixture
def clusters(cluster: Cluster, other: Cluster) -> Iterator[dict[str, Steering]]:
    """An onesd in each, with the policy fifo; users ask in alpha."""
    found = {"alpha": Steering(cluster), "beta": Steering(other)}
    for name, onesd in found.items():
        onesd.prepare()
        onesd.configure(
            IMPATIENT.replace("\n[guard]", f"\n{NAMED}[guard]") if name == "alpha" else IMPATIENT
        )
        onesd.start("--policy", "fifo")
    yield found
    for onesd in found.values():
        onesd.prepare()


def blocked(onesd: Steering, seconds: int) -> None:
    """All GPUs are held by a plain job that ends at its time limit or, as it says, then."""
    limit, sleep = f"--time={-(-seconds // 60)}", f"--wrap=sleep {seconds}"
    job = onesd.submit("bob", "--nodes=4", "--gpus-per-node=4", limit, sleep)
    onesd.wait(job, ["RUNNING"], within=30)
    onesd.settle(within=30, rounds=2)


def asked(onesd: Steering, *words: str) -> Any:
    done = onesd.cluster.run("ctl", ["onesctl", "where", "--json", *words], "alice")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("alpha", "beta", "first"),
    [(240, 0, "beta"), (0, 240, "alpha"), (60, 240, "alpha"), (300, 60, "beta")],
)
def test_a_job_ends_first_where_onesctl_says(
    clusters: dict[str, Steering], alpha: int, beta: int, first: str
) -> None:
    for name, seconds in (("alpha", alpha), ("beta", beta)):
        if seconds:
            blocked(clusters[name], seconds)
    here = clusters["alpha"]
    found = asked(here, COUNTING, *ASKS)
    assert found["clusters"][0]["cluster"] == first
    assert found["command"].startswith(f"sbatch -M {first} --elastic=1-8")
    assert found["left_out"] == []
    jobs = {
        name: onesd.submit("alice", *ASKS, COUNTING, str(SAMPLES), "40")
        for name, onesd in clusters.items()
    }
    second = next(name for name in clusters if name != first)
    clusters[first].wait(jobs[first], ["COMPLETED"], within=120)
    assert clusters[second].state(jobs[second]) != "COMPLETED"


def test_a_cluster_that_does_not_answer_is_left_out_and_named(
    clusters: dict[str, Steering],
) -> None:
    clusters["beta"].kill()
    here = clusters["alpha"]
    done = here.cluster.run("ctl", ["onesctl", "where", COUNTING, *ASKS], "alice")
    assert done.stdout.startswith("sbatch -M alpha ")
    assert "beta is left out: onesd does not answer" in done.stderr
    nowhere = here.cluster.run(
        "ctl", ["onesctl", "where", COUNTING, "--elastic=64", "--gpus=64"], "alice", check=False
    )
    assert nowhere.returncode == 1
    assert "the job can run in none of them" in nowhere.stderr
