"""onesd on a real Slurm: what it promises, on good days and on bad ones."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from steering import IMPATIENT, Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
POINTS = (6, 13)  # of a resize: the job is asked, or is held between two runs
ALIVE = ("PENDING", "CONFIGURING", "RUNNING")  # slurmctld's prolog runs while it configures


def sacct(cluster: Cluster, job: int) -> list[tuple[int, int, int]]:
    """(start, end, GPUs) of each run of a job."""
    command = (
        "SLURM_TIME_FORMAT=%s sacct -D -X -n -P -o Start,End,AllocTRES -j " + str(job) + " | sort"
    )
    runs = []
    for line in cluster.run("ctl", command).stdout.splitlines():
        start, end, tres = line.split("|")
        gpus = [part.split("=")[1] for part in tres.split(",") if part.startswith("gres/gpu=")]
        if start.isdigit():
            runs.append((int(start), int(end) if end.isdigit() else 0, int(gpus[0])))
    return runs


def learnt(cluster: Cluster, question: str) -> set[float]:
    """The numbers that onesd's database answers with."""
    ask = (
        "import json, sqlite3;"
        "database = sqlite3.connect('file:/var/lib/ones/ones.sqlite?mode=ro', uri=True);"
        f"print(json.dumps([row[0] for row in database.execute({question!r})]))"
    )
    return set(json.loads(cluster.run("ctl", ["/opt/ones/bin/python", "-c", ask]).stdout))


def test_a_job_is_resized_keeps_its_progress_and_sacct_agrees(onesd: Steering) -> None:
    onesd.start("--policy", "ones")
    job = onesd.counting("alice", "1-8", 2, 4000)
    onesd.wait(job, ["COMPLETED"], within=120)
    assert onesd.result("alice", job)["samples"] == 4000
    life = onesd.ask("job", str(job))
    seen = [(int(run["started"]), int(run["ended"]), run["gpus"]) for run in life["runs"]]
    assert seen == sacct(onesd.cluster, job)
    assert len(seen) > 1
    # Nobody else is there: who has no history starts on what it asked for or twice that.
    assert seen[0][2] in (2, 4)
    assert seen[1][2] > seen[0][2]


def test_a_training_job_takes_a_new_batch_without_a_restart_and_tells_its_noise(
    onesd: Steering,
) -> None:
    examples = f"{ROOT}/docs/examples/."  # with the dot: what is in the folder, not the folder
    copy = ["docker", "cp", "--quiet", examples, f"{onesd.cluster.name}-ctl:/home/jobs/"]
    subprocess.run(copy, check=True)
    onesd.start_steered(policy="largest-batch")
    script = ["/home/jobs/train_digits.sbatch", "--epochs=10000", "--batch-size=64"]
    options = ["--elastic=2", "--gpus=2", "--ntasks=2"]
    job = onesd.submit("alice", *options, *script)
    batches = lambda table: learnt(onesd.cluster, f"SELECT DISTINCT batch FROM {table}")  # noqa: E731
    onesd.cluster.eventually(
        lambda: batches("observations") == {64, 256}, within=90, what="steps with the new batch"
    )
    onesd.cluster.eventually(
        lambda: 256 in batches("gradients"), within=60, what="gradient noise with the new batch"
    )
    assert min(learnt(onesd.cluster, "SELECT var FROM gradients")) > 0
    assert onesd.state(job) == "RUNNING"
    assert len(sacct(onesd.cluster, job)) == 1
    assert onesd.ask("job", str(job))["moves"][0]["kind"] == "start"


def test_a_plain_job_is_never_touched_and_gets_room(onesd: Steering) -> None:
    onesd.start("--policy", "ones")
    greedy = [onesd.counting(user, "4,8", 4, 30000) for user in ("alice", "carol")]
    onesd.cluster.eventually(
        lambda: [onesd.gpus(job) for job in greedy] == [8, 8],
        within=90,
        what="the elastic jobs grown over all nodes",
    )
    plain = onesd.counting("bob", "", 4, 400)
    onesd.wait(plain, ["RUNNING", "COMPLETED"], within=60)
    onesd.wait(plain, ["COMPLETED"], within=30)
    assert len(sacct(onesd.cluster, plain)) == 1


def test_killed_in_the_midst_of_its_moves_it_loses_no_job(onesd: Steering) -> None:
    """tests/simulation/test_kills.py goes through every point."""
    # However long a machine takes to start onesd anew, no move's time is over by then, and
    # ones-release takes nothing that it holds for abandoned.
    onesd.configure(IMPATIENT + "start_timeout = 600.0\nrequeue_timeout = 600.0\n")
    spare = "sed -i 's/^lifetime .*/lifetime 600/' /run/ones/heartbeat"
    job = onesd.counting("alice", "2,4", 2, 12000, name="survivor")
    for point in POINTS:
        onesd.start_steered("--die-at", str(point), ready=False)
        onesd.cluster.eventually(
            lambda: not onesd.alive(), within=120, what=f"onesd dead at point {point}"
        )
        onesd.cluster.run("ctl", spare)
        assert onesd.state(job) in ALIVE, f"after point {point}"
    onesd.start("--policy", "fifo")
    onesd.wait(job, ["COMPLETED"], within=120)
    assert onesd.result("alice", job)["samples"] == 12000
    runs = sacct(onesd.cluster, job)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(runs))
    moves = onesd.ask("job", str(job))["moves"]
    assert {move["outcome"] for move in moves} == {"done"}


def test_a_job_cancelled_between_read_and_write_stays_cancelled(onesd: Steering) -> None:
    """As with every other call, in tests/unit/test_changed_meanwhile.py."""
    job = onesd.counting("alice", "2,4", 2, 12000)
    onesd.start_steered("--before", "RequeueHold", "scancel", str(job))
    onesd.wait(job, ["CANCELLED"], within=60)
    onesd.cluster.run("ctl", "sleep 8")
    assert onesd.state(job) == "CANCELLED"


def test_slurmctld_restarted_during_rounds_loses_nothing(onesd: Steering) -> None:
    onesd.start_steered()
    job = onesd.counting("alice", "2,4", 2, 4000)
    onesd.cluster.eventually(
        lambda: len(sacct(onesd.cluster, job)) > 1, within=60, what="a first resize"
    )
    onesd.cluster.run("ctl", "pkill -x slurmctld; sleep 3; slurmctld")
    onesd.wait(job, ["COMPLETED"], within=150)
    assert onesd.result("alice", job)["samples"] == 4000


def test_a_job_whose_node_is_lost_goes_on_elsewhere(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    job = onesd.counting("alice", "2", 2, 1500)
    lost = lose_node_of(onesd, job)
    onesd.wait(job, ["COMPLETED"], within=90)
    assert onesd.slurm(job, "NodeList") != lost
    assert onesd.result("alice", job)["samples"] == 1500


def test_a_dead_daemons_job_whose_node_is_lost_goes_on_elsewhere(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    job = onesd.counting("alice", "2", 2, 1500)
    onesd.wait(job, ["RUNNING"], within=30)
    onesd.kill()
    lost = lose_node_of(onesd, job)
    onesd.wait(job, ["COMPLETED"], within=120)
    assert onesd.slurm(job, "NodeList") != lost
    assert onesd.result("alice", job)["samples"] == 1500


def lose_node_of(onesd: Steering, job: int) -> str:
    """Lose the node that a job runs on: Slurm requeues it, for the same node. Which node."""
    onesd.wait(job, ["RUNNING"], within=30)
    node = onesd.slurm(job, "NodeList")
    onesd.lose(node)
    onesd.requeued_without_delay(job)
    return node


def test_a_dead_daemons_jobs_are_released_by_the_timer(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    blockers = [onesd.counting("alice", "8", 8, 60000) for _ in range(2)]
    for blocker in blockers:
        onesd.wait(blocker, ["RUNNING"], within=30)
    waiting = onesd.counting("bob", "4", 4, 300)
    assert onesd.slurm(waiting, "Reason") == "JobHeldUser"
    onesd.kill()
    onesd.cluster.eventually(
        lambda: not onesd.slurm(waiting, "Reason").startswith("JobHeld"),
        within=60,
        what="the held job released",
    )
    onesd.cluster.run("ctl", f"scancel {blockers[0]}")
    onesd.wait(waiting, ["COMPLETED"], within=60)


def test_a_report_that_lies_about_its_job_is_refused(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    victim = onesd.counting("alice", "4", 4, 4000)
    onesd.wait(victim, ["RUNNING"], within=30)
    node = onesd.slurm(victim, "NodeList")
    lie = json.dumps({"op": "report", "job": victim, "samples": 10**9})
    speak = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/ones/agent.sock');"
        f" s.sendall({lie!r}.encode() + b'\\n'); print(s.recv(4096).decode())"
    )
    script = f'#!/bin/bash\n/opt/ones/bin/python -c "{speak.replace(chr(34), chr(92) + chr(34))}"\n'
    onesd.cluster.run("ctl", "cat > /home/bob/lie.sh", "bob", stdin=script)
    liar = onesd.submit("bob", f"--nodelist={node}", "--ntasks=1", "/home/bob/lie.sh")
    onesd.wait(liar, ["COMPLETED"], within=30)
    assert '"ok":false' in onesd.cluster.run("ctl", f"cat /home/bob/{liar}.out").stdout
    onesd.cluster.run("ctl", "sleep 5")
    assert (onesd.ask("jobs")["jobs"][0]["samples"] or 0) < 10**6


def test_a_user_sees_his_own_jobs_and_may_not_pause(onesd: Steering) -> None:
    onesd.start("--policy", "fifo")
    mine = onesd.counting("alice", "4", 4, 12000)
    other = onesd.counting("bob", "4", 4, 12000)
    onesd.wait(other, ["RUNNING"], within=30)
    listed = lambda user: {job["job"] for job in onesd.ask("jobs", user=user)["jobs"]}  # noqa: E731
    onesd.cluster.eventually(
        lambda: listed("oper") == {mine, other}, within=10, what="both jobs seen by the operator"
    )
    assert listed("alice") == {mine}
    refused = onesd.cluster.run("ctl", "onesctl pause", "alice", check=False)
    assert refused.returncode == 4
    assert "operator" in refused.stderr
    assert onesd.cluster.run("ctl", f"onesctl job {other}", "alice", check=False).returncode == 1
    # From another host: no socket there, so munge says who asks.
    remote = onesd.cluster.run("n1", "onesctl jobs --json", "alice").stdout
    assert {job["job"] for job in json.loads(remote)["jobs"]} == {mine}
    assert onesd.cluster.run("n1", "onesctl pause", "alice", check=False).returncode == 4
    assert f"job {mine}" in onesd.ask("explain", str(mine), user="alice")["lines"][0]
    told = lambda: onesd.cluster.run("ctl", f"onesctl job {mine}", "alice").stdout  # noqa: E731
    onesd.cluster.eventually(
        lambda: " of 12000 samples (" in told(), within=30, what="its progress told"
    )
    onesd.cluster.run("ctl", "onesctl pause maintenance", "oper")
    assert onesd.ask("status")["paused"]
    onesd.cluster.run("ctl", "onesctl resume", "oper")
    onesd.kill("TERM")
    assert onesd.cluster.run("ctl", "onesctl status", check=False).returncode == 3


def test_four_equal_jobs_are_not_preempted_for_each_other(onesd: Steering) -> None:
    """Two of them take all GPUs at first; of the other two nothing is known until they run."""
    onesd.start("--policy", "ones")
    four = [onesd.counting("alice", "1-16", 8, 160_000) for _ in range(4)]

    def well_on_their_way() -> bool:
        return sum((job["samples"] or 0) > 8000 for job in onesd.ask("jobs")["jobs"]) >= 2

    onesd.cluster.eventually(well_on_their_way, within=180, what="two jobs well on their way")
    made = [move["kind"] for job in four for move in onesd.ask("job", str(job))["moves"]]
    assert made.count("start") >= 2
    assert "preempt" not in made
