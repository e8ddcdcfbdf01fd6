"""Sharded training that grows, shrinks and loses workers without a restart of those that stay."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import LiveTraining
from trainings import apart, eventually

SAMPLES, EPOCHS = 103, 5
ROUNDING = 2e-4  # relative: a sum over workers is summed in another order for each size


@pytest.fixture
def training(tmp_path: Path, has_gpu: bool) -> Iterator[LiveTraining]:
    # So long that the training is not over before newcomers have started.
    pause = 1.0 if has_gpu else 0.1
    training = LiveTraining(tmp_path, samples=SAMPLES, epochs=EPOCHS, pause=pause)
    yield training
    training.end()


def is_the_same(training: LiveTraining, alone: dict[str, Any]) -> None:
    """Loss, parameters and samples are those of a training that was never resized."""
    assert set(training.counted().values()) == {1}
    assert len(training.counted()) == EPOCHS * SAMPLES
    losses = training.losses()
    assert losses.keys() == alone["losses"].keys()
    assert apart(list(losses.values()), list(alone["losses"].values())) < ROUNDING
    results = training.results()
    assert all(result["digest"] == results[0]["digest"] for result in results)
    assert apart(results[0]["digest"], alone["digest"]) < ROUNDING
    assert (results[0]["samples"], results[0]["rate"]) == (alone["samples"], alone["rate"])


def staying(training: LiveTraining, before: dict[str, int]) -> set[str]:
    """The slots whose process is still the same."""
    after = training.pids()
    return {slot for slot in after if after[slot] == before.get(slot)}


@pytest.mark.parametrize(
    ("shards", "sizes"),
    [(None, (2, 4, 3, 5, 2)), (2, (4, 6, 2, 3))],
    ids=["fsdp", "hsdp"],
)
def test_slices_follow_the_workers_and_nothing_is_sent_that_need_not_be(
    training: LiveTraining, shards: int | None, sizes: tuple[int, ...]
) -> None:
    if shards:
        training.options["shards"] = shards
    alone = training.whole()
    job = training.live(sizes[0])
    for size in sizes[1:]:
        training.steps_more(16)
        before = training.pids()
        told = training.resize(size)["resizes"][-1]
        assert told["workers"] == size
        assert told["moved"] == told["least"]
        present = training.pids()
        kept = before.keys() & present.keys()
        assert len(kept) == min(len(before), size)
        assert all(before[slot] == present[slot] for slot in kept)
    training.slow.unlink()
    assert training.ends(job) == 0, training.said
    is_the_same(training, alone)


def test_who_loses_a_worker_goes_on_from_another_copy(training: LiveTraining) -> None:
    training.options["shards"] = 2
    alone = training.whole()
    job = training.live(4)
    for slot in ("0/1", "0/0"):
        training.steps_more(16)
        before = training.pids()
        os.kill(before[slot], signal.SIGKILL)
        eventually(lambda: training.pids().get(slot) not in (None, before[slot]))  # noqa: B023
        after = training.pids()
        assert all(before[each] == after[each] for each in before.keys() - {slot})
    told = [(each["lost"], each["source"], each["steps"]) for each in training.recoveries()]
    assert told == [(1, "memory", 0)] * 2
    training.slow.unlink()
    assert training.ends(job) == 0, training.said
    losses = training.losses()
    assert losses.keys() == alone["losses"].keys()
    results = training.results()
    assert apart(results[0]["digest"], alone["digest"]) < ROUNDING
    assert max(training.counted().values()) == 1


def test_a_slice_that_a_neighbour_keeps_costs_the_steps_since_it_was_copied(
    training: LiveTraining,
) -> None:
    training.options["copy_steps"] = 3
    alone = training.whole()
    job = training.live(3)
    for slot in ("0/1", "0/0"):
        training.steps_more(32)
        before = training.pids()
        os.kill(before[slot], signal.SIGKILL)
        eventually(lambda: training.pids().get(slot) not in (None, before[slot]))  # noqa: B023
        assert staying(training, before) == before.keys() - {slot}
    again = [each.get("again", 0) for each in training.status()["resizes"]]
    assert max(again) <= 3 * 16
    told = training.recoveries()
    assert [(each["lost"], each["source"]) for each in told] == [(1, "neighbour")] * 2
    assert [each["samples"] for each in told] == [each for each in again if each]
    assert all(0 < each["steps"] <= 3 for each in told)
    training.slow.unlink()
    assert training.ends(job) == 0, training.said
    results = training.results()
    assert all(result["digest"] == results[0]["digest"] for result in results)
    assert apart(results[0]["digest"], alone["digest"]) < ROUNDING


def test_an_epoch_that_ends_where_a_copy_was_due_only_puts_it_off_by_a_step(
    training: LiveTraining,
) -> None:
    steps = -(-SAMPLES // 16)  # of an epoch; the first step of all is copied
    training.options["copy_steps"] = steps - 1
    job = training.live(3, pause=0.5)
    # So far into the second epoch that all of it would be more than what is to be done again.
    eventually(lambda: training.reached(SAMPLES + 16 * (steps - 4)))
    os.kill(training.pids()["0/1"], signal.SIGKILL)
    eventually(training.recoveries)
    (told,) = training.recoveries()
    assert told["source"] == "neighbour"
    assert told["steps"] <= steps - 1
    training.slow.unlink()
    assert training.ends(job) == 0, training.said


def test_without_another_copy_all_begin_again_from_the_checkpoint(training: LiveTraining) -> None:
    alone = training.whole()
    training.options["checkpoints"] = training.folder / "checkpoints"
    job = training.live(3)
    training.steps_more(16)
    job.send_signal(signal.SIGUSR1)
    eventually(lambda: list((training.folder / "checkpoints").glob("0*")))
    before = training.pids()
    os.kill(before["0/1"], signal.SIGKILL)
    eventually(lambda: len(training.pids()) == 3 and "0/0" not in staying(training, before))
    assert not staying(training, before)
    (told,) = training.recoveries()
    assert (told["lost"], told["source"]) == (1, "checkpoint")
    assert told["steps"] == told["samples"] // 16
    training.slow.unlink()
    assert training.ends(job) == 0, training.said
    (kept, *_) = sorted((training.folder / "checkpoints").glob("0*"))
    again = [step.before for step in training.every_step() if step.before >= int(kept.name)]
    assert min(again) == int(kept.name)
    results = training.results()
    assert apart(results[0]["digest"], alone["digest"]) < ROUNDING
    assert len(training.counted()) == EPOCHS * SAMPLES


def test_a_worker_that_is_lost_while_a_checkpoint_is_written_costs_the_steps_since_the_last_copy(
    training: LiveTraining,
) -> None:
    checkpoints = training.folder / "checkpoints"
    training.options |= {"copy_steps": 3, "checkpoints": checkpoints}
    job = training.live(3, dies_saving=training.folder / "died")
    training.steps_more(16)
    before = training.pids()
    job.send_signal(signal.SIGUSR1)
    eventually(training.recoveries)
    assert (training.folder / "died").exists()
    assert [each["source"] for each in training.recoveries()] == ["neighbour"]
    eventually(lambda: training.pids().get("0/1") not in (None, before["0/1"]))
    assert staying(training, before) == {"0/0", "0/2"}
    job.send_signal(signal.SIGUSR1)
    eventually(lambda: list(checkpoints.glob("0*")))
    training.slow.unlink()
    assert training.ends(job) == 0, training.said


def test_a_newcomer_with_another_model_is_refused_in_one_line(training: LiveTraining) -> None:
    job = training.live(2, other_width_from=2)
    before = training.pids()
    training.order_that_fails({"op": "resize", "workers": 3})
    training.settles(2)
    assert training.pids() == before
    training.slow.unlink()
    assert training.ends(job) == 0
    assert "this worker has another model, or tracks other objects" in training.said
    assert set(training.counted().values()) == {1}
