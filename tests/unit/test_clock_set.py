"""A clock that is set while onesd runs, as where a host starts before it knows the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from policy_builders import a_job, a_problem

from ones.daemon.onesd.forecast.present import Diary
from ones.daemon.onesd.outcome import NOTHING, Round
from ones.daemon.onesd.page.history import History


def test_what_elasticity_saved_is_no_matter_of_the_clock() -> None:
    history = History()
    rigid: Any = SimpleNamespace(requests={"1": 2, "2": 1}, through=frozenset(), claims={})
    for at in (1000.0, 1030.0, 1060.0 + 30 * 86400, 1090.0 + 30 * 86400, 1120.0):
        history.take(
            Round(number=1, at=at, seconds=1.0, outcome="ok", snapshot=NOTHING, rigid=rigid)
        )
    assert history.saved == 2 * (30.0 + 30.0)


def test_who_comes_after_the_clock_was_set_back_has_come() -> None:
    diary = Diary()

    def come(submitted: float, now: float) -> int:
        problem = a_problem([a_job(1, submitted=submitted)], now=now)
        question: Any = SimpleNamespace(problem=problem, plain=())
        return len(diary.take(question).came)

    assert come(submitted=5e6, now=5e6 + 1) == 0  # it was there
    assert come(submitted=900.0, now=1000.0) == 0
    assert come(submitted=1010.0, now=1020.0) == 1
