"""Jobs on the container cluster, for both readers and the actuator."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cluster

HERE = Path(__file__).parent
HEARTBEAT = "/run/ones/heartbeat"
SCRIPT = """\
#!/bin/bash
trap 'exit 0' TERM
trap 'echo asked' USR1
cpus=$SLURM_JOB_CPUS_PER_NODE
echo "run ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NODELIST tasks=$SLURM_TASKS_PER_NODE cpus=$cpus"
srun bash -c 'echo "$SLURM_PROCID $(hostname) $CUDA_VISIBLE_DEVICES"' 2>&1 | sort
while :; do sleep 1 & wait $!; done
"""


class Slurm:
    """What users, onesd and administrators do on the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def submit(self, *options: str, script: str = SCRIPT, user: str = "alice") -> int:
        command = ["sbatch", "--parsable", "--output=%j.out", "--open-mode=append", *options]
        return int(self.cluster.run("ctl", command, user, stdin=script).stdout)

    def root(self, *command: str) -> str:
        return self.cluster.run("ctl", command).stdout

    def as_ones(self, program: str, *arguments: str) -> Any:
        """Run one of the scripts beside this file with the installed package, as onesd would."""
        python = ["runuser", "-u", "ones", "--", "/opt/ones/bin/python", "-", *arguments]
        done = self.cluster.run(
            "ctl", python, stdin=(HERE / program).read_text(), timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def read(self, *readers: str) -> Any:
        return self.as_ones("read_slurm.py", *readers)

    def move(self, job: int, *moves: str, start_timeout: float = 20) -> Any:
        return self.as_ones("make_moves.py", str(job), str(start_timeout), *moves)

    def job(self, number: int) -> dict[str, Any]:
        """The job as Slurm's own JSON has it: not read by the code under test."""
        answer = json.loads(self.root("scontrol", "show", "job", str(number), "--json"))
        found: dict[str, Any] = answer["jobs"][0]
        return found

    def state(self, number: int) -> str:
        return self.root("squeue", "--noheader", "--states=all", f"--jobs={number}", "-o%T").strip()

    def wait(self, number: int, state: str) -> None:
        self.cluster.eventually(
            lambda: self.state(number) == state, within=20, what=f"job {number} {state}"
        )

    def printed(self, number: int, *, run: int) -> list[str]:
        """What one run of a job printed, its tasks' lines included."""

        def lines() -> list[str]:
            text = self.root("cat", f"/home/alice/{number}.out")
            _, found, rest = text.partition(f"run {run} ")
            return (found + rest.partition(f"run {run + 1} ")[0]).splitlines()

        self.cluster.eventually(
            lambda: len(lines()) > 1, within=20, what=f"run {run} of job {number} has printed"
        )
        time.sleep(0.3)
        return [line for line in lines() if "CANCELLED" not in line and line != "asked"]

    def clean(self) -> None:
        self.cluster.run("ctl", "squeue --noheader -o %A | sort -u | xargs -r scancel --quiet")
        self.cluster.eventually(
            lambda: not self.root("squeue", "--noheader"), within=30, what="an empty queue"
        )


@pytest.fixture(scope="module", name="slurm")
def slurm_with_a_heartbeat(cluster: Cluster) -> Iterator[Slurm]:
    """The cluster as an onesd holds it that does nothing: new elastic jobs wait for the tests."""
    if cluster.run("ctl", "pgrep -f bin/onesd", check=False).returncode == 0:
        pytest.skip("onesd runs on this cluster and would move the jobs itself")
    here = Slurm(cluster)
    here.clean()
    text = f"ones-heartbeat 1\ntime {time.time():.0f}\nlifetime 3600\nhold yes\n"
    cluster.run("ctl", f"cat > {HEARTBEAT}.new; mv {HEARTBEAT}.new {HEARTBEAT}", stdin=text)
    yield here
    cluster.run("ctl", f"rm -f {HEARTBEAT}")
    here.clean()
