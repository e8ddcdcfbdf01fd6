"""GPUs that one job gives up for another, on a real Slurm in whose queue others wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster
FOREVER = 1_000_000  # samples


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    """Plain jobs on all nodes but the first, which an elastic one has."""
    steering = Steering(cluster)
    steering.prepare()
    steering.start_steered(policy="asked")
    for node in ("n2", "n3", "n4"):
        plain = steering.submit("bob", "-w", node, "--gres=gpu:4", "--wrap=sleep 3000")
        steering.wait(plain, ["RUNNING"], within=30)
    yield steering
    steering.prepare()


def test_a_start_gets_the_gpus_that_were_freed_for_it_though_others_wait(onesd: Steering) -> None:
    stops = onesd.counting("alice", "4", 4, FOREVER)
    onesd.wait(stops, ["RUNNING"], within=60)
    passed = onesd.submit("bob", "-N1", "--gres=gpu:4", "--wrap=sleep 3000")
    onesd.cluster.eventually(
        lambda: onesd.slurm(passed, "Reason") in ("Resources", "Priority"),
        within=60,
        what="a plain job that waits for any node",
    )
    starts = onesd.counting("carol", "4", 4, FOREVER)
    onesd.want(starts, 4, instead_of=stops)
    onesd.wait(starts, ["RUNNING"], within=60)  # Slurm itself would give n1 to the plain job
    assert onesd.slurm(starts, "NodeList") == "n1"
    assert onesd.state(passed) == "PENDING"
    # Nobody is kept from what nobody is to have.
    onesd.cluster.run("ctl", f"scancel {stops} {starts}")
    onesd.wait(passed, ["RUNNING"], within=60)
