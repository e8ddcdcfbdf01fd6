"""Slow questions to Slurm: one at a time, and nobody waits for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from patience import eventually

from ones.daemon.onesd.operators import Operators
from ones.daemon.onesd.refresh import MOST_AT_ONCE, Refresher
from ones.slurm_ext.command_reader import CommandReader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.slurm import Slurm as BothWays


class Slurm:
    """Answers, refuses, or hangs until it is let go."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.fault = False
        self.hangs = threading.Event()
        self.hangs.set()

    def __call__(self, keys: Sequence[object]) -> None:
        self.asked.append(tuple(keys))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.hangs.wait(60)
            if self.fault:
                raise SlurmError("sacct", "no")
        finally:
            self.at_once -= 1


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    one = Slurm()
    yield one
    one.hangs.set()


def test_an_answer_is_fresh_for_some_seconds(slurm: Slurm) -> None:
    now = [100.0]
    asking = Refresher("sacct", slurm, fresh=5, patience=20, clock=lambda: now[0])
    assert asking.refresh(7) == 0
    now[0] += 4
    assert asking.refresh(7) == 4
    assert slurm.asked == [(7,)]
    now[0] += 4
    assert asking.refresh(7) == 0
    assert slurm.asked == [(7,), (7,)]


def test_a_question_that_hangs_holds_up_nobody_and_has_no_second_beside_it(slurm: Slurm) -> None:
    asking = Refresher("sacct", slurm, fresh=5, patience=0.1)
    slurm.hangs.clear()
    assert [asking.refresh(job) for job in range(50)] == [None] * 50
    assert len(slurm.asked) == 1


def test_a_failure_is_not_asked_about_again_at_once(slurm: Slurm) -> None:
    now = [100.0]
    asking = Refresher("sacct", slurm, fresh=5, patience=20, clock=lambda: now[0])
    slurm.fault = True
    assert [asking.refresh(job) for job in range(50)] == [None] * 50
    assert len(slurm.asked) == 1
    now[0] += 60
    slurm.fault = False
    assert asking.refresh(1) == 0


def test_many_who_ask_at_once_are_one_question_at_a_time(slurm: Slurm) -> None:
    asking = Refresher("sacct", slurm, fresh=5, patience=20)
    threads = [threading.Thread(target=asking.refresh, args=(number % 3,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert slurm.most_at_once == 1
    assert sorted(key for keys in slurm.asked for key in keys) == [0, 1, 2]


def test_what_is_wanted_while_a_question_is_under_way_is_asked_all_at_once(slurm: Slurm) -> None:
    asking = Refresher("sacct", slurm, fresh=5, patience=20)
    slurm.hangs.clear()
    threads = [threading.Thread(target=asking.refresh, args=(job,)) for job in (1, *range(1, 30))]
    threads[0].start()
    eventually(lambda: slurm.at_once == 1)
    for thread in threads[1:]:
        thread.start()
    eventually(lambda: len(asking._wanted) == 28)
    slurm.hangs.set()
    for thread in threads:
        thread.join()
    assert slurm.asked == [(1,), tuple(range(2, 30))]


def test_no_question_is_about_more_than_it_may_be(slurm: Slurm) -> None:
    asking = Refresher("sacct", slurm, fresh=5, patience=20)
    slurm.hangs.clear()
    jobs = MOST_AT_ONCE + 20
    threads = [threading.Thread(target=asking.refresh, args=(job,)) for job in range(jobs)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(asking._wanted) == jobs - 1)
    slurm.hangs.set()
    for thread in threads:
        thread.join()
    assert [len(keys) for keys in slurm.asked] == [1, MOST_AT_ONCE, 19]


def slurm_of(commands: Commands) -> BothWays:
    """Slurm by these commands."""
    return BothWays(commands, CommandReader(commands))


class Sacctmgr(Commands):
    """Knows one operator, while it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.down = False

    def run(self, program: str, *args: str, timeout: float | None = None) -> str:
        self.asked += 1
        if self.down:
            raise SlurmError(program, "no slurmdbd")
        return "carol|Operator\ndave|None\n"


def test_operators_are_slurms_last_word_while_sacctmgr_fails_and_it_is_left_alone() -> None:
    now, commands = [100.0], Sacctmgr()
    operators = Operators(slurm_of(commands), clock=lambda: now[0])
    assert (operators.include("carol"), operators.include("dave")) == (True, False)
    commands.down = True
    now[0] += 61
    assert [operators.include("carol") for _ in range(20)] == [True] * 20
    assert commands.asked == 2


def test_a_first_failure_of_sacctmgr_makes_nobody_an_operator_and_is_not_repeated() -> None:
    commands = Sacctmgr()
    commands.down = True
    operators = Operators(slurm_of(commands), clock=time.monotonic)
    assert [operators.include("carol") for _ in range(20)] == [False] * 20
    eventually(lambda: commands.asked == 1)
