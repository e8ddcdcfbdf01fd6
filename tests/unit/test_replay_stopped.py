"""A replay of several policies that is stopped: nobody computes on, and little is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

PATIENCE = 120.0  # seconds, on a busy machine
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from ones.daemon.ctl.main import main; main()"
)


def workers(parent: int) -> list[int]:
    """Processes of Python that it has started, the one that keeps track of semaphores left out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            told = (entry / "cmdline").read_text()
        except (OSError, IndexError):
            continue
        if int(status[1]) == parent and status[0] != "Z" and "spawn_main" in told:
            found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(come: Callable[[], bool]) -> bool:
    end = monotonic() + PATIENCE
    while not come():
        if monotonic() > end:
            return False
        sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("number", "everybody", "later", "code", "said"),
    [
        (signal.SIGTERM, False, 3.0, 143, ""),
        (signal.SIGINT, False, 3.0, 130, "Aborted!"),
        (signal.SIGINT, True, 3.0, 130, "Aborted!"),  # Ctrl-C on a terminal
        (signal.SIGINT, True, 0.0, 130, "Aborted!"),  # while the processes begin
        (signal.SIGKILL, False, 3.0, -signal.SIGKILL, None),
    ],
)
def test_its_processes_end_with_it(
    tmp_path: Path, *, number: int, everybody: bool, code: int, said: str | None, later: float
) -> None:
    trace = tmp_path / "trace.csv"
    lines = "".join(f"{5 * number},j{number},u,4,9000,1-16\n" for number in range(600))
    trace.write_text("submitted,name,user,gpus,duration_s,sizes\n" + lines)
    command = [sys.executable, "-c", COMMAND, "replay", str(trace), "--policy=ones,ones-sc21"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "COVERAGE_PROCESS_START": ""},
    ) as done:
        assert until(lambda: len(workers(done.pid)) >= 2)
        sleep(later)
        theirs = workers(done.pid)
        (os.killpg if everybody else os.kill)(done.pid, number)
        try:
            out, err = done.communicate(timeout=PATIENCE)
        finally:
            if done.poll() is None:
                os.killpg(done.pid, signal.SIGKILL)
        ended = until(lambda: not any(map(alive, theirs)))
        for left in filter(alive, theirs):
            os.kill(left, signal.SIGKILL)
    assert ended
    assert done.returncode == code
    assert out == ""
    if said is not None:
        assert err.strip() == said
