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

    onesd.cluster.eventually(lambda: all(map(known, jobs[::3])), within=60, what="estimates")


def pairs(onesd: Steering) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = onesd.ask("sharing")["pairs"]
    return found


def rude(onesd: Steering, user: str, job: int, **words: float) -> None:
    onesd.cluster.run("ctl", f"cat > /home/{user}/rude-{job}", user, stdin=json.dumps(words))


def a_pair(onesd: Steering, policy: str = "liquid") -> tuple[int, int, list[int]]:
    """Two jobs on the one GPU that plain jobs leave, and those; their needs are known."""
    onesd.start("--policy", policy)
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
    return first, second, plain


def parted(onesd: Steering, job: int) -> dict[str, Any]:
    """The pair, once the job was taken out of it."""
    onesd.wait(job, ["PENDING"], within=60)
    return pairs(onesd)[0]


def test_two_jobs_share_a_gpu_at_the_predicted_speed_and_a_slow_pair_is_parted(
    onesd: Steering,
) -> None:
    first, second, plain = a_pair(onesd)
    (pair,) = pairs(onesd)
    for expected, measured in zip(pair["expected"], pair["measured"], strict=True):
        assert measured == pytest.approx(expected, abs=0.1)
    assert [onesd.state(job) for job in (first, second)] == ["RUNNING", "RUNNING"]
    listed = {one["job"]: one for one in onesd.ask("jobs")["jobs"]}
    assert listed[first]["beside"] == [second]
    nodes = {one["node"]: one for one in onesd.ask("nodes")["nodes"]}
    assert (nodes["n1"]["elastic"], nodes["n1"]["other"], nodes["n1"]["free"]) == (1, 3, 0)
    rude(onesd, "carol", second, beside=0.3)
    pair = parted(onesd, second)
    assert f"job {second} runs at" in pair["parted"]
    assert "expected 100%" in pair["parted"]
    assert onesd.state(first) == "RUNNING"
    # It gets a GPU to itself as soon as there is one, and goes on from its checkpoint.
    onesd.cluster.run("ctl", f"scancel {plain[-1]}")
    onesd.wait(second, ["RUNNING"], within=60)
    assert "gres/gpu=1" in onesd.slurm(second, "tres-alloc")
    assert all(onesd.state(job) == "RUNNING" for job in plain[:-1])


def test_a_pair_that_takes_more_memory_than_was_predicted_is_parted(onesd: Steering) -> None:
    first, second, _ = a_pair(onesd)
    rude(onesd, "carol", second, memory=13.5)
    pair = parted(onesd, second)
    assert "of its memory, expected 90%" in pair["parted"]
    assert onesd.state(first) == "RUNNING"


def test_an_xid_ends_sharing_on_that_gpu(onesd: Steering, cluster: Cluster) -> None:
    first, second, _ = a_pair(onesd)
    gpu = pairs(onesd)[0]["gpu"]
    try:
        cluster.run("n1", f"/opt/emulation/bin/gpu-fault {gpu} xid 31")
        pair = parted(onesd, second)
        assert "XID 31" in pair["parted"]
        closed = onesd.ask("sharing", user="oper")["closed"]
        assert [(one["node"], one["gpu"]) for one in closed] == [("n1", gpu)]
        other = training(onesd, "alice", "calm")
        number = onesd.ask("status")["round"]["number"]
        cluster.eventually(
            lambda: onesd.ask("status")["round"]["number"] > number + 5,
            within=40,
            what="five rounds",
        )
        assert [onesd.state(job) for job in (first, other)] == ["RUNNING", "PENDING"]
    finally:
        cluster.run("n1", f"/opt/emulation/bin/gpu-fault {gpu} ok")


def test_a_packed_policy_of_gavel_puts_two_jobs_on_one_gpu(onesd: Steering) -> None:
    first, second, plain = a_pair(onesd, "gavel:max_min_fairness_packed:hold=0")
    for _ in range(3):
        number = onesd.ask("status")["round"]["number"]
        onesd.cluster.eventually(
            lambda number=number: onesd.ask("status")["round"]["number"] > number,  # type: ignore[misc]
            within=20,
            what="another round",
        )
        assert [onesd.state(job) for job in (first, second)] == ["RUNNING", "RUNNING"]
    assert len(pairs(onesd)) == 1, "the pair stays together"
    assert all(onesd.state(job) == "RUNNING" for job in plain)
