"""Elastic job arrays on a real Slurm: each task has a number, a size and restarts of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster


def tasks_of(cluster: Cluster, array: int) -> dict[str, int]:
    """Index -> number of each task that is a job of its own."""
    rows = cluster.run("ctl", f"squeue -h -a -r -t all -j {array} -O JobArrayID:20,JobID:20").stdout
    pairs = [row.split() for row in rows.splitlines()]
    found = {name.partition("_")[2]: int(number) for name, number in pairs}
    return found if len({*found.values()}) == len(found) else {}


def test_each_task_is_resized_by_itself_and_all_complete(onesd: Steering, cluster: Cluster) -> None:
    onesd.start("--policy", "ones")
    array = onesd.submit(
        "alice", "--array=0-2", "--elastic=1-4", "--gpus=1", "--job-name=sweep",
        "/home/jobs/counting.sbatch", "4000", "40",
    )  # fmt: skip
    cluster.eventually(lambda: len(tasks_of(cluster, array)) == 3, within=60, what="three tasks")
    tasks = tasks_of(cluster, array)
    assert array in tasks.values()  # the number that stands for the whole array
    cluster.eventually(
        lambda: any(int(onesd.slurm(f"{array}_{at}", "RestartCnt") or 0) for at in tasks),
        within=120,
        what="one task resized",
    )
    listed = {row["job"] for row in onesd.ask("jobs")["jobs"]}
    assert listed <= {*tasks.values()}
    for at in tasks:
        onesd.wait(f"{array}_{at}", ["COMPLETED"], within=240)
    for job in tasks.values():
        runs = onesd.ask("job", str(job))["runs"]
        states = [run["state"] for run in runs]
        assert states == ["REQUEUED"] * (len(states) - 1) + ["COMPLETED"]
        assert onesd.ask("job", str(job))["refused"] == []


def test_what_is_done_to_one_task_is_done_to_no_other(onesd: Steering, cluster: Cluster) -> None:
    """The last task to start has the number of the array; Slurm takes that for all of them."""
    onesd.start_steered(policy="asked")
    array = onesd.submit(
        "alice", "--array=0-2", "--elastic=1-4", "--gpus=1", "--job-name=sweep",
        "/home/jobs/counting.sbatch", "100000", "40",
    )  # fmt: skip
    cluster.eventually(lambda: len(tasks_of(cluster, array)) == 3, within=60, what="three tasks")
    tasks = tasks_of(cluster, array)
    names = {number: f"{array}_{at}" for at, number in tasks.items()}
    for name in names.values():
        onesd.wait(name, ["RUNNING"], within=60)
    last = names.pop(array)
    onesd.want(array, 2)
    cluster.eventually(lambda: onesd.gpus(last) == 2, within=120, what="it has two GPUs")
    assert onesd.slurm(last, "RestartCnt") == "1"
    assert [onesd.slurm(name, "RestartCnt") for name in names.values()] == ["0", "0"]
    assert [onesd.state(name) for name in names.values()] == ["RUNNING"] * 2
