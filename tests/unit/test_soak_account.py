"""The soak's own account: it must see what is lost, repeated, or begun anew."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from soak_account import Line, Task, account_of

TASK = Task(epochs=2, samples=4, batch=2)  # steps at 0, 2, 4 and 6


def step(
    at: int,
    *workers: str,
    generation: int = 1,
    committed: Iterable[str] | None = None,
    restarts: int = 0,
) -> list[Line]:
    """What these workers write of a step; `committed`, if not all, are those for whom it counts."""
    done = set(workers if committed is None else committed)
    share = TASK.batch // len(workers)
    lines: list[Line] = []
    for rank, worker in enumerate(workers):
        first = at % TASK.samples + rank * share
        said = {
            "at": at,
            "ids": list(range(first, first + share)),
            "worker": worker,
            "generation": generation,
            "restarts": restarts,
            "time": float(at),
        }
        lines += [{**said, "committed": False}]
        lines += [{**said, "committed": True}] if worker in done else []
    return lines


def found(*steps: Sequence[Line], complete: bool = True) -> tuple[int, int, int]:
    account = account_of([line for lines in steps for line in lines], TASK, complete=complete)
    return account.lost, account.repeated, account.strands


def test_a_training_without_events_loses_and_repeats_nothing() -> None:
    assert found(*(step(at, "a", "b") for at in (0, 2, 4, 6))) == (0, 0, 1)


def test_a_step_that_nobody_committed_is_lost() -> None:
    assert found(step(0, "a"), step(2, "a", committed=()), step(4, "a"), step(6, "a")) == (2, 0, 1)
    assert found(step(0, "a"), step(2, "a"), complete=False) == (0, 0, 1)
    assert found(step(0, "a"), step(2, "a")) == (4, 0, 1)


def test_a_step_that_was_committed_twice_is_repeated() -> None:
    again = [step(at, "a", "b", generation=2) for at in (2, 4, 6)]
    assert found(step(0, "a", "b"), step(2, "a", "b"), *again) == (0, 2, 1)


def test_a_step_done_again_after_a_crash_counts_once() -> None:
    again = [step(at, "a", generation=2) for at in (2, 4, 6)]
    assert found(step(0, "a", "b"), step(2, "a", "b", committed=()), *again) == (0, 0, 1)


def test_who_was_killed_after_the_gradients_were_averaged_was_part_of_the_step() -> None:
    later = [step(at, "a", generation=2) for at in (4, 6)]
    assert found(step(0, "a", "b"), step(2, "a", "b", committed="a"), *later) == (0, 0, 1)


def test_what_only_the_dead_had_committed_may_be_done_again() -> None:
    again = [step(at, "a", generation=2) for at in (2, 4, 6)]
    assert found(step(0, "a", "b"), step(2, "a", "b", committed="b"), *again) == (0, 0, 1)


def test_workers_that_went_back_to_copies_did_those_steps_again_and_no_others() -> None:
    task = replace(TASK, copies=True)
    steps = [step(at, "a", "b") for at in (0, 2, 4)]
    again = [step(at, "a", generation=2) for at in (2, 4, 6)]
    lines = [line for lines in [*steps, *again] for line in lines]
    account = account_of(lines, task, complete=True)
    assert (account.lost, account.repeated, account.strands) == (0, 0, 1)
    assert account.gone_back == [2]
    gap = [step(at, "a", generation=2) for at in (4, 6)]
    lines = [line for lines in [*steps[:1], *gap] for line in lines]
    account = account_of(lines, task, complete=True)
    assert (account.lost, account.repeated, account.gone_back) == (2, 0, [])


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_followed_the_checkpoint_from_which_all_began_anew_does_not_count(
    restarts: int,
) -> None:
    anew = [step(at, "c", generation=2, restarts=restarts) for at in (2, 4, 6)]
    assert found(step(0, "a"), step(2, "a"), step(4, "a"), *anew) == (0, 0, 2)
    gap = [step(at, "c", generation=2, restarts=restarts) for at in (4, 6)]
    assert found(step(0, "a"), *gap) == (2, 0, 2)


def test_changes_are_told_by_who_came_and_who_left() -> None:
    task = Task(epochs=4, samples=4, batch=2)
    steps = [
        step(0, "a"),
        step(2, "a", "b", generation=2),
        step(4, "a", "c", generation=3),
        step(6, "a", generation=4),
        step(12, "a", "d", generation=5),
    ]
    account = account_of([line for lines in steps for line in lines], task, complete=False)
    assert account.changes == {
        "growth": 2,
        "both at once": 1,
        "shrink": 1,
        "in the last three steps": 1,
    }
    assert account.standstill == 2.0
