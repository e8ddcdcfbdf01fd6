"""The program that copies a job's data: all or nothing, within bounds, one line when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deep_folders import deepened

from ones.daemon.agent.staging import GRACE, StageFolders
from ones.slurm_ext.stage_in import FAULT, Bounds, CannotStage, here, stage


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tree = tmp_path / "source"
    (tree / "below/empty").mkdir(parents=True)
    (tree / "below/large").write_bytes(b"x" * 3_000_000)
    (tree / "small").write_text("content")
    (tree / "link").symlink_to("small")
    (tree / "outward").symlink_to("/etc")
    return tree


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


FREE = Bounds(keep_free=0.0)


def test_a_tree_arrives_whole_with_its_links_as_links(source: Path, disk: Path) -> None:
    assert stage(source, disk / "7", "data", FREE) == 3_000_007
    arrived = disk / "7/data"
    assert (arrived / "below/large").read_bytes() == (source / "below/large").read_bytes()
    assert (arrived / "below/empty").is_dir()
    assert (arrived / "link").readlink() == Path("small")
    assert (arrived / "outward").readlink() == Path("/etc")
    assert (disk / "7").stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in (disk / "7").iterdir()] == ["data"]


def test_a_single_file_arrives_under_its_name(source: Path, disk: Path) -> None:
    stage(source / "small", disk / "7", "words.txt", FREE)
    assert (disk / "7/words.txt").read_text() == "content"


def test_a_link_to_a_file_arrives_as_that_file_and_is_bounded_by_its_size(
    source: Path, disk: Path
) -> None:
    latest = source.with_name("latest")
    latest.symlink_to(source / "below/large")
    assert stage(latest, disk / "7", "data", FREE) == 3_000_000
    assert not (disk / "7/data").is_symlink()
    with pytest.raises(CannotStage, match="GiB that may be staged"):
        stage(latest, disk / "8", "data", Bounds(most_gib=0.001, keep_free=0.0))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(most_gib=0.001, keep_free=0.0), "more than the 0.001 GiB"),
        (Bounds(keep_free=1.0), "do not fit into"),
    ],
)
def test_what_does_not_fit_is_not_begun(
    source: Path, disk: Path, bounds: Bounds, words: str
) -> None:
    with pytest.raises(CannotStage, match=words):
        stage(source, disk / "7", "data", bounds)
    assert list((disk / "7").iterdir()) == []


def test_a_full_disk_leaves_no_part_behind(source: Path, disk: Path) -> None:
    def write_nothing_more(*_: object) -> None:
        raise OSError(28, "No space left on device", str(disk))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ones.slurm_ext.stage_in.shutil.copystat", write_nothing_more)
        with pytest.raises(CannotStage, match="No space left on device"):
            stage(source, disk / "7", "data", FREE)
    assert list((disk / "7").iterdir()) == []


def test_a_pipe_among_the_files_is_refused_and_not_waited_for(source: Path, disk: Path) -> None:
    os.mkfifo(source / "pipe")
    with pytest.raises(CannotStage, match="pipe: neither file nor folder nor link"):
        stage(source, disk / "7", "data", FREE)
    assert list((disk / "7").iterdir()) == []


def test_a_folder_that_is_there_already_is_not_used(source: Path, disk: Path) -> None:
    (disk / "7").mkdir()
    with pytest.raises(CannotStage, match="File exists"):
        stage(source, disk / "7", "data", FREE)


def test_a_node_without_the_stage_folder_is_named(source: Path, disk: Path) -> None:
    with pytest.raises(CannotStage, match="is ones-agent running"):
        stage(source, disk / "none/7", "data", FREE)


def test_the_configuration_bounds_it_and_a_broken_one_is_as_none(tmp_path: Path) -> None:
    config = tmp_path / "ones.toml"
    assert Bounds.read(config) == Bounds()
    config.write_text("[staging]\nmost_gib = 5\nlead = 3\n")
    (tmp_path / "ones.d").mkdir()
    (tmp_path / "ones.d/x.toml").write_text("[staging]\nkeep_free = 0.5\nmost_rate = 'fast'\n")
    (tmp_path / "ones.d/y.toml").write_text("[staging\n")
    assert Bounds.read(config) == Bounds(most_gib=5.0, keep_free=0.5)


def test_on_a_node_the_fault_is_one_line_in_the_folder(source: Path, disk: Path) -> None:
    os.mkfifo(source / "pipe\nline")
    done = subprocess.run(
        [sys.executable, "-m", "ones.slurm_ext.stage_in", "--here", disk, source, "data"],
        env={**os.environ, "SLURM_JOB_ID": "7", "ONES_CONF": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert (disk / "7" / FAULT).read_text().endswith("neither file nor folder nor link")


def test_a_fault_of_a_file_whose_name_is_no_text_is_told_all_the_same(
    source: Path, disk: Path
) -> None:
    os.mkfifo(os.fsencode(source) + b"/caf\xe9")
    said = here(disk / "7", source, "data")
    assert said.endswith("caf?: neither file nor folder nor link")
    assert (disk / "7" / FAULT).read_text() == said


def given_away(path: Path) -> Path:
    """The path, another user's where we may give it away."""
    if os.getuid() == 0:
        os.chown(path, 12345, 12345, follow_symlinks=False)
    return path


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    file = tmp_path / "thesis"
    file.write_text("years of work")
    return file


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_folder_that_another_user_made_beforehand_costs_no_file(
    source: Path, disk: Path, thesis: Path, link: Callable[[Path, Path], None]
) -> None:
    disk.chmod(0o1777)
    (disk / "7").mkdir()
    (disk / "7").chmod(0o777)
    link(disk / "7" / FAULT, thesis)
    given_away(disk / "7")
    said = here(disk / "7", source, "data")
    assert "7: File exists, made by user" in said
    assert thesis.read_text() == "years of work"
    assert [entry.name for entry in (disk / "7").iterdir()] == [FAULT]


def test_a_link_in_the_place_of_the_folder_is_not_followed(
    source: Path, disk: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (disk / "7").symlink_to(target)
    assert "7: File exists" in here(disk / "7", source, "data")
    assert list(target.iterdir()) == []


def swap(path: Path, instead: Path) -> None:
    """Put `instead` where the path leads, as who may write in the folder above could."""
    path.rename(path.with_name("away"))
    instead.rename(path)


@pytest.mark.parametrize("kind", ["link", "open to all", "another user's"])
def test_a_folder_that_was_changed_for_another_at_once_is_not_used(
    source: Path, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "another user's" and os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    target, instead = tmp_path / "target", tmp_path / "instead"
    target.mkdir(mode=0o700)
    if kind == "link":
        instead.symlink_to(target)
    else:
        instead.mkdir(mode=0o700)
        instead.chmod(0o777 if kind == "open to all" else 0o700)
    if kind == "another user's":
        given_away(instead)
    make = os.mkdir

    def make_and_lose(name: str, mode: int, *, dir_fd: int) -> None:
        make(name, mode, dir_fd=dir_fd)
        swap(disk / "7", instead)

    monkeypatch.setattr(os, "mkdir", make_and_lose)
    assert here(disk / "7", source, "data") != ""
    assert list(target.iterdir()) == []
    assert list((disk / "7").iterdir()) == []


@pytest.mark.parametrize("bounds", [FREE, Bounds(keep_free=1.0)])
def test_a_folder_that_is_changed_for_another_later_gets_nothing(
    source: Path, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: Bounds
) -> None:
    target, instead = tmp_path / "target", tmp_path / "instead"
    target.mkdir(mode=0o700)
    instead.symlink_to(target)

    def read_and_lose(config: Path) -> Bounds:
        swap(disk / "7", instead)
        return bounds

    monkeypatch.setattr(Bounds, "read", read_and_lose)
    said = here(disk / "7", source, "data")
    assert list(target.iterdir()) == []
    assert [entry.name for entry in (disk / "away").iterdir()] == [FAULT if said else "data"]


def test_a_fault_is_not_written_through_a_link_that_a_source_brings(
    source: Path, disk: Path, thesis: Path
) -> None:
    (source / FAULT).symlink_to(thesis)
    os.mkfifo(source / "pipe")
    assert here(disk / "7", source, "data") != ""
    assert thesis.read_text() == "years of work"


def test_a_stage_folder_in_which_anybody_may_move_others_folders_is_refused(
    source: Path, disk: Path
) -> None:
    disk.chmod(0o777)
    with pytest.raises(CannotStage, match="anybody may move others' folders; chmod"):
        stage(source, disk / "7", "data", FREE)


def test_folders_that_are_nested_too_deeply_are_a_fault_in_one_line(
    source: Path, disk: Path
) -> None:
    with deepened(source), pytest.raises(CannotStage, match="nested too deeply"):
        stage(source, disk / "7", "data", FREE)
    assert list((disk / "7").iterdir()) == []


def test_what_is_needed_or_younger_than_what_was_seen_is_kept(disk: Path) -> None:
    for name in ("1", "2", "3", "notes", "4x"):
        (disk / name).mkdir()
    (disk / "5").symlink_to(disk / "notes")
    (disk / "6").write_text("")
    (disk / "2/inside").symlink_to(disk / "notes")
    made = (disk / "1").stat().st_ctime
    folders = StageFolders(disk)
    assert folders.clean([], seen=made + GRACE - 1) == []
    assert sorted(folders.clean([1], seen=made + GRACE + 60)) == [2, 3]
    assert {entry.name for entry in disk.iterdir()} == {"1", "notes", "4x", "5", "6"}


def test_the_folder_is_everybodys_and_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    StageFolders(tmp_path / "new").open()
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o1777
    (tmp_path / "own").mkdir(mode=0o755)
    StageFolders(tmp_path / "own").open()
    assert (tmp_path / "own").stat().st_mode & 0o7777 == 0o755
    StageFolders(tmp_path / "none/below").open()


def test_what_another_user_left_under_any_name_is_removed(disk: Path, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    (disk / "mine").mkdir()
    for name in ("stray", ".ones-removed-0", "007", "9" * 30):
        (disk / name).mkdir()
        given_away(disk / name)
    (disk / "file").touch()
    given_away(disk / "file")
    (disk / "8").symlink_to(tmp_path)
    given_away(disk / "8")
    seen = disk.stat().st_ctime + GRACE + 60
    assert StageFolders(disk).clean([7], seen=seen) == [8]
    assert [entry.name for entry in disk.iterdir()] == ["mine"]
    assert tmp_path.exists()


def test_a_folder_is_not_kept_by_changing_it_again_and_again(disk: Path) -> None:
    (disk / "7").mkdir()
    made = (disk / "7").stat().st_ctime
    folders = StageFolders(disk)
    assert folders.clean([], seen=made) == []
    (disk / "7" / "more").touch()
    assert (disk / "7").stat().st_ctime > made
    assert folders.clean([], seen=made + GRACE + 0.0001) == [7]


def test_a_new_folder_of_the_same_name_has_its_own_time(disk: Path) -> None:
    (disk / "7").mkdir()
    made = (disk / "7").stat().st_ctime
    folders = StageFolders(disk)
    assert folders.clean([], seen=made) == []
    (disk / "7").rename(disk / "8")
    (disk / "7").mkdir()
    now = (disk / "7").stat().st_ctime
    assert folders.clean([8], seen=now + GRACE) == []


def test_a_folder_of_many_levels_is_removed_like_any_other(disk: Path) -> None:
    (disk / "7").mkdir()
    with deepened(disk / "7"):
        folders = StageFolders(disk)
        assert folders.clean([], seen=(disk / "7").stat().st_ctime + GRACE + 60) == [7]
        for _ in range(3):
            folders.go_on()
        assert list(disk.iterdir()) == []
