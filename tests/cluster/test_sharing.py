"""Two jobs on one GPU of a real Slurm, through gres/shard: who meets whom, and who is parted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

SHARING = """
round = 2.0
[guard]
grace_time = 3.0
exempt_time = 5.0
max_resizes_per_hour = 1000
[moves]
checkpoint_timeout = 30.0
[sharing]
allow = true
reports = 3
"""
LONG = 10_000_000


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    cluster.run("ctl", "cat > /etc/ones/ones.d/test.toml", stdin=SHARING)
    yield steering
    steering.prepare()


def training(
    onesd: Steering,
    user: str,
    name: str,
    *,
    total: int = LONG,
    busy: float = 0.4,
    memory: float = 2.0,
    beside: float = 0.95,
) -> int:
    """An elastic job for one GPU: a step of 64 samples takes 0.1 s there alone."""
    options = ["--elastic=1-4", "--gpus=1", "--ntasks=1", "--time=60", f"--job-name={name}"]
    words = [total, 0.1, busy, memory, beside]
    return onesd.submit(user, *options, "/home/jobs/sharing.sbatch", *map(str, words))


def leave(onesd: Steering, **gpus: int) -> list[int]:
    """Plain jobs of nobody's account take all GPUs but so many of each of these nodes."""
    blockers = []
    for node in ("n1", "n2", "n3", "n4"):
        taken = 4 - gpus.get(node, 0)
        if taken:
            options = [f"--nodelist={node}", f"--gpus={taken}", "--job-name=blocker"]
            blocker = onesd.submit("oper", *options, "--wrap=sleep 3600")
            onesd.wait(blocker, ["RUNNING"], within=20)
            blockers.append(blocker)
    return blockers


def teach(onesd: Steering, *who: tuple[str, str, dict[str, Any]]) -> None:
    """Three short runs of each kind of job, after which onesd knows what they need."""
    jobs = [
        training(onesd, user, name, total=6400, **words) for user, name, words in who for _ in "123"
    ]
    for job in jobs:
        onesd.wait(job, ["COMPLETED"], within=120)

    def known(job: int) -> bool:
        asked = onesd.cluster.run(
            "ctl", ["onesctl", "estimate", str(job), "--json"], "oper", check=False
        )
        if asked.returncode != 0:
            return False
        estimates = {one["resource"]: one for one in json.loads(asked.stdout)["estimates"]}
        return {"gpu_memory", "gpu_utilization"} <= {
            name for name, one in estimates.items() if not one["doubts"]
        }

    for job in jobs[::3]:
        onesd.cluster.eventually(lambda: known(job), within=60, what=f"an estimate of {job}")


def pairs(onesd: Steering) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = onesd.ask("sharing")["pairs"]
    return found


def rude(onesd: Steering, user: str, job: int, **words: float) -> None:
    onesd.cluster.run("ctl", f"cat > /home/{user}/rude-{job}", user, stdin=json.dumps(words))


def test_two_jobs_share_a_gpu_at_the_predicted_speed_and_a_slow_pair_is_parted(
    onesd: Steering,
) -> None:
    onesd.start("--policy", "liquid")
    teach(onesd, ("alice", "calm", {}), ("carol", "mild", {}))
    plain = leave(onesd, n1=1)
    first = training(onesd, "alice", "calm")
    onesd.wait(first, ["RUNNING"], within=30)
    second = training(onesd, "carol", "mild")
    onesd.cluster.eventually(
        lambda: bool(pairs(onesd)) and None not in pairs(onesd)[0]["measured"],
        within=90,
        what="a measured pair",
    )
    (pair,) = pairs(onesd)
    assert {pair["first"], pair["second"]} == {first, second}
    for expected, measured in zip(pair["expected"], pair["measured"], strict=True):
        assert measured == pytest.approx(expected, abs=0.1)
    assert [onesd.state(job) for job in (first, second)] == ["RUNNING", "RUNNING"]
    rude(onesd, "carol", second, beside=0.3)
    onesd.cluster.eventually(
        lambda: onesd.state(second) == "PENDING", within=60, what="the second job parted"
    )
    (pair,) = pairs(onesd)
    assert f"job {second} runs at" in pair["parted"]
    assert onesd.state(first) == "RUNNING"
    assert all(onesd.state(job) == "RUNNING" for job in plain)
