"""Sharded training that is stopped and goes on with any number of workers."""

from __future__ import annotations

import resource
import shutil
import signal
from pathlib import Path

import pytest
from trainings import Trainings, apart, eventually

SAMPLES, EPOCHS = 103, 2
SMALL = 4 << 10  # bytes that a file may have, as on a disk that is nearly full
ROUNDING = 2e-4  # relative: a sum over workers is summed in another order for each size


def stopped_at(training: Trainings, samples: int, workers: int, **more: object) -> None:
    """Train with so many workers until so many samples are done, and have it save and end."""
    training.slow.touch()
    checkpoints = training.folder / "checkpoints"
    process = training.workers(workers, checkpoints=checkpoints, **more)
    eventually(lambda: training.reached(samples))
    process.send_signal(signal.SIGTERM)
    assert training.ends(process) == 143, training.said
    training.slow.unlink()


def test_a_training_goes_on_at_any_size_and_sees_every_sample_once(training: Trainings) -> None:
    alone = training.whole()
    checkpoints = training.folder / "checkpoints"
    stopped_at(training, 16, 3)
    stopped_at(training, 64, 4, shards=2)
    stopped_at(training, 112, 1)
    last = training.workers(2, checkpoints=checkpoints)
    assert training.ends(last) == 0, training.said
    assert set(training.counted().values()) == {1}
    assert len(training.counted()) == EPOCHS * SAMPLES
    assert {step.workers for step in training.every_step()} == {1, 2, 3, 4}
    for result in training.results():
        assert (result["samples"], result["rate"]) == (alone["samples"], alone["rate"])
        assert apart(result["digest"], alone["digest"]) < ROUNDING
    losses = training.losses()
    assert losses.keys() == alone["losses"].keys()
    assert apart(list(losses.values()), list(alone["losses"].values())) < ROUNDING


def test_regular_checkpoints_are_written_beside_training_and_one_half_written_is_left(
    training: Trainings,
) -> None:
    checkpoints = training.folder / "checkpoints"
    process = training.workers(2, checkpoints=checkpoints, checkpoint_seconds=0.05)
    assert training.ends(process) == 0, training.said
    first, second = sorted(checkpoints.glob("0*"))
    assert all((each / "sharded.pt").exists() for each in (first, second))
    next(second.glob("__1_*")).unlink()
    shutil.rmtree(training.folder / "seen", ignore_errors=True)
    again = training.workers(3, checkpoints=checkpoints, seen=training.folder / "again")
    assert training.ends(again) == 0
    assert f"{second} is damaged" in training.said
    begins = [step.before for step in training.every_step("again")]
    assert min(begins, default=int(first.name)) == int(first.name)


@pytest.mark.parametrize("asked", [False, True], ids=["beside training", "asked for"])
def test_what_cannot_be_written_is_no_checkpoint_and_training_goes_on(
    training: Trainings, asked: bool, has_gpu: bool
) -> None:
    if has_gpu:
        pytest.skip("NCCL's shared memory is of files that may not be larger either")
    checkpoints = training.folder / "checkpoints"
    training.slow.touch()
    regular = {} if asked else {"checkpoint_seconds": 0.05}
    process = training.workers(2, checkpoints=checkpoints, **regular)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (SMALL, SMALL))  # and of its workers
    eventually(lambda: training.reached(16))
    if asked:
        process.send_signal(signal.SIGUSR1)
    training.slow.unlink()
    assert training.ends(process) == 0, training.said
    assert "ones: no checkpoint: " in training.said
    assert set(training.counted().values()) == {1}
    assert len(training.counted()) == EPOCHS * SAMPLES
    assert not list(checkpoints.glob("0*"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"width": 64}, "is of another model: its head.weight is"),
        ({"layers": 1}, "is of another model: its layers.1."),
    ],
    ids=["wider", "fewer layers"],
)
def test_a_checkpoint_of_another_model_is_refused_in_one_line(
    training: Trainings, more: dict[str, object], words: str
) -> None:
    stopped_at(training, 16, 2)
    checkpoints = training.folder / "checkpoints"
    before = sorted(path.name for path in checkpoints.rglob("*"))
    assert training.ends(training.workers(2, checkpoints=checkpoints, **more)) != 0
    assert words in training.said
    assert sorted(path.name for path in checkpoints.rglob("*")) == before


def test_a_checkpoint_of_another_kind_is_refused(training: Trainings) -> None:
    stopped_at(training, 16, 2)
    checkpoints = training.folder / "checkpoints"
    (kept,) = checkpoints.glob("0*")
    skeleton: Path = kept / "sharded.pt"
    content = skeleton.read_bytes()
    skeleton.write_bytes(bytes(len(content)))
    assert training.ends(training.workers(1, checkpoints=checkpoints)) != 0
    assert f"{skeleton} can't be read" in training.said


def test_a_parameter_that_was_added_after_wrapping_is_refused_in_one_line(
    training: Trainings,
) -> None:
    assert training.ends(training.workers(2, adds=1)) != 0
    assert "parameter added is not sharded, so its gradients differ" in training.said
    assert training.every_step() == []
