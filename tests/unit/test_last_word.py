"""The signal for a checkpoint ends a script without a trap: none is sent once training is over."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import a_record
from listening_agent import ListeningAgent
from patience import PATIENCE, eventually
from simulated_onesd import AtWork

from ones.daemon.wire import REPORT
from ones.policies.guard import Move
from ones.policies.model import JobId, Placement
from ones.slurm_ext.moves import Evidence, MoveLimits, MoveRecord, advance

SCRIPT = """
import sys
import ones

job = ones.init()
sampler = job.sampler(2, 1)

def train(epochs):
    for _ in job.epochs(epochs):
        for _ in sampler:
            if input() == "fail":
                sys.exit("as told")
            job.step(loss=0.5)

train(1)
input()
train(2)
"""


class Training:
    """A script that takes a step, or fails, when told to."""

    def __init__(self, folder: Path) -> None:
        (folder / "train.py").write_text(SCRIPT)
        self.agent = ListeningAgent(folder / "agent.sock")
        self.agent.up()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ones.slurm_ext.runtime.launcher", "--workers=1", "train.py"],
            env={"SLURM_JOB_ID": "7", "ONES_SOCKET": str(folder / "agent.sock")},
            cwd=folder,
            stdin=subprocess.PIPE,
            text=True,
        )

    def tell(self, *words: str) -> None:
        assert self._process.stdin is not None
        for word in words:
            print(word, file=self._process.stdin, flush=True)

    def says(self, *, samples: int, checkpoints: bool) -> bool:
        if not self.agent.taken:
            return False
        last = REPORT.decode(self.agent.taken[-1])
        return (last.samples, last.checkpoints) == (samples, checkpoints)

    def ends(self) -> int:
        return self._process.wait(timeout=PATIENCE)


def test_a_job_says_that_its_training_is_over_and_that_it_trains_again(tmp_path: Path) -> None:
    training = Training(tmp_path)
    eventually(lambda: training.says(samples=0, checkpoints=True))
    training.tell("step", "step")
    eventually(lambda: training.says(samples=2, checkpoints=False))
    training.tell("go on")
    eventually(lambda: training.says(samples=2, checkpoints=True))
    training.tell("step", "fail")
    assert training.ends() == 1
    assert training.says(samples=3, checkpoints=False)
    training.agent.down()


# The interpreter takes a script's objects apart once it has taken back its signal handlers.
LATE = """
import os, signal, sys

class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGUSR1)

late = Late()
"""
ENDS = {
    "python": "import ones\nones.init()\n",
    "ones-run": "sys.argv = ['ones-run', '--workers=2', 'true']\n"
    "from ones.slurm_ext.runtime.launcher import main\nmain()\n",
}


@pytest.mark.parametrize("of", ENDS)
def test_the_signal_ends_no_process_that_is_just_ending_by_itself(tmp_path: Path, of: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE + ENDS[of]],
        env={"SLURM_JOB_ID": "7"},
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


WAITING = """
import time
from pathlib import Path
import ones

ones.init()
while not Path("go").exists():
    time.sleep(0.05)
"""
RUNS = f"{sys.executable} -m ones.slurm_ext.runtime.launcher"


@pytest.mark.parametrize(
    ("started", "asked"),
    [
        (f"{RUNS} waiting.py", True),
        pytest.param(f"{RUNS} --workers=2 waiting.py", True, marks=pytest.mark.torch),
        (f"bash -c '{sys.executable} waiting.py; true'", False),
        pytest.param(
            f"bash -c '{RUNS} --workers=2 waiting.py; true'", False, marks=pytest.mark.torch
        ),
        (f"bash -c 'trap : USR1; {sys.executable} waiting.py; true'", True),
        (f"bash -c 'trap \"\" USR1; {sys.executable} waiting.py; true'", True),
    ],
)
def test_a_job_whose_batch_script_the_signal_would_end_says_that_it_saves_nothing(
    tmp_path: Path, started: str, asked: bool
) -> None:
    """As where a script is begun without srun, or under a torchrun."""
    agent = ListeningAgent(tmp_path / "agent.sock")
    agent.up()
    (tmp_path / "waiting.py").write_text(WAITING)
    shutil.copy("/bin/bash", tmp_path / "slurmstepd")
    process = subprocess.Popen(
        [tmp_path / "slurmstepd", "-c", f"{started}; true"],
        env={"SLURM_JOB_ID": "7", "ONES_SOCKET": str(tmp_path / "agent.sock")},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: bool(agent.taken))
    (tmp_path / "go").touch()
    _, said = process.communicate(timeout=PATIENCE)
    agent.down()
    assert (process.returncode, REPORT.decode(agent.taken[0]).checkpoints) == (0, asked)
    told = "would end 'bash', which started this script: the job is not asked"
    assert (told in said) == (not asked)


SILENT = "abandoned: the job says that it saves no checkpoint now"


@pytest.mark.parametrize(
    "step",
    [
        {"step": "begun"},
        {"step": "asking", "asked_at": 2000.0, "deadline": 2300.0},
        {"step": "asked", "asked_at": 2000.0, "deadline": 2300.0},
    ],
    ids=lambda step: step["step"],
)
@pytest.mark.parametrize("confirmed", [None, 2000.5, 1900.0])
def test_a_job_that_says_it_saves_no_more_is_neither_asked_nor_stopped(
    step: dict[str, Any], confirmed: float | None
) -> None:
    target = Placement.of({"n2": 4})
    move = MoveRecord(
        id=7, job=1, kind="resize", restarts=0, target=target, begun_at=2000.0, **step
    )
    job = a_record(state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 4}, started=1500.0)
    over = Evidence(now=2001.0, reported=True, checkpoint_at=confirmed, free={"n2": 4})
    following = advance(move, job, over, MoveLimits())
    assert (following.action, following.move.outcome) == (None, SILENT)


def test_a_job_that_slurm_did_not_stop_in_time_is_not_asked_once_more_when_it_is_over() -> None:
    move = MoveRecord(
        id=7,
        job=1,
        kind="preempt",
        restarts=0,
        begun_at=2000.0,
        step="stopping",
        asked_at=2000.0,
        deadline=2200.0,
        holds=True,
    )
    job = a_record(state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 4}, started=1500.0)
    over = Evidence(now=2100.0, reported=True, checkpoint_at=2001.0, listening=1000.0)
    following = advance(move, job, over, MoveLimits())
    assert (following.action, following.move) == (None, move)


def test_a_script_that_goes_on_after_its_training_is_left_alone() -> None:
    at_work = AtWork(policy="fifo")
    at_work.again = True
    job = at_work.running(count=2)
    at_work.says = {"checkpoints": False}
    at_work.live(20)
    elsewhere = Move(job=JobId(job), kind="resize", target=Placement.of({"n1": 4}), reason="a test")
    at_work.move(elsewhere)
    at_work.live(5)
    assert at_work.outcomes(job)[-1] == SILENT
    at_work.says = {}  # it trains again
    at_work.live(20)
    at_work.move(elsewhere)
    at_work.live(5)
    assert [sent.job for sent in at_work.world.state.signals] == [job]
