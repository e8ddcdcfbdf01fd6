"""Gavel's rounds on a real Slurm with two GPU types, measured from sacct."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

FAIR = "gavel:max_min_fairness_water_filling_perf"
ROUND = 8.0
ROUNDS = 20
# What operators need as well, in the small: moves as often as rounds, and nobody overdue.
PATIENT = f"""
round = {ROUND}
[guard]
grace_time = 2.0
exempt_time = 5.0
max_resizes_per_hour = 1000
max_wait = 86400.0
[moves]
checkpoint_timeout = 30.0
"""


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    cluster.run("ctl", "cat > /etc/ones/ones.d/test.toml", stdin=PATIENT)
    yield steering
    steering.prepare()


def leave(onesd: Steering, **gpus: int) -> None:
    """Plain jobs of nobody's account take all GPUs but so many of each of these nodes."""
    for node in ("n1", "n2", "n3", "n4"):
        taken = 4 - gpus.get(node, 0)
        if taken:
            options = [f"--nodelist={node}", f"--gpus={taken}", "--job-name=blocker"]
            blocker = onesd.submit("oper", *options, "--wrap=sleep 3600")
            onesd.wait(blocker, ["RUNNING"], within=20)


def training(
    onesd: Steering, user: str, *, epochs: int, slow: float = 1.0, name: str = "learning"
) -> int:
    """An elastic job that trains, a step in 50 ms; `slow` times as long on a K80."""
    options = ["--elastic=1-4", "--gpus=1", "--ntasks=1", "--time=60", f"--job-name={name}"]
    script = ["/home/jobs/learning.sbatch", str(epochs), "0.05", str(slow)]
    return onesd.submit(user, *options, *script)


def rounds(onesd: Steering) -> int:
    number: int = onesd.ask("status")["round"]["number"]
    return number


def gpu_seconds(cluster: Cluster, jobs: list[int], *, until: float) -> dict[str, float]:
    """What each account's jobs have held until then, says sacct."""
    command = (
        "SLURM_TIME_FORMAT=%s sacct -D -X -n -P -o Account,Start,End,AllocTRES -j "
        + ",".join(map(str, jobs))
    )
    held: dict[str, float] = {}
    for line in cluster.run("ctl", command).stdout.splitlines():
        account, start, end, tres = line.split("|")
        gpus = [part.split("=")[1] for part in tres.split(",") if part.startswith("gres/gpu=")]
        if start.isdigit() and gpus:
            last = float(end) if end.isdigit() else until
            seconds = max(0.0, min(last, until) - float(start))
            held[account] = held.get(account, 0.0) + seconds * int(gpus[0])
    return held


def test_two_accounts_get_equal_shares_whatever_the_number_of_their_jobs(onesd: Steering) -> None:
    """Three jobs of one account and five of the other on four GPUs: job by job it would be 3:5."""
    leave(onesd, n1=2, n3=2)
    onesd.start("--policy", f"{FAIR}:hold=0")
    users = ["alice", "carol", "carol", "bob", "dave", "alice", "carol", "dave"]
    jobs = [training(onesd, user, epochs=100_000) for user in users]
    onesd.cluster.eventually(
        # Asked once, as they take turns: job by job they would be counted at different times.
        lambda: onesd.ask("status")["jobs"]["running"] == 4,
        within=180,
        what="four jobs running",
    )
    first = onesd.ask("status")["round"]
    onesd.cluster.eventually(
        lambda: rounds(onesd) >= first["number"] + ROUNDS,
        within=ROUNDS * ROUND + 60,
        what=f"{ROUNDS} rounds",
    )
    last = onesd.ask("status")["round"]
    # From the start on: at any other time somebody is owed a turn already.
    held = gpu_seconds(onesd.cluster, jobs, until=last["at"])
    total = sum(held.values())
    # Rounds are whole, and moves take as long as the machine has them take: an account may be three
    # GPUs' round ahead. Job by job it would be ten.
    assert held["vision"] == pytest.approx(total / 2, abs=3 * ROUND)
    assert held["language"] == pytest.approx(total / 2, abs=3 * ROUND)
    assert all(onesd.ask("job", str(job))["runs"] for job in jobs), "everybody had a turn"
    # Moves take time, but nothing else leaves GPUs idle.
    assert total > 0.5 * 4 * (last["at"] - first["at"])


def test_jobs_are_moved_between_gpu_types_to_where_each_is_worth_most(onesd: Steering) -> None:
    """Half of the time on each type, until an operator has their speeds decide."""
    leave(onesd, n1=1, n3=1)
    onesd.start("--policy", "gavel:isolated:hold=0")
    picky = training(onesd, "alice", epochs=80, slow=4.0, name="picky")
    easy = training(onesd, "carol", epochs=100_000, slow=1.0, name="easy")
    runs = lambda job: [run["nodes"] for run in onesd.ask("job", str(job))["runs"]]  # noqa: E731
    for job in (picky, easy):
        onesd.wait(job, ["RUNNING"], within=30)
    onesd.cluster.eventually(
        lambda: all({"n1", "n3"} <= {*runs(job)} for job in (picky, easy)),
        within=12 * ROUND,
        what="both jobs on both types",
    )
    move = next(m for m in onesd.ask("job", str(picky))["moves"] if m["kind"] == "resize")
    assert "50% of its time on" in move["reason"]
    onesd.cluster.run("ctl", "onesctl policy set gavel:max_min_fairness_perf:hold=0", "oper")
    assert onesd.cluster.run("ctl", "onesctl policy set fifo", "alice", check=False).returncode == 4
    onesd.kill("TERM")  # what was chosen and what was received outlive it
    onesd.start("--policy", "gavel:isolated:hold=0")
    shown = onesd.ask("policy", "show")
    assert (shown["policy"], shown["by"]) == ("gavel:max_min_fairness_perf:hold=0", "oper")
    onesd.cluster.eventually(
        lambda: [onesd.slurm(job, "NodeList") for job in (picky, easy)] == ["n1", "n3"],
        within=6 * ROUND,
        what="each on the type where it is worth most",
    )
    onesd.settle(within=8 * ROUND, rounds=2)  # it may have been seen there on its way elsewhere
    settled = len(runs(picky))
    onesd.wait(picky, ["COMPLETED"], within=120)
    result = onesd.result("alice", picky)
    assert result["samples"] == 80 * 14 * 128
    assert result["accuracy"] > 0.9
    assert len(runs(picky)) == settled, "it was left in peace"
