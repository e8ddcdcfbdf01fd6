"""Slices of a sharded state find their way from any set of workers to any other."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ones.slurm_ext.runtime.live.reshard import (
    Chosen,
    Cut,
    Have,
    Held,
    Part,
    Place,
    choose,
    least_bytes,
    moves,
    neighbours,
)

PARTS = st.lists(
    st.builds(Part, rows=st.integers(1, 40), row=st.integers(1, 9), whole=st.booleans()),
    min_size=1,
    max_size=6,
)


@st.composite
def cuts(draw: st.DrawFn, places: list[Place]) -> dict[Place, Cut]:
    """Slices over these workers: so many copies of each."""
    copies = draw(st.sampled_from([n for n in range(1, len(places) + 1) if not len(places) % n]))
    of = len(places) // copies
    return {place: Cut(number % of, of) for number, place in enumerate(places)}


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[Place, tuple[Cut, ...]], dict[Place, Cut]]:
    """Any growth, shrinking, or both at once; some have another's old slice beside their own."""
    before = draw(st.lists(st.integers(0, 11), min_size=1, max_size=8, unique=True))
    after = draw(st.lists(st.integers(0, 11), min_size=1, max_size=8, unique=True))
    own, new = draw(cuts(before)), draw(cuts(after))
    others = draw(st.lists(st.sampled_from(sorted(set(own.values()))), max_size=len(before)))
    old = {place: {cut} for place, cut in own.items()}
    for place, cut in zip(before, others, strict=False):
        old[place].add(cut)
    return {place: tuple(sorted(found)) for place, found in old.items()}, new


def rows_of(part: Part, cuts: tuple[Cut, ...]) -> set[int]:
    if part.whole:
        return set(range(part.rows))
    return {row for cut in cuts for row in range(*cut.rows(part.rows))}


@given(PARTS, changes())
def test_after_all_moves_every_worker_has_its_slice_and_was_sent_nothing_twice(
    parts: list[Part], change: tuple[dict[Place, tuple[Cut, ...]], dict[Place, Cut]]
) -> None:
    old, new = change
    sent: Counter[tuple[int, Place, int]] = Counter()
    for move in moves(parts, old, new):
        rows = set(range(move.begin, move.end))
        part = parts[move.part]
        assert any(rows <= rows_of(part, (cut,)) for cut in old[move.source])
        assert move.source != move.target
        sent.update((move.part, move.target, row) for row in rows)
    needed = {
        (number, place, row)
        for number, part in enumerate(parts)
        for place, cut in new.items()
        for row in rows_of(part, (cut,))
        if place not in old or row not in rows_of(part, old[place])
    }
    assert set(sent) == needed
    assert set(sent.values()) <= {1}
    assert sum(parts[number].row for number, _, _ in sent) == least_bytes(parts, old, new)


@given(PARTS, changes())
def test_everybody_plans_the_same(
    parts: list[Part], change: tuple[dict[Place, tuple[Cut, ...]], dict[Place, Cut]]
) -> None:
    old, new = change
    backwards = dict(reversed(old.items())), dict(reversed(new.items()))
    assert list(moves(parts, old, new)) == list(moves(parts, *backwards))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_everybody_keeps_the_slice_of_one_on_another_node_where_that_can_be(
    nodes: list[int],
) -> None:
    kept = neighbours(nodes)
    assert sorted(kept) == list(range(len(nodes)))
    if len(nodes) > 1:
        assert all(rank != other for rank, other in enumerate(kept))
    if 2 * max(Counter(nodes).values()) <= len(nodes):
        assert all(nodes[rank] != nodes[other] for rank, other in enumerate(kept))


@given(st.integers(1, 50), st.integers(1, 12))
def test_slices_are_those_of_torch_chunk(rows: int, of: int) -> None:
    slices = [Cut(index, of).rows(rows) for index in range(of)]
    assert [row for begin, end in slices for row in range(begin, end)] == list(range(rows))
    step = -(-rows // of)
    assert all(end - begin <= step for begin, end in slices)
    assert all(begin % step == 0 for begin, end in slices if begin < end)


def test_of_two_copies_each_sends_a_half() -> None:
    parts = [Part(rows=100, row=4) for _ in range(8)]
    old = {0: (Cut(0, 1),), 1: (Cut(0, 1),)}
    load: Counter[Place] = Counter()
    for move in moves(parts, old, {0: Cut(0, 1), 1: Cut(0, 1), 2: Cut(0, 1)}):
        load[move.source] += move.end - move.begin
    assert load == {0: 400, 1: 400}


def test_the_latest_state_of_which_every_slice_is_there_is_chosen() -> None:
    first, second = Held([Have(64, 3, Cut(0, 2))]), Held([Have(64, 3, Cut(1, 2))])
    assert choose([Held(), first]) is None
    assert choose([second, first, Held()]) == Chosen(64, 3, {0: (Cut(1, 2),), 1: (Cut(0, 2),)})


def test_who_has_the_step_still_to_do_does_it_where_another_has_done_it() -> None:
    done = Held([Have(80, 3, Cut(0, 2))])
    behind = Held([Have(64, 3, Cut(1, 2))], reach=80)
    chosen = choose([done, behind])
    assert chosen is not None
    assert chosen.committed == 80
    both = choose([Held([Have(64, 3, Cut(0, 2))], reach=80), behind])
    assert both is not None
    assert both.committed == 64


def test_slices_of_the_new_generation_count_where_the_old_ones_are_gone() -> None:
    crossed = Held([Have(64, 4, Cut(0, 2))])
    between = Held([Have(64, 3, Cut(1, 3)), Have(64, 4, Cut(1, 2))])
    chosen = choose([crossed, between])
    assert chosen is not None
    assert (chosen.generation, chosen.cuts) == (4, {0: (Cut(0, 2),), 1: (Cut(1, 2),)})
    assert choose([between, Held([Have(64, 3, Cut(0, 3))])]) is None


def test_a_lost_slice_is_taken_from_the_neighbour_and_all_go_back_to_when_it_was_copied() -> None:
    def worker(index: int, kept: int) -> Held:
        own = [Have(96, 2, Cut(index, 3))]
        copies = [Have(64, 2, Cut(each, 3), present=False) for each in (index, kept)]
        return Held([*own, *copies])

    chosen = choose([worker(0, 1), worker(2, 0)])
    assert chosen is not None
    assert chosen.committed == 64
    assert chosen.cuts == {0: (Cut(0, 3), Cut(1, 3)), 1: (Cut(0, 3), Cut(2, 3))}
