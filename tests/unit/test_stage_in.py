"""The program that copies a job's data: all or nothing, within bounds, one line when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ones.daemon.agent.staging import GRACE, StageFolders
from ones.slurm_ext.stage_in import FAULT, Bounds, CannotStage, stage


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
