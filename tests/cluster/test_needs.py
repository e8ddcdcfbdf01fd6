"""What jobs need, from a real Slurm's accounting to what users are told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster


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
    assert {"cpu_cores", "network_in", "network_out", "total"} <= resources.keys()
    assert resources["total"]["expected"] > 5
    assert resources["total"]["doubts"]
    others = cluster.run("ctl", ["onesctl", "estimate", str(job)], "bob", check=False)
    assert others.returncode == 1
    assert "a job of yours" in others.stderr
    table = cluster.run("ctl", ["onesctl", "report", "needs"], "alice").stdout
    assert table.splitlines()[1].startswith("alice")


FILLING = """
round = 2.0
[guard]
grace_time = 3.0
[needs]
fill = true
lower_memory = true
"""


HUNGER = "import time; held = bytearray(300 << 20); time.sleep(4)"


def family(onesd: Steering, *words: str) -> int:
    """A job of one family, which holds 300 MiB."""
    options = ["--job-name=hungry", "--elastic=1", "--gpus=1"]
    return onesd.submit("alice", *options, *words, f"--wrap=srun python3 -c '{HUNGER}'")


def asked(onesd: Steering, job: int) -> dict[str, str]:
    """What the job asks for, as Slurm has it."""
    shown = onesd.cluster.run("ctl", f"scontrol show job {job}").stdout.split()
    found = dict(word.split("=", 1) for word in shown if "=" in word)
    names = ("NumCPUs", "MinCPUsNode", "MinMemoryNode", "MinMemoryCPU")
    return {name: found[name] for name in names if name in found}


def learn(onesd: Steering, cluster: Cluster) -> None:
    """Runs from which an estimate without doubts comes.

    The runs and their memory are real. The CPUs they used are written here: hardly any machine that
    runs these tests has three to spare.
    """
    onesd.start("--policy", "fifo")
    for job in [family(onesd, "--mem=2000", "--cpus-per-task=1") for _ in range(4)]:
        onesd.wait(job, ["COMPLETED"], within=90)

    def closed() -> bool:
        done = cluster.run("ctl", "onesctl report needs --json", "alice", check=False)
        users = json.loads(done.stdout)["users"] if done.returncode == 0 else []
        return any(row["runs"] == 4 for row in users)

    cluster.eventually(closed, within=60, what="four runs closed")
    assert asked(onesd, onesd.jobs[-1])["MinMemoryNode"] == "2000M"
    onesd.kill()
    update = "UPDATE needs SET cpu_cores = 2.5 + 0.01 * (job % 3)"
    script = (
        "import sqlite3; database = sqlite3.connect('/var/lib/ones/ones.sqlite');"
        f" database.execute('{update}'); database.commit()"
    )
    cluster.run("ctl", ["/opt/ones/bin/python", "-c", script], "ones")


def test_a_job_whose_script_asks_for_nothing_gets_a_right_sized_request(
    onesd: Steering, cluster: Cluster
) -> None:
    learn(onesd, cluster)
    onesd.configure(FILLING)
    onesd.start("--policy", "fifo")
    bare = family(onesd)
    onesd.wait(bare, ["RUNNING", "COMPLETED"], within=60)
    request = asked(onesd, bare)
    assert 300 <= int(request["MinMemoryNode"].rstrip("M")) < 800
    assert request["MinCPUsNode"] == request["NumCPUs"] == "3"
    told = cluster.run("ctl", f"onesctl job {bare}; onesctl explain {bare}", "alice").stdout
    assert f"onesd asked for {request['MinMemoryNode'][:-1]} MiB of memory on each node" in told
    over = family(onesd, "--mem=2000", "--cpus-per-task=2")
    onesd.wait(over, ["RUNNING", "COMPLETED"], within=60)
    lowered = asked(onesd, over)
    assert lowered["MinMemoryNode"] == request["MinMemoryNode"]
    assert lowered["MinCPUsNode"] == "2"  # named, so it stays
    assert "the job itself said 2000 MiB" in cluster.run("ctl", f"onesctl job {over}").stdout
    tight = family(onesd, "--mem=100")
    onesd.wait(tight, ["RUNNING", "COMPLETED"], within=60)
    assert asked(onesd, tight)["MinMemoryNode"] == "100M"  # never more than its user said
    other = family(onesd, "--mem-per-cpu=700")
    onesd.wait(other, ["RUNNING", "COMPLETED"], within=60)
    assert asked(onesd, other)["MinMemoryCPU"] == "700M"
