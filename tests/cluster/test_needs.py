"""What jobs need, from a real Slurm's accounting to what users are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    yield steering
    steering.prepare()


def test_a_script_is_told_what_runs_of_its_name_have_used(
    onesd: Steering, cluster: Cluster
) -> None:
    onesd.start("--policy", "ones")
    script = "/home/jobs/counting.sbatch"
    before = cluster.run("ctl", ["onesctl", "estimate", script], "alice", check=False)
    assert before.returncode == 1
    assert before.stderr.count("\n") == 1
    assert "nothing is known of alice/" in before.stderr
    job = onesd.counting("alice", "2-2", 2, 1000)
    onesd.wait(job, ["COMPLETED"], within=120)

    def known() -> bool:
        asked = cluster.run("ctl", ["onesctl", "estimate", str(job)], "alice", check=False)
        return asked.returncode == 0

    cluster.eventually(known, within=60, what="an estimate")
    answer = json.loads(
        cluster.run("ctl", ["onesctl", "estimate", str(job), "--json"], "alice").stdout
    )
    resources = {one["resource"]: one for one in answer["estimates"]}
    assert answer["asked"]["gpus"] == 2
    assert answer["asked"]["memory"] > 0
    assert {"cpu_cores", "total"} <= resources.keys()
    assert resources["total"]["expected"] > 5
    assert resources["total"]["doubts"]
    others = cluster.run("ctl", ["onesctl", "estimate", str(job)], "bob", check=False)
    assert others.returncode == 1
    assert "a job of yours" in others.stderr
    table = cluster.run("ctl", ["onesctl", "report", "needs"], "alice").stdout
    assert table.splitlines()[1].startswith("alice")
