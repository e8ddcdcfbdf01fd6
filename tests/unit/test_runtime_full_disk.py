"""Where the disk is full there is no checkpoint, and training goes on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from ones.slurm_ext.runtime import checkpoint as module
from ones.slurm_ext.runtime.checkpoint import Checkpoints, Moment, Writable
from ones.slurm_ext.runtime.sampling import Progress

FULL = Path("/dev/full")
MOMENT = Moment(progress=Progress(samples=10))


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoints:
    """Where writing a state ends as on a full disk."""
    checkpoints = Checkpoints(tmp_path)
    begin = checkpoints.begin

    def on_full_disk(moment: Moment) -> Path | None:
        draft = begin(moment)
        assert draft is not None
        (draft / module.STATE).symlink_to(FULL)
        return draft

    monkeypatch.setattr(checkpoints, "begin", on_full_disk)
    return checkpoints


def test_what_the_framework_makes_of_a_full_disk_is_still_a_full_disk(
    full_disk: Checkpoints,
) -> None:
    def hiding(file: Writable) -> None:
        try:
            file.write(b"x" * (1 << 20))
        except OSError:
            raise RuntimeError("PytorchStreamWriter failed writing file data/0") from None

    with pytest.raises(OSError, match="No space left") as raised:
        full_disk.save(MOMENT, hiding)
    assert raised.value.errno == errno.ENOSPC
    assert full_disk.latest() is None


def test_a_full_disk_that_the_framework_says_nothing_of_is_seen(full_disk: Checkpoints) -> None:
    def silent(file: Writable) -> None:
        try:
            file.write(b"x" * (1 << 20))
        except OSError:
            return

    with pytest.raises(OSError, match="No space left"):
        full_disk.save(MOMENT, silent)


def test_another_fault_of_the_framework_stays_what_it_is(tmp_path: Path) -> None:
    def failing(file: Writable) -> None:
        raise RuntimeError("no such dtype")

    with pytest.raises(RuntimeError, match="no such dtype"):
        Checkpoints(tmp_path).save(MOMENT, failing)


@pytest.mark.torch
def test_torch_on_a_full_disk(full_disk: Checkpoints) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]

    from ones.slurm_ext.runtime.torch_framework import TorchFramework

    state: Any = {"models": [{"weight": torch.zeros(1 << 20)}]}
    with pytest.raises(OSError, match="No space left"):
        full_disk.save(MOMENT, lambda file: TorchFramework().dump(state, file))
