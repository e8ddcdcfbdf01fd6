from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_builders import a_cluster, on, unusable

from ones.policies.model import Node, Placement, Shape, node_order
from ones.policies.placement import Room
from ones.policies.shapes import realisable, shapes_by_size, size_as_requested
from ones.policies.sizes import Sizes

EVERYWHERE = frozenset(f"n{i}" for i in range(1, 20))


def shapes(sizes: str, *gpus: int, **form: object) -> list[str]:
    return [str(shape) for shape in realisable(Sizes.parse(sizes), gpus, **form)]  # type: ignore[arg-type]


def test_six_gpus_on_nodes_of_four_are_two_by_three() -> None:
    assert shapes("6", 4, 4, 4, 4)[0] == "2x3"


def test_five_gpus_on_nodes_of_four_are_not_on_offer_beside_better_sizes() -> None:
    assert all(shape.gpus != 5 for shape in realisable(Sizes.parse("1-8"), [4] * 8))


def test_a_job_that_takes_only_five_gpus_gets_them_on_five_nodes() -> None:
    assert shapes("5", *[4] * 8) == ["5x1"]
    assert shapes("5", *[4] * 4) == []


def test_the_fewest_nodes_come_first_and_wider_shapes_follow() -> None:
    assert shapes("4", 4, 4, 4, 4) == ["1x4", "2x2"]


def test_a_form_that_fixes_gpus_per_node_leaves_only_its_multiples() -> None:
    assert shapes("1-8", 4, 4, 4, 4, per_node_fixed=2) == ["1x2", "2x2", "3x2", "4x2"]


def test_node_limits_of_the_form_are_kept() -> None:
    assert shapes("4", 4, 4, 4, 4, node_limits=(2, 3)) == ["2x2"]
    assert shapes("8,16", 4, 4, 4, 4, node_limits=(1, 2)) == ["2x4"]


def test_small_nodes_do_not_count_for_large_shapes() -> None:
    assert "2x4" not in shapes("8", 4, 2, 2, 2)


def test_the_size_as_requested_is_the_nearest_realisable_one_below() -> None:
    offered = realisable(Sizes.parse("2,4,8"), [4] * 4)
    assert size_as_requested(offered, 6) == 4
    assert size_as_requested(offered, 1) == 2
    assert size_as_requested((), 4) is None


def test_a_small_job_goes_where_it_leaves_the_smallest_gap() -> None:
    room = Room.of(a_cluster(), [on(n2=2), on(n3=1)])
    assert room.place(Shape(1, 2), EVERYWHERE) == on(n2=2)


def test_nodes_under_one_switch_are_preferred() -> None:
    nodes = [
        replace(node, switches=(leaf, "root"))
        for node, leaf in zip(a_cluster(), ("a", "b", "b", "a"), strict=True)
    ]
    room = Room.of(nodes, [on(n1=1)])
    assert room.place(Shape(2, 4), EVERYWHERE) == on(n2=4, n3=4)


def test_a_large_job_uses_as_few_switches_as_can_hold_it() -> None:
    leaves = "aabbbbcc"
    nodes = [Node(f"n{i + 1}", "v100", 4, (leaf, "root")) for i, leaf in enumerate(leaves)]
    placed = Room.of(nodes).place(Shape(5, 4), EVERYWHERE)
    assert placed is not None
    assert len({leaves[int(name[1:]) - 1] for name in placed.nodes}) == 2


def test_types_are_never_mixed() -> None:
    room = Room.of(a_cluster(types=("v100", "k80")), [on(n1=4), on(n3=4)])
    assert room.place(Shape(2, 4), EVERYWHERE) is None
    assert room.place(Shape(1, 4), EVERYWHERE, gpu_type="k80") == on(n4=4)


def test_a_job_keeps_its_nodes_where_they_are_free() -> None:
    room = Room.of(a_cluster())
    assert room.place(Shape(2, 2), EVERYWHERE, near=on(n2=2, n4=2)) == on(n2=2, n4=2)


def test_a_shrinking_job_stays_on_nodes_of_its_own() -> None:
    room = Room.of(a_cluster(), [on(n1=2)])
    assert room.place(Shape(1, 2), EVERYWHERE, near=on(n3=4, n4=4)) in (on(n3=2), on(n4=2))


def test_unusable_nodes_and_gpus_of_plain_jobs_are_not_free() -> None:
    first, second, *others = a_cluster()
    room = Room.of([unusable(first), replace(second, taken=2), *others])
    assert room.free == {"n2": 2, "n3": 4, "n4": 4}


@given(st.data())
def test_a_placement_is_free_uniform_of_one_type_and_allowed(data: st.DataObject) -> None:
    types = data.draw(st.sampled_from([("v100",), ("v100", "k80")]))
    nodes = a_cluster(6, 4, types=types)
    taken = data.draw(st.lists(st.integers(0, 4), min_size=6, max_size=6))
    nodes = [replace(node, taken=n) for node, n in zip(nodes, taken, strict=True)]
    allowed = frozenset(data.draw(st.sets(st.sampled_from([node.name for node in nodes]))))
    shape = Shape(data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4)))
    room = Room.of(nodes)
    placed = room.place(shape, allowed)
    holds = [n for n in nodes if n.name in allowed and room.free[n.name] >= shape.gpus_per_node]
    could = max((sum(n.gpu_type == kind for n in holds) for kind in types), default=0)
    assert (placed is not None) == (could >= shape.nodes)
    if placed is not None:
        assert placed.shape == shape
        assert room.fits(placed)
        assert allowed.issuperset(placed.nodes)
        assert len({node.gpu_type for node in nodes if node.name in placed.nodes}) == 1


def test_shapes_are_grouped_by_size() -> None:
    grouped = shapes_by_size(realisable(Sizes.parse("2,4"), [4, 4]))
    assert list(grouped) == [2, 4]
    assert grouped[4] == [Shape(1, 4), Shape(2, 2)]


def test_taking_and_giving_back_are_opposites() -> None:
    room = Room.of(a_cluster())
    before = dict(room.free)
    placement = Placement.of({"n1": 3, "n2": 3})
    room.take(placement)
    room.give_back(placement)
    assert room.free == before


def plainly_placed(
    nodes: Sequence[Node],
    free: Mapping[str, int],
    shape: Shape,
    allowed: frozenset[str],
    own: Placement | None,
) -> Placement | None:
    """By its definition, node by node, below two levels of switches."""
    order = {node.name: at for at, node in enumerate(node_order(nodes))}
    each = shape.gpus_per_node
    best: tuple[tuple[int, int], list[str]] | None = None
    for kind in dict.fromkeys(node.gpu_type for node in node_order(nodes)):
        hosts = {
            node.name: node.switches
            for node in node_order(nodes)
            if node.gpu_type == kind and node.name in allowed and free[node.name] >= each
        }
        if len(hosts) < shape.nodes:
            continue

        def gap(name: str) -> tuple[bool, int, int]:
            return own is None or name not in own.nodes, free[name] - each, order[name]

        below: dict[str, list[str]] = {}
        for name, switches in hosts.items():
            below.setdefault(switches[0], []).append(name)
        enough = [there for there in below.values() if len(there) >= shape.nodes]
        chosen = []
        if enough:
            group = min(
                enough, key=lambda there: (min(gap(name)[:2] for name in there), len(there))
            )
            chosen = sorted(group, key=gap)[: shape.nodes]
        else:
            while len(chosen) < shape.nodes:
                missing = shape.nodes - len(chosen)
                holding = [there for there in below.values() if len(there) >= missing]
                group = min(holding, key=len) if holding else max(below.values(), key=len)
                chosen += sorted(group, key=gap)[:missing]
                below = {at: there for at, there in below.items() if there is not group}
        switches = {hosts[name][0] for name in chosen}
        cost = len(switches), sum(free[name] for name in chosen)
        if best is None or cost < best[0]:
            best = cost, chosen
    return None if best is None else Placement.of(dict.fromkeys(best[1], each))


@pytest.mark.parametrize("seed", range(200))
def test_shapes_go_where_the_definition_says(seed: int) -> None:
    rng = Random(seed)
    kinds = ("a100", "v100")[: rng.randint(1, 2)]
    nodes = [
        Node(f"n{at}", rng.choice(kinds), 8, (f"leaf{at // 4}", "spine"), taken=rng.randint(0, 8))
        for at in range(1, 17)
    ]
    free = {node.name: node.gpus - node.taken for node in nodes}
    allowed = frozenset(rng.sample(sorted(free), rng.randint(4, 16)))
    shape = Shape(rng.choice((1, 1, 2, 3, 6)), rng.randint(1, 4))
    own = Placement.of(dict.fromkeys(rng.sample(sorted(free), 3), 8)) if seed % 3 else None
    placed = Room.of(nodes).place(shape, allowed, near=own)
    assert placed == plainly_placed(nodes, free, shape, allowed, own)
