"""What a live job's base launcher does where its machine, or the share, is not as it should be."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ones.slurm_ext.runtime.environment import Place
from ones.slurm_ext.runtime.live.base import JOIN, Base
from ones.slurm_ext.runtime.live.control import private_folder
from ones.slurm_ext.runtime.live.home import HEARD, Home
from ones.slurm_ext.runtime.live.link import JoinFile, LinkFault, read_join_file
from ones.slurm_ext.runtime.reporting import LARGEST_BATCH


def a_home() -> Home:
    return Home(lambda place: None, lambda parent: None)


def a_base(folder: Path) -> Base:
    return Base(a_home(), folder, host="127.0.0.1", slots=2, workers=1)


def a_join_file(secret: bytes) -> JoinFile:
    return JoinFile("n1", 4711, "/run/control.sock", secret)


def test_who_ends_takes_its_join_file_away(tmp_path: Path) -> None:
    mine = a_join_file(b"mine")
    mine.write(tmp_path / JOIN)
    mine.remove(tmp_path / JOIN)
    assert not (tmp_path / JOIN).exists()


def test_who_ends_late_leaves_the_join_file_of_the_next_run(tmp_path: Path) -> None:
    next_one = a_join_file(b"next")
    next_one.write(tmp_path / JOIN)
    a_join_file(b"mine").remove(tmp_path / JOIN)
    assert read_join_file(tmp_path / JOIN) == next_one


def test_a_share_that_is_away_when_the_job_ends_is_no_failure_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    base = a_base(folder)
    a_join_file(base._secret).write(folder / JOIN)
    folder.rename(tmp_path / "away")
    folder.touch()
    base._close()


@pytest.mark.parametrize("length", [20, 150])
def test_a_socket_can_be_bound_however_long_the_path_of_the_temporary_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    long = tmp_path / ("x" * length)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = private_folder("control.sock")
    assert folder.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / "control.sock"))
    (folder / "control.sock").unlink()
    folder.rmdir()
    assert list(long.iterdir()) == []


def out_of_processes() -> int:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def out_of_files() -> tuple[socket.socket, socket.socket]:
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize(
    ("owner", "call", "fails"),
    [(os, "fork", out_of_processes), (socket, "socketpair", out_of_files)],
)
def test_a_worker_that_cannot_be_started_is_gone_and_the_launcher_goes_on(
    monkeypatch: pytest.MonkeyPatch, owner: object, call: str, fails: Callable[[], object]
) -> None:
    home = a_home()
    monkeypatch.setattr(owner, call, fails)
    assert home.start(7, Place(nodes=1, port=1), first=False, again=False) is None
    assert home.pids() == {}
    assert list(home.reap()) == [(7, 1, [])]
    assert list(home.reap()) == []
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {*HEARD}


@pytest.mark.parametrize("batch", [0, -1, 10**20, LARGEST_BATCH + 1, 1.5, True, "8"])
def test_a_batch_that_no_worker_could_hold_is_refused(tmp_path: Path, batch: object) -> None:
    base = a_base(tmp_path)
    with pytest.raises(LinkFault, match="no whole number from 1 to 1000000000000"):
        base._obey({"op": "resize", "workers": 1, "batch": batch})
