"""The door for plain scripts: files in a folder that its user may fill with anything."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from deep_folders import deepened

from ones.daemon.agent.folders import Found, JobFolders
from ones.daemon.agent.messages import MOST_BYTES
from ones.slurm_ext.errors import OnesError

ME = os.geteuid()
root_only = pytest.mark.skipif(ME != 0, reason="only root can give files to other users")


@pytest.fixture
def folders(tmp_path: Path) -> JobFolders:
    folders = JobFolders(tmp_path / "run" / "jobs")
    folders.open()
    return folders


def put(folder: Path, name: str, data: bytes) -> None:
    temporary = folder / f"{name}.new"
    temporary.write_bytes(data)
    temporary.rename(folder / name)


def only(found: list[Found]) -> Found:
    assert len(found) == 1
    return found[0]


def test_a_job_gets_a_folder_of_its_own(folders: JobFolders) -> None:
    path = folders.prepare(7, ME, fresh=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert folders.owner(7) == ME
    assert folders.owner(8) is None
    assert folders.jobs() == [7]


@root_only
def test_the_folder_belongs_to_the_jobs_user(folders: JobFolders) -> None:
    path = folders.prepare(7, 54321, fresh=True)
    assert path.stat().st_uid == 54321
    assert folders.owner(7) == 54321


@root_only
def test_another_users_old_folder_of_the_same_number_is_replaced(folders: JobFolders) -> None:
    old = folders.prepare(7, 54321, fresh=True)
    (old / "deep").mkdir()
    path = folders.prepare(7, 54322, fresh=False)
    assert path.stat().st_uid == 54322
    assert list(path.iterdir()) == []


def test_a_file_is_found_once_and_again_when_it_changes(folders: JobFolders) -> None:
    path = folders.prepare(7, ME, fresh=True)
    put(path, "report.json", b'{"samples":1}')
    found = only(folders.scan())
    assert (found.job, found.op, found.data, found.fault) == (7, "report", b'{"samples":1}', "")
    assert abs(found.at - time.time()) < 5
    assert folders.scan() == []
    put(path, "report.json", b'{"samples":2}')
    assert only(folders.scan()).data == b'{"samples":2}'


def test_a_file_can_not_pretend_to_be_of_another_time(folders: JobFolders) -> None:
    path = folders.prepare(7, ME, fresh=True)
    put(path, "checkpoint.json", b"{}")
    os.utime(path / "checkpoint.json", (4e9, 4e9))
    assert abs(only(folders.scan()).at - time.time()) < 5


def test_a_new_run_does_not_find_what_an_earlier_one_left(folders: JobFolders) -> None:
    path = folders.prepare(7, ME, fresh=True)
    put(path, "report.json", b"{}")
    put(path, "mine", b"{}")
    folders.prepare(7, ME, fresh=False)
    assert (path / "report.json").exists()
    folders.prepare(7, ME, fresh=True)
    assert [each.name for each in path.iterdir()] == ["mine"]


def test_a_link_is_not_followed(folders: JobFolders, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"samples":1}')
    path = folders.prepare(7, ME, fresh=True)
    (path / "report.json").symlink_to(secret)
    found = only(folders.scan())
    assert found.data == b""
    assert found.fault


@root_only
def test_another_users_file_is_not_read(folders: JobFolders, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"samples":1}')
    path = folders.prepare(7, 54321, fresh=True)
    os.link(secret, path / "report.json")
    found = only(folders.scan())
    assert found.data == b""
    assert "not owned" in found.fault


def test_a_pipe_is_not_waited_for(folders: JobFolders) -> None:
    path = folders.prepare(7, ME, fresh=True)
    os.mkfifo(path / "report.json")
    (path / "checkpoint.json").mkdir()
    assert all("regular" in found.fault for found in folders.scan())


def test_a_huge_file_is_read_no_further_than_its_limit(folders: JobFolders) -> None:
    path = folders.prepare(7, ME, fresh=True)
    with (path / "report.json").open("wb") as file:
        file.truncate(2**40)
    assert len(only(folders.scan()).data) == MOST_BYTES + 1


def test_a_job_folder_that_is_a_link_is_no_folder(folders: JobFolders, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    put(elsewhere, "report.json", b"{}")
    folders.path(7).symlink_to(elsewhere)
    assert folders.owner(7) is None
    assert folders.scan() == []
    with pytest.raises(OSError, match="7"):
        folders.prepare(7, ME, fresh=True)


def test_removing_a_folder_follows_no_link(folders: JobFolders, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    path = folders.prepare(7, ME, fresh=True)
    (path / "link").symlink_to(kept)
    (path / "sub").mkdir()
    folders.remove(7)
    assert not path.exists()
    assert (kept / "file").exists()
    folders.remove(7)


def test_a_folder_of_many_levels_does_not_end_the_looking(folders: JobFolders) -> None:
    path = folders.prepare(7, ME, fresh=True)
    with deepened(path):
        folders.remove(7)
        assert not path.exists()
        for _ in range(4):
            folders.scan()
    assert list(path.parent.iterdir()) == []


def test_a_folder_of_folders_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "jobs").symlink_to(tmp_path / "real")
    with pytest.raises(OnesError, match="not a folder of ours"):
        JobFolders(tmp_path / "jobs").open()


@root_only
def test_a_folder_of_folders_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    path.mkdir()
    os.chown(path, 54321, -1)
    with pytest.raises(OnesError, match="not a folder of ours"):
        JobFolders(path).open()


def test_a_folder_of_folders_that_others_could_write_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    path.mkdir()
    path.chmod(0o777)
    JobFolders(path).open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
