from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.policies.sizes import Sizes, in_gpus


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("4", (4,)),
        ("2-5", (2, 3, 4, 5)),
        ("4-16:4", (4, 8, 12, 16)),
        ("1,2,4,8", (1, 2, 4, 8)),
        ("1,4-6,5", (1, 4, 5, 6)),
        ("3-3", (3,)),
        ("1-4:2", (1, 3)),
    ],
)
def test_sizes_are_read_as_slurm_writes_node_counts(text: str, counts: tuple[int, ...]) -> None:
    assert Sizes.parse(text).counts == counts


@pytest.mark.parametrize(
    "text",
    ["", "x", "8-2", "0-4", "0", "2-16:0", "1,,2", "-4", "2-", "1 2", "99999999", "१", "4\n"],
)
def test_a_bad_size_is_refused_in_one_line_that_names_it(text: str) -> None:
    with pytest.raises(ValueError, match="size") as refusal:
        Sizes.parse(text)
    assert "\n" not in str(refusal.value).replace(text, "")


def test_a_hostile_string_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ValueError, match="256"):
        Sizes.parse("1," * 200 + "1")


def test_a_backward_range_shows_the_right_way_round() -> None:
    with pytest.raises(ValueError, match="use 2-8"):
        Sizes.parse("8-2")


def test_membership_and_ends_are_those_of_the_counts() -> None:
    sizes = Sizes.parse("4-16:4")
    assert 8 in sizes
    assert 6 not in sizes
    assert (sizes.least, sizes.most) == (4, 16)
    assert list(sizes) == [4, 8, 12, 16]


@given(st.sets(st.integers(1, 300), min_size=1, max_size=12))
def test_the_shortest_form_reads_back_to_the_same_sizes(counts: set[int]) -> None:
    sizes = Sizes(tuple(sorted(counts)))
    assert Sizes.parse(str(sizes)) == sizes


def test_one_gpu_is_no_plural() -> None:
    assert [in_gpus(1), in_gpus(2)] == ["1 GPU", "2 GPUs"]
