from __future__ import annotations

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from ones.slurm_ext.hostlists import expand, fold


@given(st.sets(st.integers(0, 300)))
def test_folding_and_expanding_keep_the_names(numbers: set[int]) -> None:
    names = {f"n{number}" for number in numbers} | {
        f"gpu-r{number % 3}n{number}{end}" for number in numbers for end in ("", "-ib")
    }
    assert set(expand(fold(names))) == names


@pytest.mark.parametrize("first", ["0000000001", "202401010001", "900000000000000000"])
def test_long_numbers_in_names_are_kept(first: str) -> None:
    names = [f"node{int(first) + more:0{len(first)}d}" for more in range(3)]
    assert set(expand(fold(names))) == set(names)


def test_a_range_of_long_numbers_is_counted_before_it_is_expanded() -> None:
    with pytest.raises(ValueError, match="more than 65536 names"):
        expand("n[100000000000000000-999999999999999999]")
    assert expand("n[100000000000000000-999999999999999999/899999999999999999]") == (
        "n100000000000000000",
        "n999999999999999999",
    )


def test_runs_of_numbers_are_folded() -> None:
    assert fold(["n3", "n1", "n2", "m7"]) == "m7,n[1-3]"
    assert fold([]) == ""


def test_only_one_bracket_is_written() -> None:
    assert fold(["r1n1", "r1n2", "r2n1", "r2n2"]) == "r1n[1-2],r2n[1-2]"


def test_names_that_do_not_end_in_a_digit_are_written_one_by_one() -> None:
    """Slurm takes nothing behind a bracket in a NodeList or a ReqNodeList."""
    assert fold(["gpu2-ib", "gpu1-ib", "gpu1-ib"]) == "gpu1-ib,gpu2-ib"
    assert (
        fold(["n2", "n1", "node2.cluster", "node1.cluster"]) == "n[1-2],node1.cluster,node2.cluster"
    )
    assert expand("gpu[1-2]-ib") == expand("gpu1-ib,gpu2-ib") == ("gpu1-ib", "gpu2-ib")


def test_names_come_back_in_the_order_written() -> None:
    assert expand("n[3-4],a1,n10") == ("n3", "n4", "a1", "n10")


def test_digits_before_a_bracket_are_no_part_of_its_numbers() -> None:
    assert expand("n1[8-12]") == ("n18", "n19", "n110", "n111", "n112")
    assert expand("n1[8,10]x2") == ("n18x2", "n110x2")
    assert expand("n[08-10]5[1-2]") == ("n0851", "n0852", "n0951", "n0952", "n1051", "n1052")


@given(st.integers(0, 99), st.integers(0, 30), st.integers(1, 3))
def test_ranges_stand_for_what_clustershell_reads_in_them(first: int, more: int, step: int) -> None:
    for written in (f"{first}-{first + more}", f"{first:03d}-{first + more:03d}/{step}"):
        ours = expand(f"rack-[{written}]-gpu")
        assert set(ours) == set(NodeSet(f"rack-[{written}]-gpu", resolver=RESOLVER_NOGROUP))


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", "n[1-3/0]", "n[]", "n[1-2", "n]1[", "n[[1]]"])
def test_text_that_is_no_hostlist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a hostlist"):
        expand(text)
