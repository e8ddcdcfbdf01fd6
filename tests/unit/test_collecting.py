"""When onesd's garbage collector goes through all that it remembers."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ones.daemon.onesd.collecting import EVERY, Collecting


class Cycle:
    """It refers to itself, so that only the collector frees it."""

    freed = 0

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        Cycle.freed += 1


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    Cycle.freed = 0
    yield
    gc.unfreeze()
    gc.collect()


def test_what_a_round_leaves_is_not_gone_through_before_an_hour_has_passed() -> None:
    now = 1000.0
    collecting = Collecting(lambda: now)
    with collecting.paused():
        Cycle()
    gc.collect()
    assert Cycle.freed == 0
    now += EVERY
    with collecting.paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert Cycle.freed == 1


def test_a_round_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ValueError, match="a bug"), Collecting(lambda: 0.0).paused():
        raise ValueError("a bug")
    assert gc.isenabled()
