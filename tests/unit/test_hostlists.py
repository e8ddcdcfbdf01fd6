from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.slurm_ext.hostlists import expand, fold


@given(st.sets(st.integers(0, 300)))
def test_folding_and_expanding_keep_the_names(numbers: set[int]) -> None:
    names = {f"n{number}" for number in numbers} | {
        f"gpu-r{number % 3}n{number}" for number in numbers
    }
    assert set(expand(fold(names))) == names


def test_runs_of_numbers_are_folded() -> None:
    assert fold(["n3", "n1", "n2", "m7"]) == "m7,n[1-3]"
    assert fold([]) == ""


def test_only_one_bracket_is_written() -> None:
    assert fold(["r1n1", "r1n2", "r2n1", "r2n2"]) == "r1n[1-2],r2n[1-2]"


def test_names_come_back_in_the_order_written() -> None:
    assert expand("n[3-4],a1,n10") == ("n3", "n4", "a1", "n10")


def test_text_that_is_no_hostlist_is_refused() -> None:
    with pytest.raises(ValueError, match="not a hostlist"):
        expand("n[1-")
