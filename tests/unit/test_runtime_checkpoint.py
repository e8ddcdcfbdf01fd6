"""A checkpoint is complete or absent, whenever the process that writes it dies."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ones.slurm_ext.runtime import checkpoint as module
from ones.slurm_ext.runtime.checkpoint import Checkpoints, Moment, Writable
from ones.slurm_ext.runtime.gradients import Smoothed
from ones.slurm_ext.runtime.learning_rate import Ramp
from ones.slurm_ext.runtime.sampling import Progress


def a_moment(samples: int) -> Moment:
    progress = Progress(epoch=1, position=samples % 100, samples=samples)
    return Moment(
        progress=progress,
        epoch_samples=100,
        batch=32,
        ramp=Ramp(end=2.0, steps=3),
        noise=Smoothed(count=12, sqr=0.5, var=8.0),
        declared={"batch_submitted": 16, "batch_most": None, "total_samples": 1000},
    )


def saved(checkpoints: Checkpoints, samples: int) -> Path:
    return checkpoints.save(a_moment(samples), lambda file: write(file, samples))


def write(file: Writable, samples: int) -> None:
    file.write(f"state at {samples}".encode())


def test_the_newest_checkpoint_is_found_with_all_it_was_told(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "made" / "on demand")
    assert checkpoints.latest() is None
    saved(checkpoints, 90)
    saved(checkpoints, 150)
    found = checkpoints.latest()
    assert found is not None
    assert found.moment == a_moment(150)
    assert found.state.read_bytes() == b"state at 150"


def test_a_checkpoint_of_a_release_that_measured_no_noise_is_gone_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    manifest = saved(checkpoints, 150) / module.MANIFEST
    written = json.loads(manifest.read_text())
    del written["moment"]["noise"], written["moment"]["declared"]
    manifest.write_text(json.dumps(written))
    found = checkpoints.latest()
    assert found is not None
    assert found.moment == replace(a_moment(150), noise=Smoothed(), declared={})


def test_files_of_another_framework_are_found_whole_or_not_at_all(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for samples in (90, 150):
        draft = checkpoints.begin(a_moment(samples))
        assert draft is not None
        (draft / "shards").mkdir()
        (draft / "shards" / "0.bin").write_bytes(b"x" * samples)
    assert checkpoints.latest() is None  # a draft is none, and the first one is gone
    path = checkpoints.complete(a_moment(150))
    found = checkpoints.latest()
    assert found is not None
    assert (found.path, found.moment) == (path, a_moment(150))
    assert checkpoints.begin(a_moment(150)) is None
    (path / "shards" / "0.bin").write_bytes(b"x" * 149)
    assert checkpoints.latest() is None


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for samples in (10, 20, 30, 40):
        saved(checkpoints, samples)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [30, 40]


@pytest.mark.parametrize("why", ["damaged", "of a newer release"])
def test_what_is_saved_after_a_fresh_start_outlives_unusable_later_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    for samples in (200, 300):
        spoil(saved(checkpoints, samples), why)
    assert checkpoints.latest() is None
    caplog.clear()
    for samples in (50, 100, 150):
        assert saved(checkpoints, samples).exists()
        found = checkpoints.latest()
        assert found is not None
        assert found.moment.progress.samples == samples
    assert names(tmp_path) == [
        f"{number:015d}{ending}"
        for number, ending in ((100, ""), (150, ""), (200, ".given-up"), (300, ".given-up"))
    ]
    assert [record.message for record in caplog.records] == [
        f"ones: checkpoint {tmp_path / name} is of training that was given up; moved to"
        f" {name}.given-up"
        for name in ("000000000000300", "000000000000200")
    ]


@pytest.mark.parametrize("next_one", [110, 150], ids=["before it", "after it"])
def test_a_damaged_one_does_not_take_the_place_of_the_good_one_before(
    tmp_path: Path, next_one: int
) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved(checkpoints, 100)
    spoil(saved(checkpoints, 120), "damaged")
    checkpoints.latest()
    spoil(saved(checkpoints, next_one), "damaged")
    found = checkpoints.latest()
    assert found is not None
    assert found.moment.progress.samples == 100


def test_one_that_is_given_up_again_replaces_the_one_of_its_number(tmp_path: Path) -> None:
    for next_one, content in ((50, b"first"), (60, b"second")):
        checkpoints = Checkpoints(tmp_path)
        spoiled = saved(checkpoints, 200)
        (spoiled / module.STATE).write_bytes(content)
        checkpoints.latest()
        saved(checkpoints, next_one)
    assert names(tmp_path) == ["000000000000050", "000000000000060", "000000000000200.given-up"]
    assert (tmp_path / "000000000000200.given-up" / module.STATE).read_bytes() == b"second"


def spoil(checkpoint: Path, why: str) -> None:
    if why == "damaged":
        (checkpoint / module.STATE).write_bytes(b"")
        return
    manifest = checkpoint / module.MANIFEST
    written = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**written, "version": module.VERSION + 1}))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_same_moment_is_not_written_twice(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first = saved(checkpoints, 10)
    assert checkpoints.save(a_moment(10), lambda file: pytest.fail("written again")) == first


@pytest.mark.parametrize("damage", ["cut off", "changed", "no manifest", "half a manifest"])
def test_a_damaged_checkpoint_leaves_the_one_before_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved(checkpoints, 10)
    newest = saved(checkpoints, 20)
    match damage:
        case "cut off":
            (newest / "state.pt").write_bytes(b"state")
        case "changed":
            (newest / "state.pt").write_bytes(b"state at 2O")
        case "no manifest":
            (newest / "manifest.json").unlink()
        case "half a manifest":
            (newest / "manifest.json").write_text('{"version": 1, "mo')
    found = checkpoints.latest()
    assert found is not None
    assert found.moment.progress.samples == 10
    assert [record.message for record in caplog.records] == [
        f"ones: checkpoint {newest} is damaged; going back to the one before"
    ]
    # The run that comes by again replaces it.
    saved(checkpoints, 20)
    again = checkpoints.latest()
    assert again is not None
    assert again.moment.progress.samples == 20


@pytest.mark.parametrize("last_act", ["state", "manifest", "rename"])
def test_a_writer_killed_at_any_point_leaves_the_one_before(tmp_path: Path, last_act: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved(checkpoints, 10)
    pid = os.fork()
    if pid == 0:
        die_at(last_act)
        saved(checkpoints, 20)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    found = checkpoints.latest()
    assert found is not None
    assert found.moment.progress.samples == 10
    saved(checkpoints, 20)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [10, 20]


def die_at(act: str) -> None:
    """Have this process killed just before the first flush, the second, or the rename."""
    flushes = {"state": 1, "manifest": 2, "rename": 3}[act]

    def killing(*_: object) -> None:
        nonlocal flushes
        flushes -= 1
        if not flushes:
            os.kill(os.getpid(), signal.SIGKILL)

    # Third of these calls: the draft's own folder, with the rename still to come.
    module._flush = module._flush_folder = killing


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved(checkpoints, 10)

    def full(file: Writable) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(a_moment(20), full)
    found = checkpoints.latest()
    assert found is not None
    assert found.moment.progress.samples == 10


def test_checkpoints_of_another_job_of_the_same_number_are_set_aside(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "job")
    checkpoints.set_aside()
    saved(checkpoints, 10)
    checkpoints.set_aside()
    assert checkpoints.latest() is None
    assert len(list(tmp_path.glob("job.before-*/*"))) == 1


def test_a_server_that_is_away_for_a_moment_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(Checkpoints(tmp_path), 10)
    newest = saved(Checkpoints(tmp_path), 20)
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))
    read, faults = Path.read_bytes, [errno.ESTALE, errno.EIO]

    def away(path: Path) -> bytes:
        if faults:
            raise OSError(faults.pop(), "the server is away", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", away)
    found = Checkpoints(tmp_path).latest()
    assert found is not None
    assert found.path == newest


def test_a_file_system_that_flushes_no_folders_keeps_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = os.fsync

    def of_files(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flush(handle)

    monkeypatch.setattr(os, "fsync", of_files)
    assert saved(Checkpoints(tmp_path), 10).is_dir()
