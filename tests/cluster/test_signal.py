"""The signal for a checkpoint harms nobody: who would die of it is not asked, who did goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from steering import Steering

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

# What it says of itself is true no more when the signal comes: nobody waits for that.
CARELESS = """#!/bin/bash
echo "{\\"restarts\\": ${SLURM_RESTART_COUNT:-0}, \\"samples\\": 1}" > $ONES_JOB_DIR/.new
mv $ONES_JOB_DIR/.new $ONES_JOB_DIR/report.json
until [[ -e go ]]; do sleep 0.2; done
"""
TRAINING = """
import time, ones
from pathlib import Path
ones.init(checkpoints=Path.home() / "kept")
while not Path("go").exists():
    time.sleep(0.2)
"""
BARE = f"#!/bin/bash\n/opt/ones/bin/python -c '{TRAINING}'\n"
IN_A_STEP = BARE.replace("/opt", "srun --ntasks=1 /opt")


@pytest.fixture
def onesd(cluster: Cluster) -> Iterator[Steering]:
    steering = Steering(cluster)
    steering.prepare()
    cluster.run("ctl", "rm -f /home/alice/go")
    yield steering
    cluster.run("ctl", "touch /home/alice/go")
    steering.prepare()


def submitted(onesd: Steering, script: str) -> int:
    """A job that runs on two GPUs, has reported, and may have two or four."""
    onesd.cluster.run("ctl", "cat > /home/alice/job.sh", "alice", stdin=script)
    job = onesd.submit("alice", "--elastic=2,4", "--gpus=2", "--ntasks=2", "/home/alice/job.sh")
    onesd.wait(job, ["RUNNING"], within=40)
    return job


def noted(onesd: Steering, job: int) -> str:
    """Why the last round left the job alone."""
    (found,) = (one for one in onesd.ask("jobs")["jobs"] if one["job"] == job)
    return str(found["note"])


def left_alone(onesd: Steering, job: int, why: str) -> None:
    onesd.cluster.eventually(
        lambda: why in noted(onesd, job), within=30, what=f"job {job} left alone"
    )


def ends(onesd: Steering, job: int, *, restarts: int) -> None:
    """It comes to its end once it is let go, and was started again so often."""
    onesd.cluster.run("ctl", "touch go", "alice")
    onesd.wait(job, ["COMPLETED"], within=20)
    assert onesd.slurm(job, "RestartCnt") == str(restarts)


def test_a_job_that_the_signal_ended_runs_again_and_is_not_asked_again(onesd: Steering) -> None:
    onesd.start_steered(policy="asked")
    job = submitted(onesd, CARELESS)
    onesd.want(job, 4)
    onesd.cluster.eventually(
        lambda: onesd.slurm(job, "RestartCnt") == "1" and onesd.gpus(job) == 4,
        within=60,
        what="the job running again",
    )
    onesd.want(job, 2)
    left_alone(onesd, job, "the signal that asks for a checkpoint ended it")
    ends(onesd, job, restarts=1)


def test_a_training_that_was_started_without_srun_is_not_asked(onesd: Steering) -> None:
    onesd.start_steered(policy="asked")
    job = submitted(onesd, BARE)
    onesd.want(job, 4)
    left_alone(onesd, job, "it says that it saves no checkpoint now")
    assert noted(onesd, job) == "it says that it saves no checkpoint now"
    said = onesd.cluster.run("ctl", f"cat {job}.out", "alice").stdout
    assert "would end 'slurm_script', which started this script: the job is not asked" in said
    ends(onesd, job, restarts=0)


def test_a_training_in_a_step_is_asked(onesd: Steering) -> None:
    onesd.start_steered(policy="asked")
    job = submitted(onesd, IN_A_STEP)
    onesd.cluster.eventually(
        lambda: noted(onesd, job) == "", within=40, what="the job ready to be asked"
    )
    said = onesd.cluster.run("ctl", f"cat {job}.out", "alice").stdout
    assert "would end" not in said
