"""What users leave behind is removed, however much it is, without anybody waiting for it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from deep_folders import deepened

from ones.daemon.agent.removal import BIN, Removal


def tree(folder: Path) -> int:
    """A small tree with all kinds of things in it; how many."""
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/file").write_text("x")
    (folder / "a/b/link").symlink_to("/etc")
    os.mkfifo(folder / "a/pipe")
    (folder / "a/b").chmod(0)
    return 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def everything(root: Path) -> int:
    return sum(len(folders) + len(files) for _, folders, files in os.walk(root))


def test_what_is_taken_is_out_of_the_way_at_once_and_gone_soon(root: Path) -> None:
    removal = Removal(root)
    tree(root / "7")
    assert removal.take("7")
    assert not (root / "7").exists()
    assert removal.go_on()
    assert list(root.iterdir()) == []


def test_so_many_entries_are_removed_at_a_time_and_no_more(root: Path) -> None:
    removal = Removal(root)
    (root / "7").mkdir()
    for number in range(100):
        (root / "7" / str(number)).touch()
    removal.take("7")
    before, rounds = everything(root), 0
    while not removal.go_on(10):
        left = everything(root)
        assert before - 12 <= left < before  # the folder and the bin themselves are not counted
        before, rounds = left, rounds + 1
    assert rounds >= 10
    assert list(root.iterdir()) == []


def test_no_link_is_followed(root: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (root / "7").mkdir()
    (root / "7" / "link").symlink_to(kept)
    (root / "8").symlink_to(kept)
    removal = Removal(root)
    assert removal.take("7")
    assert removal.take("8")
    assert removal.go_on()
    assert (kept / "file").exists()
    assert list(root.iterdir()) == []


def test_many_levels_are_no_more_than_many_entries(root: Path) -> None:
    (root / "7").mkdir()
    with deepened(root / "7"):
        removal = Removal(root)
        removal.take("7")
        while not removal.go_on():
            pass
        assert list(root.iterdir()) == []


def test_what_an_agent_that_was_killed_had_taken_is_removed_by_the_next(root: Path) -> None:
    tree(root / "7")
    Removal(root).take("7")
    assert [entry.name.startswith(BIN) for entry in root.iterdir()] == [True]
    assert Removal(root).go_on()
    assert list(root.iterdir()) == []


def test_what_is_not_there_is_not_removed(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    removal = Removal(root)
    assert not removal.take("7")
    assert removal.go_on()
    assert not Removal(root / "none").take("7")
    assert Removal(root / "none").go_on()
    assert [each for each in caplog.records if each.levelno > logging.WARNING] == []


def test_what_can_not_be_removed_does_not_keep_the_rest(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("7", "8"):
        (root / name).mkdir()
        (root / name / "file").touch()
    (root / "7" / "mounted").touch()
    unlink = os.unlink

    def unlink_most(name: str, *, dir_fd: int) -> None:
        if name == "mounted":
            raise OSError(16, "Device or resource busy")
        unlink(name, dir_fd=dir_fd)

    rename = os.rename

    def rename_most(name: str, to: str, **where: int | None) -> None:
        if name == "mounted":
            raise OSError(16, "Device or resource busy")
        rename(name, to, **where)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", unlink_most)
    monkeypatch.setattr(os, "rename", rename_most)
    removal = Removal(root)
    removal.take("7")
    removal.take("8")
    removal.go_on(1000)
    left = {entry.name for entry in root.rglob("*")}
    assert "mounted" in left
    assert "file" not in left
