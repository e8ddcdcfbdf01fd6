"""A checkpoint is complete or absent, whenever the process that writes it dies."""

from __future__ import annotations

import json
import os
import signal
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
