"""What ones-run says of a program that can't be started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def run(
    *words: str, inside: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ones.slurm_ext.runtime.launcher", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=inside,
        env=environ,
    )


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("name", "said", "code"),
    [
        ("nosuchprog", "No such file or directory", 127),
        ("./words", "Permission denied", 126),
        ("./words/below", "Not a directory", 126),
        ("./binary", "Exec format error", 126),
    ],
)
def test_a_program_that_cannot_be_started_is_told_as_by_a_shell(
    tmp_path: Path, workers: str, name: str, said: str, code: int
) -> None:
    (tmp_path / "words").write_text("no program")
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    (tmp_path / "binary").chmod(0o755)
    done = run(f"--workers={workers}", name, inside=tmp_path)
    assert done.returncode == code
    # The other worker may be ended before it can say the same.
    assert {*done.stderr.splitlines()} == {f"ones-run: error: {name}: {said}"}


def test_a_script_that_is_not_there_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    done = run("nope.py", inside=tmp_path)
    assert done.returncode == 1
    said = f"ones-run: error: there is no script nope.py in {tmp_path}; give its path, or -m and a"
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--slots=4", "--folder=live"])
def test_what_live_jobs_alone_have_is_refused_to_others(tmp_path: Path, option: str) -> None:
    done = run(option, "train.py", inside=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "ones-run: error: --slots and --folder are of live jobs; add --live\n"


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
ALONE = (
    "ones-run: the job has 2 nodes, of which only this one trains; start it on all of them:"
    " srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 ones-run ...\n"
)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SLURM_JOB_NUM_NODES": "2"}, ALONE),
        ({"SLURM_JOB_NUM_NODES": "1"}, ""),
        ({"SLURM_JOB_NUM_NODES": "many"}, ""),
        ({"SLURM_JOB_NUM_NODES": "2"} | STEP, ""),
        ({}, ""),
    ],
)
def test_who_trains_on_one_of_several_nodes_is_told(
    tmp_path: Path, environ: Mapping[str, str], said: str
) -> None:
    """As where the batch script leaves out srun, which does no harm until the job has two nodes."""
    done = run("/bin/true", inside=tmp_path, environ=environ)
    assert (done.returncode, done.stderr) == (0, said)
