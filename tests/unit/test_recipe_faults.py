"""A script whose framework is missing or too old, or whose checkpoint is another's: one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The script under ones-run, as job 7, with the modules of `folder` before all others."""
    (folder / "train.py").write_text(script)
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    paths = f"{folder}:{environment.get('PYTHONPATH', '')}"
    return subprocess.run(
        [sys.executable, "-m", "ones.slurm_ext.runtime.launcher", "--workers=1", "train.py"],
        env={**environment, "PYTHONPATH": paths, "SLURM_JOB_ID": "7", **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], line: str) -> None:
    last = done.stderr.strip().splitlines()[-1:]
    assert (done.returncode, last) == (1, [line])
    assert "Traceback" not in done.stderr


def module(folder: Path, name: str, text: str) -> None:
    """Another library's module, as far as it is looked at here."""
    (folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("name", "package", "absent"),
    [
        ("LightningCallback", "lightning", ("lightning", "pytorch_lightning")),
        ("TransformersCallback", "transformers", ("transformers",)),
    ],
)
def test_a_framework_that_is_missing_is_named(
    tmp_path: Path, name: str, package: str, absent: tuple[str, ...]
) -> None:
    module(tmp_path, "torch", "__version__ = '2.15.0'")
    for each in absent:
        module(
            tmp_path,
            each,
            "raise ModuleNotFoundError(f'No module named {__name__}', name=__name__)",
        )
    refused(
        run(tmp_path, f"import ones\n\nelastic = ones.{name}()\n"),
        f"ones-run: error: train.py:3: ones.{name} needs {package}, which is not installed;"
        f" pip install {package}",
    )


def test_a_pytorch_that_is_too_old_is_named(tmp_path: Path) -> None:
    module(tmp_path, "torch", "__version__ = '2.4.1+cpu'")
    refused(
        run(tmp_path, "import ones\njob = ones.init()\n"),
        "ones-run: error: train.py:2: PyTorch 2.4.1+cpu is too old for ones; install 2.6 or newer",
    )


SAVES = """
import importlib.util
find = importlib.util.find_spec  # no PyTorch here, whether or not this Python has one
importlib.util.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
import os, signal
import ones

class Counter:
    def __init__(self):
        self.steps = 0
    def state_dict(self):
        return {"steps": self.steps}
    def load_state_dict(self, state):
        self.steps = state["steps"]

job = ones.init()
counter = Counter()
if os.environ["KEPT_BY"] == "ones":
    job.track(counter)
else:
    job.saves_with(lambda folder: (folder / "own").write_text(str(counter.steps)))
sampler = job.sampler(12, 4)
for _ in job.epochs(2):
    for _ in sampler:
        if counter.steps == int(os.environ["UNTIL"]):
            os.kill(os.getpid(), signal.SIGTERM)
        counter.steps += 1
        job.step()
"""


def test_a_checkpoint_that_was_written_in_another_way_is_refused(tmp_path: Path) -> None:
    checkpoints = tmp_path / "ones-checkpoints" / "7" / "train"
    first = run(tmp_path, SAVES, KEPT_BY="ones", UNTIL="1")
    assert first.returncode == 143, first.stderr
    done = run(tmp_path, SAVES, KEPT_BY="itself", UNTIL="99", SLURM_RESTART_COUNT="1")
    kept = next(checkpoints.iterdir())
    refused(
        done,
        f"ones-run: error: train.py:21: checkpoint {kept} was written from job.ddp() and"
        " job.track(), and not by job.saves_with()'s function; use what wrote it, or remove it",
    )


def test_a_checkpoint_that_is_half_there_is_passed_over(tmp_path: Path) -> None:
    """A library's own files are known by name and size; a short one makes the rest worthless."""
    first = run(tmp_path, SAVES, KEPT_BY="itself", UNTIL="1")
    assert first.returncode == 143, first.stderr
    (kept,) = (tmp_path / "ones-checkpoints" / "7" / "train").iterdir()
    (kept / "own").write_text("")
    done = run(tmp_path, SAVES, KEPT_BY="itself", UNTIL="99", SLURM_RESTART_COUNT="1")
    assert done.returncode == 0, done.stderr
    assert f"checkpoint {kept} is damaged; going back to the one before" in done.stderr
    assert "finds no checkpoint" in done.stderr


FULL = """
job = ones.init()
def save(folder):
    (folder / ".probe").symlink_to("/dev/full")
    raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
job.saves_with(save)
sampler = job.sampler(12, 4)
for _ in job.epochs(2):
    for _ in sampler:
        job.step()
print(job.samples)
"""


def test_a_library_that_meets_a_full_disk_does_not_end_the_training(tmp_path: Path) -> None:
    """Whatever it says of it: that the disk is full is seen by writing there."""
    script = SAVES[: SAVES.index("class Counter")] + FULL
    checkpointing = script.replace("ones.init()", "ones.init(checkpoint_seconds=0)")
    done = run(tmp_path, checkpointing)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "24\n"
    assert "no checkpoint: [Errno 28] No space left on device; training goes on" in done.stderr


def test_a_library_that_fails_of_itself_ends_the_training(tmp_path: Path) -> None:
    script = SAVES[: SAVES.index("class Counter")] + FULL
    failing = script.replace("ones.init()", "ones.init(checkpoint_seconds=0)").replace(
        '"/dev/full"', '"elsewhere"'
    )
    done = run(tmp_path, failing)
    assert done.returncode != 0
    assert "PytorchStreamWriter failed" in done.stderr


def test_a_script_that_stops_early_may_be_stopped_while_it_evaluates(tmp_path: Path) -> None:
    script = SAVES[: SAVES.index("class Counter")] + (
        "job = ones.init()\n"
        "sampler = job.sampler(12, 4)\n"
        "for _ in job.epochs(5):\n"
        "    for _ in sampler:\n"
        "        job.step()\n"
        "    break\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still there')\n"
    )
    done = run(tmp_path, script)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
