"""Rests after failures in a row: they grow to a bound, however many failures there are."""

from __future__ import annotations

import pytest

from ones.daemon.pace import doubled


@pytest.mark.parametrize(
    ("times", "rest"), [(0, 5.0), (1, 10.0), (3, 40.0), (6, 300.0), (1023, 300.0), (10**9, 300.0)]
)
def test_a_rest_is_doubled_up_to_its_bound(times: int, rest: float) -> None:
    assert doubled(5.0, times, most=300.0) == rest
