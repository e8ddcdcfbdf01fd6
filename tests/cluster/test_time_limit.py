"""A job that gets fewer GPUs than it asked for outlives its time limit, and no other does."""

from __future__ import annotations

import pytest
from steering import Steering

pytestmark = pytest.mark.cluster
RENEWED = "its time limit of 00:02:00 is of 2 GPUs, and it has had less"


def test_a_time_limit_is_of_the_gpus_that_a_job_asked_for(onesd: Steering) -> None:
    """Both have two minutes for two GPUs, and work for more: of each GPU for 200 s."""
    onesd.start_steered(policy="asked")
    script = ["/home/jobs/counting.sbatch"]
    options = ["--elastic=1-2", "--gpus=2", "--ntasks=2", "--time=2"]
    narrow = onesd.submit("alice", *options, *script, "8000", "40")
    onesd.want(narrow, 1)
    wide = onesd.submit("bob", *options, *script, "16000", "40")
    onesd.wait(narrow, ["COMPLETED"], within=300)
    assert onesd.result("alice", narrow)["samples"] == 8000
    life = onesd.ask("job", str(narrow))
    assert [run["gpus"] for run in life["runs"]][-2:] == [1, 1]
    assert RENEWED in [move["reason"] for move in life["moves"]]
    # Slurm looks at time limits every half minute.
    onesd.wait(wide, ["TIMEOUT"], within=60)
    assert onesd.slurm(wide, "RestartCnt") == "0"
