"""The user's command at a resize: told of the sizes, bounded, and no hindrance to the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import eventually

from ones.slurm_ext.runtime import resized

SAYS = 'echo "$ONES_OLD_GPUS $ONES_NEW_GPUS $ONES_RESIZE" >> told'


def run(folder: Path, *, gpus: int, restarts: int, command: str | None = SAYS) -> str:
    """A run of job 7 by ones-run; what it writes to its error output."""
    (folder / "train.py").write_text("open('trained', 'a').write('x')\n")
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    environment |= {} if command is None else {resized.COMMAND: command}
    words = ["-m", "ones.slurm_ext.runtime.launcher", f"--workers={gpus}", "train.py"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def told(folder: Path) -> list[str]:
    path = folder / "told"
    return path.read_text().splitlines() if path.exists() else []


def test_it_is_told_both_sizes_at_the_start_after_a_resize(tmp_path: Path) -> None:
    run(tmp_path, gpus=2, restarts=0)
    run(tmp_path, gpus=4, restarts=1)
    eventually(lambda: told(tmp_path))
    run(tmp_path, gpus=4, restarts=2)  # requeued, at the same size
    run(tmp_path, gpus=1, restarts=3)
    eventually(lambda: len(told(tmp_path)) == 2)
    assert told(tmp_path) == ["2 4 restart", "4 1 restart"]


def test_a_first_run_under_a_number_that_another_job_had_is_no_resize(tmp_path: Path) -> None:
    run(tmp_path, gpus=2, restarts=0)
    run(tmp_path, gpus=4, restarts=0)
    assert told(tmp_path) == []


def test_its_failure_is_told_and_stops_nothing(tmp_path: Path) -> None:
    run(tmp_path, gpus=1, restarts=0)
    said = run(tmp_path, gpus=2, restarts=1, command="exit 3")
    assert "ONES_ON_RESIZE ended with 3; the job goes on" in said
    assert (tmp_path / "trained").read_text() == "xxx"


def test_one_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resized, "_RUN", resized._RUN.replace(f"5 {resized.MOST}", "1 1"))
    command = {"PATH": os.environ["PATH"], resized.COMMAND: "sleep 1000"}
    resized.live(command, 1, 2, folder=tmp_path)  # and returns at once
    errors: list[str] = []

    def ended() -> bool:
        errors.append(capfd.readouterr().err)
        return "ended with 124" in "".join(errors)

    eventually(ended)
    assert (tmp_path / "gpus").read_text() == "2\n"


def test_without_it_nothing_is_kept(tmp_path: Path) -> None:
    run(tmp_path, gpus=2, restarts=0, command=None)
    assert not (tmp_path / "ones-checkpoints").exists()


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "ones-checkpoints").write_text("in its place")
    run(tmp_path, gpus=2, restarts=1)
    assert (tmp_path / "trained").read_text() == "xx"
