"""Elastic jobs and reservations on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster


def reserve(cluster: Cluster, name: str, *words: str) -> None:
    cluster.run("ctl", ["scontrol", "create", f"reservationname={name}", *words])


def without_reservations(cluster: Cluster) -> None:
    cluster.run(
        "ctl",
        "scontrol -a show reservation -o | grep -o 'ReservationName=[^ ]*' | cut -d= -f2 |"
        " xargs -r -n1 -I@ scontrol delete reservationname=@",
    )


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    without_reservations(cluster)
    yield steering
    steering.prepare()
    without_reservations(cluster)


def test_jobs_in_a_reservation_run_there_and_others_are_not_sent_to_it(
    onesd: Steering, cluster: Cluster
) -> None:
    reserve(cluster, "class", "nodes=n1,n2", "users=alice", "starttime=now", "duration=60")
    onesd.start("--policy", "ones")
    inside = onesd.submit(
        "alice", "--reservation=class", "--elastic=1-16", "--gpus=2", "--ntasks=2",
        "/home/jobs/counting.sbatch", "4000", "40",
    )  # fmt: skip
    others = [onesd.counting("bob", "1-16", 2, 4000) for _ in range(2)]
    for job in (inside, *others):
        onesd.wait(job, ["RUNNING"], within=60)
    explained = cluster.run("ctl", f"onesctl explain {inside}", "alice").stdout
    assert "reservation class: n[1-2] until " in explained
    assert "reservation class keeps n[1-2] until " in (
        cluster.run("ctl", f"onesctl explain {others[0]}", "bob").stdout
    )
    seen: dict[int, set[str]] = {job: set() for job in (inside, *others)}

    def over() -> bool:
        for job in seen:
            nodes = onesd.slurm(job, "NodeList")
            if nodes and onesd.state(job) == "RUNNING":
                seen[job] |= set(
                    cluster.run("ctl", f"scontrol show hostnames {nodes}").stdout.split()
                )
        return all(onesd.state(job) == "COMPLETED" for job in seen)

    cluster.eventually(over, within=300, what="all completed")
    assert seen[inside] <= {"n1", "n2"}
    assert seen[others[0]] | seen[others[1]] <= {"n3", "n4"}
    lives = [onesd.ask("job", str(job)) for job in seen]
    assert [life["refused"] for life in lives] == [[], [], []]


def test_maintenance_to_come_is_for_short_jobs_and_stops_nobody(
    onesd: Steering, cluster: Cluster
) -> None:
    onesd.start("--policy", "ones")
    runs = onesd.submit(
        "alice", "--elastic=1-16", "--gpus=2", "--ntasks=2", "--time=33",
        "/home/jobs/counting.sbatch", "100000", "40",
    )  # fmt: skip
    onesd.wait(runs, ["RUNNING"], within=60)
    onesd.settle(within=120)
    restarts = onesd.slurm(runs, "RestartCnt")
    reserve(
        cluster, "repair", "nodes=n[1-4]", "users=root", "starttime=now+35minutes", "duration=60",
        "flags=maint",
    )  # fmt: skip
    long = onesd.submit(
        "bob", "--elastic=1-16", "--gpus=2", "--ntasks=2", "--time=40",
        "/home/jobs/counting.sbatch", "400", "40",
    )  # fmt: skip
    short = onesd.submit(
        "bob", "--elastic=1-16", "--gpus=2", "--ntasks=2", "--time=10",
        "/home/jobs/counting.sbatch", "400", "40",
    )  # fmt: skip
    onesd.wait(short, ["COMPLETED"], within=120)
    assert onesd.state(long) == "PENDING"
    assert onesd.ask("job", str(long))["moves"] == []
    explained = cluster.run("ctl", f"onesctl explain {long}", "bob").stdout
    assert "reservation repair keeps n[1-4] from " in explained
    assert (onesd.state(runs), onesd.slurm(runs, "RestartCnt")) == ("RUNNING", restarts)
    cluster.run("ctl", "scontrol delete reservationname=repair")
    onesd.wait(long, ["COMPLETED"], within=120)


def test_a_reservation_without_nodes_is_named_and_stops_nobody(
    onesd: Steering, cluster: Cluster
) -> None:
    reserve(cluster, "class", "nodes=n1", "users=alice", "starttime=now+1hour", "duration=60")
    onesd.start("--policy", "fifo")
    early = onesd.submit(
        "alice", "--reservation=class", "--elastic=1-4", "--gpus=1",
        "/home/jobs/counting.sbatch", "400", "40",
    )  # fmt: skip
    other = onesd.counting("bob", "1-4", 1, 400)
    onesd.wait(other, ["COMPLETED"], within=90)
    assert onesd.state(early) == "PENDING"
    assert "its reservation class begins at " in (
        cluster.run("ctl", f"onesctl explain {early}", "alice").stdout
    )
    cluster.run("ctl", "scontrol update reservationname=class starttime=now")
    onesd.wait(early, ["COMPLETED"], within=90)
