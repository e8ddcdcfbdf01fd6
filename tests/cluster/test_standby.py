"""onesd on two hosts of a real Slurm's cluster: what is under way goes on when one is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from standing import Pair, pair_on
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

TAKEOVER = 8.0  # more than a busy machine lets a process wait
SAMPLES = 12000
RUNS = "SELECT sum(kind = 'resize' AND outcome = 'done'), sum(open) FROM moves WHERE job = "


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[Pair]:
    steering = Steering(cluster)
    steering.prepare()
    with pair_on(steering, takeover=TAKEOVER) as pair:
        yield pair
    steering.prepare()


def resized_once(pair: Pair, job: int) -> None:
    pair.cluster.eventually(
        lambda: (pair.asked(RUNS + str(job))[0][0] or 0) > 0, within=40, what="a resize"
    )


def test_moves_under_way_are_finished_by_the_standby_however_the_active_one_ends(
    pair: Pair,
) -> None:
    job = pair.onesd.counting("alice", "2,4", 2, SAMPLES)
    resized_once(pair, job)
    pair.cluster.eventually(lambda: pair.moving() > 0, within=30, what="a move")
    pair.signal("ctl", "KILL")
    pair.wait_for("ctl2", "active")
    pair.start("ctl")
    pair.wait_for("ctl", "standby")
    pair.cluster.eventually(lambda: pair.moving() > 0, within=30, what="another move")
    pair.kill_host()
    pair.wait_for("ctl", "active")
    pair.start_host()
    pair.start("ctl2")
    pair.wait_for("ctl2", "standby")
    pair.cluster.eventually(lambda: pair.moving() > 0, within=30, what="a third move")
    pair.signal("ctl", "STOP")
    pair.wait_for("ctl2", "active")
    pair.signal("ctl", "CONT")
    pair.wait_for("ctl", "standby")
    # Stopped again every few seconds it would take as long as the machine is slow.
    pair.cluster.run("ctl", "onesctl pause that it comes to its end")
    pair.onesd.wait(job, ["COMPLETED"], within=120)
    assert pair.onesd.result("alice", job)["samples"] == SAMPLES
    # Slurm tells of the job's end at once, onesd of the job's last move in its next round.
    pair.cluster.eventually(
        lambda: not pair.asked(RUNS + str(job))[0][1], within=20, what="its moves' ends"
    )
    resizes = pair.asked(RUNS + str(job))[0][0]
    # Each resize is one restart: none was made twice, none is missing.
    assert int(pair.onesd.slurm(job, "RestartCnt")) == resizes
    nodes = pair.cluster.run("n1", f"onesctl job {job}", "alice").stdout
    assert "COMPLETED" in nodes
