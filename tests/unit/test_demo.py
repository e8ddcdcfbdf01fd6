"""`onesctl demo`: a whole onesd to look at, which every command answers of, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from patience import eventually

from ones.daemon.ctl.main import main

RUN = "from ones.daemon.ctl.main import main; main(prog_name='onesctl')"


def a_demo(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """In a process of its own, with all that it makes in this folder; it ends by itself at last."""
    with (folder / "out").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-c", RUN, "demo", "--nodes=4", "--for=300", *words],
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=out,
            stderr=out,
        )


def told(folder: Path) -> str:
    return (folder / "out").read_text()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Path]:
    """Its socket."""
    process = a_demo(tmp_path, "--speed=3600")
    try:
        eventually(lambda: "GPUs busy" in told(tmp_path) or process.poll() is not None)
        found = re.search(r"export ONESCTL_SOCKET=(\S+)", told(tmp_path))
        assert found is not None, told(tmp_path)
        yield Path(found[1])
    finally:
        process.kill()
        process.wait()


def test_every_command_answers_of_it(demo: Path) -> None:
    def onesctl(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, ["--socket", str(demo), *words])
        assert done.exit_code == code, done.output
        return done.output

    assert "16 in all" in onesctl("status")
    eventually(lambda: onesctl("jobs", "-n", "-o", "job", "-t", "R").split())
    assert "n1" in onesctl("nodes", "-n", "-o", "node")
    assert onesctl("plan").startswith("Round ")
    assert "share no GPUs" in onesctl("sharing")
    onesctl("report", "needs")
    assert "policy ones" in onesctl("policy", "show")
    assert "policy fifo" in onesctl("policy", "set", "fifo")
    assert "paused" in onesctl("pause")
    running = onesctl("jobs", "-n", "-o", "job", "-t", "R").split()  # nothing new is begun now
    for job in running[-1:]:
        assert f"Job {job} " in onesctl("job", job)
        assert f"job {job} " in onesctl("explain", job)
    for job in running[:1]:
        course = json.loads(onesctl("job", job, "--json"))["course"]
        assert course["at"]
        measures = ("loss", "batch", "samples_per_second", "utilization")
        assert all(value > 0 for name in measures for value in course[name])
    assert "resumed" in onesctl("resume")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_it_is_told_to_and_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    process = a_demo(tmp_path)
    try:
        eventually(lambda: "GPUs busy" in told(tmp_path) or process.poll() is not None)
        (folder,) = tmp_path.glob("ones-demo-*")
        assert folder.stat().st_mode & 0o077 == 0
        process.send_signal(number)
        assert process.wait(60) == 0, told(tmp_path)
    finally:
        process.kill()
        process.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "Traceback" not in told(tmp_path)


def test_a_policy_that_it_can_t_have_is_told_in_one_line() -> None:
    done = CliRunner().invoke(main, ["demo", "--policy", "best"])
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith("onesctl: error: no policy 'best'")
