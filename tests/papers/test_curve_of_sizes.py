"""The powers of the curve: what of a cluster grew, and how much dearer it became."""

from __future__ import annotations

import pytest
from curve_of_sizes import CURVES, growth, power


def test_a_size_grows_by_what_grew_more() -> None:
    before = {"nodes": 10, "jobs": 100}
    assert growth(before, {"nodes": 20, "jobs": 500}) == 5.0
    assert growth(before, {"nodes": 40, "jobs": 100}) == 4.0


def test_the_power_is_two_where_twice_the_size_costs_four_times_as_much() -> None:
    assert power(1.0, 4.0, 2.0) == pytest.approx(2.0)
    assert power(1.0, 10.0, 10.0) == pytest.approx(1.0)
    assert power(1.0, 1.0, 10.0) == 0.0


def test_of_milliseconds_and_of_what_did_not_grow_there_is_none() -> None:
    assert power(0.0, 1.0, 2.0) is None
    assert power(1.0, 2.0, 1.0) is None


def test_along_each_curve_only_what_it_names_grows() -> None:
    def of(curve: str) -> tuple[list[int], list[int]]:
        nodes, jobs = zip(*CURVES[curve], strict=True)
        return list(nodes), list(jobs)

    for nodes, jobs in (of("both"), of("jobs"), of("nodes")):
        assert nodes == sorted(nodes) and jobs == sorted(jobs)
    assert len(set(of("jobs")[0])) == 1
    assert len(set(of("nodes")[1])) == 1
