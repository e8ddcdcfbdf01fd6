"""What a live job makes of lost nodes and killed workers, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from soak_account import Task, account_of
from steering import Steering
from test_live import BATCH, SAMPLES, Live

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

NODES = ("n1", "n2")  # of the type of GPU that these jobs want


@pytest.fixture
def live(cluster: Cluster) -> Iterator[Live]:
    steering = Steering(cluster)
    steering.prepare()
    yield Live(steering)
    steering.prepare()
    idle = "sinfo -h -t idle -o %D"
    cluster.eventually(
        lambda: cluster.run("ctl", idle).stdout.split() == ["4"], within=60, what="all nodes idle"
    )


def spread(live: Live, *words: str) -> tuple[int, str, str]:
    """A job whose own allocation is two GPUs on each of two nodes, and these nodes."""
    for node in NODES:
        plain = ["sbatch", f"--nodelist={node}", "--gres=gpu:2", "--wrap=sleep 1000"]
        live.cluster.run("ctl", plain, "bob")
    running = "squeue -h -t running -u bob -o %A"
    live.cluster.eventually(
        lambda: len(live.cluster.run("ctl", running).stdout.split()) == len(NODES),
        within=30,
        what="half of the nodes taken",
    )
    job = live.submit(*words, gpus=4, options=("--no-kill",))
    live.has(job, 4)
    first = live.steering.slurm(job, "batchhost")
    (other,) = set(NODES) - {first}
    return job, first, other


def task(epochs: int) -> Task:
    return Task(epochs=epochs, samples=SAMPLES, batch=BATCH)


def processes(live: Live, job: int) -> dict[str, int]:
    status = live.status(job)
    return {} if status is None else {each["slot"]: each["pid"] for each in status["members"]}


def checkpointed(live: Live, job: int) -> int:
    """Have the job write a checkpoint; the position it is of."""

    def found() -> list[dict[str, Any]]:
        return [note for note in live.notes(job) if "checkpoint" in note]

    live.cluster.run("ctl", f"scancel --signal=USR1 {job}")
    live.cluster.eventually(lambda: bool(found()), within=30, what="a checkpoint")
    return int(found()[-1]["checkpoint"])


def test_a_job_that_loses_a_node_of_its_own_goes_on_with_those_left_and_says_so(
    live: Live,
) -> None:
    live.start()
    job, _, other = spread(live, "1000")
    before = processes(live, job)
    live.cluster.run("ctl", f"scontrol update NodeName={other} State=DOWN Reason=test")
    live.steering.want(job, 2)  # or it would grow again; said before, it might give the node back
    live.cluster.eventually(lambda: live.workers(job) == 2, within=60, what="two workers left")
    left = processes(live, job)
    assert left.items() <= before.items()
    live.has(job, 2)
    (run,) = live.steering.ask("job", str(job))["runs"]
    assert [held["why"] for held in run["earlier"]] == [f"{other} was lost"]
    live.cluster.run("ctl", ["scancel", str(job)])
    live.none_left()
    account = account_of(live.notes(job), task(1000), complete=False)
    assert (account.lost, account.repeated, account.strands) == (0, 0, 1)


def test_a_job_whose_first_node_is_lost_begins_elsewhere_from_its_last_checkpoint(
    live: Live,
) -> None:
    epochs = 100
    live.start()
    job = live.submit(str(epochs))
    live.has(job, 1)
    live.resize(job, 6)
    first = live.steering.slurm(job, "batchhost")
    position = checkpointed(live, job)
    live.steering.want(job, 4)  # of the nodes that it may use, one is left
    live.steering.lose(first)
    live.steering.requeued_without_delay(job)
    live.has(job, 4)
    assert first not in live.steering.slurm(job, "nodelist")
    live.steering.wait(job, ["COMPLETED"], within=300)
    live.none_left()
    account = account_of(live.notes(job), task(epochs), complete=True)
    assert (account.lost, account.repeated, account.strands) == (0, 0, 2)
    again = [line["at"] for line in live.account(job) if line["restarts"] == 1]
    assert min(again) >= position
    assert live.steering.result("alice", job)["samples"] == epochs * SAMPLES


def test_a_job_gives_back_a_node_of_its_own_without_a_restart(live: Live) -> None:
    epochs = 120
    live.start()
    job, first, other = spread(live, str(epochs))
    before = processes(live, job)
    live.resize(job, 2)  # fewer than its own allocation
    assert live.steering.slurm(job, "nodelist") == first
    assert processes(live, job).items() <= before.items()
    live.resize(job, 4)  # the node comes back as a satellite
    assert len(live.satellites()) == 1
    live.resize(job, 2)
    live.steering.wait(job, ["COMPLETED"], within=300)
    live.none_left()
    account = account_of(live.notes(job), task(epochs), complete=True)
    assert (account.lost, account.repeated, account.strands) == (0, 0, 1)
    life = live.steering.ask("job", str(job))
    assert [(move["kind"], move["outcome"]) for move in life["moves"]] == [
        ("start", "done"),
        *[("live", "done")] * 3,
    ]
    (run,) = life["runs"]
    assert [held["why"] for held in run["earlier"]] == [f"{other} was given back"]
    told = live.cluster.run("ctl", ["onesctl", "job", str(job)]).stdout
    assert f"{other} was given back; it held 4 GPUs on n[1-2]" in told


def test_killed_in_the_midst_of_giving_a_node_back_onesd_goes_on_with_it(live: Live) -> None:
    live.start()
    job, first, _ = spread(live, "1000")
    live.resize_with_onesd_killed(
        job, 2, there=lambda: live.steering.slurm(job, "nodelist") == first
    )
    assert live.steering.slurm(job, "nodelist") == first
    assert live.steering.ask("job", str(job))["moves"][-1]["outcome"] == "done"
    live.cluster.run("ctl", ["scancel", str(job)])
    account = account_of(live.notes(job), task(1000), complete=False)
    assert (account.lost, account.repeated, account.strands) == (0, 0, 1)


def test_a_node_of_its_own_whose_ones_run_was_killed_is_given_back(live: Live) -> None:
    live.start()
    job, first, other = spread(live, "1000")
    live.cluster.run(other, "pkill -KILL -u alice -o -f '[/]opt/ones/bin/python[^ ]* .*ones-run'")
    live.cluster.eventually(lambda: live.workers(job) == 2, within=60, what="two workers left")
    live.cluster.eventually(
        lambda: live.steering.slurm(job, "nodelist") == first,
        within=90,
        what="the empty node given back",
    )
    live.cluster.run("ctl", ["scancel", str(job)])
    account = account_of(live.notes(job), task(1000), complete=False)
    assert (account.lost, account.repeated, account.strands) == (0, 0, 1)
