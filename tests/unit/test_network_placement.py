from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, an_outlook, on

from ones.policies.invariants import validate
from ones.policies.model import JobId, Node, Shape
from ones.policies.network.best_fit import best_fit
from ones.policies.network.cost import least_cost, network_cost, score, used_nodes
from ones.policies.network.exact import NoPlacement, exact
from ones.policies.network.gangs import NOWHERE, Batch, Gang, faults, interleaved
from ones.policies.network.grouping import Genetics, grouping
from ones.policies.network.improve import exchanged, improved
from ones.policies.network.links import inside_costs
from ones.policies.network.placers import PLACERS, placing
from ones.policies.network.sensitivity import sensitivity
from ones.policies.network.subtree import by_arrival, packed, subtree
from ones.policies.network.topology import Distances, Topology
from ones.policies.placement import Room
from ones.policies.registry import make


def a_tree(leaves: str = "aabbccdd", *, gpus: int = 4) -> list[Node]:
    """Nodes n1, n2, ... a letter each for their leaf switch; leaves a, b are in one domain."""
    return [
        Node(f"n{at:02d}", "t4", gpus, (leaf, "first" if leaf in "ab" else "second", "root"))
        for at, leaf in enumerate(leaves, start=1)
    ]


def a_batch(*gangs: Gang, free: list[int] | None = None, leaves: str = "aabbccdd") -> Batch:
    topology = Topology.of(a_tree(leaves))
    return Batch(topology, np.array([4] * len(leaves) if free is None else free), gangs)


def tasks(number: int, gpus: int = 1, **more: object) -> Gang:
    return Gang(tasks=(gpus,) * number, **more)  # type: ignore[arg-type]


@st.composite
def batches(draw: st.DrawFn, *, most: int = 4, nodes: int = 6) -> Batch:
    leaves = "".join(sorted(draw(st.text("abcd", min_size=2, max_size=nodes))))
    free = draw(st.lists(st.integers(0, 4), min_size=len(leaves), max_size=len(leaves)))
    gangs = []
    for _ in range(draw(st.integers(1, most))):
        sizes = draw(st.sampled_from([(1,), (1, 1), (1, 1, 1), (2, 2), (1, 1, 1, 1, 1), (2, 1)]))
        gangs.append(
            Gang(
                tasks=sizes,
                servers=draw(st.integers(0, min(1, len(sizes) - 1))),
                bandwidth=draw(st.sampled_from([0.0, 1.0, 8.0])),
                tree=draw(st.booleans()),
                apart=draw(st.booleans()),
                where=np.array(
                    draw(st.lists(st.booleans(), min_size=len(leaves), max_size=len(leaves)))
                )
                if draw(st.booleans())
                else None,
            )
        )
    return a_batch(*gangs, free=free, leaves=leaves)


def by_hand(batch: Batch, gang: int, sites: tuple[int, ...]) -> float:
    """The cost of one gang as its definition has it: a ring or chain in the best of all orders."""
    one, topology = batch.gangs[gang], batch.topology

    def far(u: int, v: int) -> float:
        return float(topology.distance(np.array(u), np.array(v)))

    if one.servers:
        pairs = product(sites[: one.servers], sites[one.servers :])
        return one.bandwidth * sum(far(u, v) for u, v in pairs)
    costs = []
    for order in permutations(sites):
        hops = [far(u, v) for u, v in pairwise(order)]
        closing = far(order[-1], order[0]) if one.pattern == "ring" and len(order) > 1 else 0.0
        costs.append(sum(hops) + closing)
    return one.bandwidth * min(costs)


# The tree


def test_distances_are_liquids_by_the_lowest_common_switch() -> None:
    topology = Topology.of(a_tree())
    n1 = topology.index["n01"]
    far = [
        float(topology.distance(np.array(n1), np.array(topology.index[n]))) for n in topology.index
    ]
    by_name = dict(zip(topology.index, far, strict=True))
    assert [by_name[name] for name in ("n01", "n02", "n03", "n05")] == [0, 1, 4, 40]


def test_a_cluster_without_switches_is_one_leaf() -> None:
    topology = Topology.of([Node("a", "t4", 4), Node("b", "t4", 4)])
    assert topology.distance(np.array(0), np.array(1)) == 1


def test_trees_without_a_common_root_are_as_far_apart_as_can_be() -> None:
    topology = Topology.of([Node("a", "t4", 4, ("s1",)), Node("b", "t4", 4, ("s2",))])
    assert topology.distance(np.array(0), np.array(1)) == 4


def test_a_node_with_fewer_switches_hangs_from_its_last_one() -> None:
    topology = Topology.of(
        [Node("a", "t4", 4, ("s1", "root")), Node("b", "t4", 4, ("s2", "mid", "root"))]
    )
    assert topology.distance(np.array(0), np.array(1)) == 40


def test_switches_of_the_same_name_under_different_parents_are_different() -> None:
    topology = Topology.of(
        [Node("a", "t4", 4, ("leaf", "west", "r")), Node("b", "t4", 4, ("leaf", "east", "r"))]
    )
    assert topology.distance(np.array(0), np.array(1)) == 40


def test_distances_that_shrink_on_the_way_up_are_refused() -> None:
    with pytest.raises(ValueError, match="do not grow"):
        Distances(switches=(4.0, 1.0))
    with pytest.raises(ValueError, match="do not grow"):
        Distances(linked=1.0)


# NVLink


def test_linked_gpus_cost_less_than_others_of_a_node() -> None:
    pairs = frozenset({(0, 1), (2, 3)})
    assert inside_costs(4, pairs, near=0.0, far=1.0).tolist() == [0, 0, 0, 1, 1]
    assert inside_costs(4, frozenset(), near=0.0, far=1.0).tolist() == [0, 0, 1, 2, 3]


def test_a_pair_goes_to_the_node_whose_gpus_are_linked() -> None:
    links = (frozenset[tuple[int, int]](), frozenset({(0, 1)}))
    nodes = [replace(node, links=pairs) for node, pairs in zip(a_tree("aa"), links, strict=True)]
    topology = Topology.of(nodes, Distances(node=0.5))
    batch = Batch(topology, np.array([2, 4]), (tasks(2),))
    sites = subtree(batch)
    assert sites.tolist() == [1, 1]
    assert network_cost(batch, sites)[0] < network_cost(batch, np.array([0, 0]))[0]


def test_a_link_to_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="NVLink pair 0-4"):
        inside_costs(4, frozenset({(0, 4)}), near=0.0, far=1.0)


# Costs


@given(batches(most=2), st.data())
def test_the_cost_is_what_its_definition_says(batch: Batch, data: st.DataObject) -> None:
    nodes = st.integers(0, len(batch.free) - 1)
    count = len(batch.gang_of)
    sites = np.array(data.draw(st.lists(nodes, min_size=count, max_size=count)))
    for number, cost in enumerate(network_cost(batch, sites)):
        where = tuple(sites[batch.tasks_of(number)].tolist())
        assert cost == pytest.approx(by_hand(batch, number, where))


@given(batches(), st.integers(0, 99))
def test_many_placements_cost_what_each_costs_alone(batch: Batch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    many = np.stack([PLACERS["random"](batch, rng) for _ in range(3)])
    assert np.allclose(network_cost(batch, many), [network_cost(batch, one) for one in many])
    assert np.allclose(score(batch, many), [score(batch, one) for one in many])


def test_used_nodes_leave_out_who_is_nowhere() -> None:
    assert used_nodes(np.array([3, 3, NOWHERE, 5])) == 2


def test_servers_and_workers_take_turns_in_the_ratio_of_their_counts() -> None:
    assert list(interleaved(tasks(6, servers=2))) == [2, 0, 3, 4, 1, 5]


# Placements


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from(list(PLACERS)), st.integers(0, 9))
def test_every_placement_can_be_carried_out(batch: Batch, name: str, seed: int) -> None:
    sites = placing(name)(batch, np.random.default_rng(seed))
    assert not list(faults(batch, sites))


@settings(deadline=None, max_examples=30)
@given(batches(), st.sampled_from(list(PLACERS)))
def test_the_same_seed_gives_the_same_placement(batch: Batch, name: str) -> None:
    first, second = (placing(name)(batch, np.random.default_rng(3)) for _ in range(2))
    assert first.tolist() == second.tolist()


@settings(deadline=None)
@given(batches())
def test_the_batch_packer_is_never_worse_than_best_fit_or_immediate_mode(batch: Batch) -> None:
    def worth(sites: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, float]:
        return int((sites == NOWHERE).sum()), float(score(batch, sites))

    found = worth(packed(batch))
    assert found <= worth(best_fit(batch))
    assert found <= worth(subtree(batch, order=by_arrival))


@settings(deadline=None, max_examples=25)
@given(batches())
def test_a_seeded_search_is_never_worse_than_its_seed(batch: Batch) -> None:
    seed = subtree(batch)
    if (seed == NOWHERE).any():
        return
    found = grouping(batch, np.random.default_rng(0), Genetics(seeds="subtree", work=5000))
    assert score(batch, found) <= score(batch, seed) + 1e-9


@settings(deadline=None, max_examples=40)
@given(batches(most=2, nodes=4))
def test_the_exact_placement_is_the_best_of_all(batch: Batch) -> None:
    count = len(batch.gang_of)
    scores = [
        float(score(batch, np.array(sites)))
        for sites in product(range(len(batch.free)), repeat=count)
        if not list(faults(batch, np.array(sites)))
    ]
    if not scores:
        with pytest.raises(NoPlacement):
            exact(batch)
        return
    sites, least = exact(batch)
    assert not list(faults(batch, sites))
    assert score(batch, sites) == pytest.approx(least, abs=1e-6)
    assert least == pytest.approx(min(scores), abs=1e-6)


@settings(deadline=None, max_examples=15)
@given(batches(most=3, nodes=5))
def test_nobody_beats_the_exact_placement(batch: Batch) -> None:
    try:
        _, least = exact(batch)
    except NoPlacement:
        return
    for name in PLACERS:
        sites = placing(name)(batch, np.random.default_rng(0))
        if (sites != NOWHERE).all():
            assert score(batch, sites) >= least - 1e-6


@settings(deadline=None)
@given(batches(), st.sampled_from(["random", "spread", "best-fit", "slurm"]))
def test_an_improved_placement_is_sound_keeps_everybody_and_costs_no_more(
    batch: Batch, name: str
) -> None:
    before = placing(name)(batch, _chance())
    after = improved(batch, before)
    assert not list(faults(batch, after))
    assert ((after == NOWHERE) == (before == NOWHERE)).all()
    assert network_cost(batch, after).sum() <= network_cost(batch, before).sum() + 1e-9


@given(batches(), st.integers(0, 9))
def test_no_placement_costs_less_than_the_least(batch: Batch, seed: int) -> None:
    sites = PLACERS["random"](batch, np.random.default_rng(seed))
    placed = np.array([(sites[batch.tasks_of(n)] >= 0).all() for n in range(len(batch.gangs))])
    assert (network_cost(batch, sites) >= least_cost(batch) * placed - 1e-9).all()


def test_of_two_gangs_alike_the_louder_gets_the_better_place() -> None:
    quiet, loud = tasks(2, bandwidth=1.0), tasks(2, bandwidth=8.0)
    batch = a_batch(quiet, loud, free=[2, 1, 1, 0], leaves="aabb")
    assert exchanged(batch, np.array([0, 0, 1, 2])).tolist() == [1, 2, 0, 0]


def test_a_gang_goes_under_the_lowest_switch_that_holds_all_of_it() -> None:
    batch = a_batch(tasks(6), free=[4, 1, 2, 1, 3, 3, 4, 1])
    used = {batch.topology.nodes[node].switches[0] for node in subtree(batch)}
    assert used == {"c"}


def test_who_talks_most_gets_the_node_that_holds_it_whole() -> None:
    quiet, loud = tasks(3, bandwidth=1.0), tasks(3, bandwidth=8.0)
    batch = a_batch(quiet, loud, free=[3, 1, 1, 1], leaves="aabb")
    assert len(set(subtree(batch)[3:].tolist())) == 1
    assert len(set(subtree(batch, order=by_arrival)[:3].tolist())) == 1


def test_a_server_sits_with_most_of_its_workers() -> None:
    batch = a_batch(tasks(5, servers=1), free=[2, 3], leaves="aa")
    sites = subtree(batch)
    assert (sites == sites[0]).sum() == 3


def test_best_fit_is_blind_to_the_rest_of_the_gang() -> None:
    gang = tasks(3, servers=1, bandwidth=8.0)
    batch = a_batch(gang, free=[2, 0, 1, 0, 3, 0, 0, 0])
    assert score(batch, best_fit(batch)) > score(batch, subtree(batch))


def test_slurm_starts_from_the_leaf_with_the_fewest_nodes_that_holds_the_job() -> None:
    batch = a_batch(tasks(4), free=[2, 2, 4, 0, 0, 0, 0, 0])
    names = {batch.topology.nodes[node].name for node in PLACERS["slurm"](batch, _chance())}
    assert names == {"n03"}


def test_slurm_fills_the_nodes_of_a_leaf_in_their_order() -> None:
    batch = a_batch(tasks(3), free=[2, 3], leaves="aa")
    assert PLACERS["slurm"](batch, _chance()).tolist() == [0, 0, 1]


def test_the_genetic_search_leaves_the_youngest_out_where_not_all_fit() -> None:
    batch = a_batch(tasks(4), tasks(4), tasks(4), free=[4, 4], leaves="aa")
    sites = grouping(batch, _chance(), Genetics(work=5000))
    assert (sites[:8] != NOWHERE).all()
    assert (sites[8:] == NOWHERE).all()


def test_an_unknown_placement_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no placement 'best'; choose one of: subtree,"):
        placing("best")


def _chance() -> np.random.Generator:
    return np.random.default_rng(0)


# Room


def test_a_job_wider_than_any_domain_takes_as_few_domains_as_hold_it() -> None:
    domains = {"a": "d1", "b": "d2", "c": "d2", "e": "d3", "f": "d3"}
    nodes = [
        Node(f"n{at:02d}", "t4", 4, (leaf, domains[leaf], "root"))
        for at, leaf in enumerate("aaabbcceeff")
    ]
    placed = Room.of(nodes).place(Shape(8, 4), frozenset(node.name for node in nodes))
    assert placed is not None
    assert set(placed.nodes) == {f"n{at:02d}" for at in range(3, 11)}


# Sensitivity


def test_a_job_alone_on_its_gpu_has_nobody_to_talk_to() -> None:
    assert sensitivity(a_job(1), an_outlook(), "v100", nodes=1, gpus=1) == 0.0


def test_what_spreading_costs_is_what_the_speed_says() -> None:
    # 0.55 + 0.1 of a sample's time apart, 0.55 together.
    lost = sensitivity(a_job(1, batch=1), an_outlook(), "v100", nodes=1, gpus=2)
    assert lost == pytest.approx(0.1 / 0.55)


# The policy


@pytest.mark.parametrize("mode", ["batch", "immediate"])
@pytest.mark.parametrize("placement", list(PLACERS))
def test_liquid_plans_soundly_with_every_placement(mode: str, placement: str) -> None:
    nodes = a_tree()
    jobs = [
        a_job(number, "1-16", requested=size, nodes=nodes, uneven=uneven)
        for number, (size, uneven) in enumerate(
            [(8, False), (3, True), (2, False), (6, True), (4, False), (40, False)], start=1
        )
    ]
    problem = a_problem(jobs, nodes)
    policy = make(f"liquid:mode={mode}:placement={placement}")
    plan, _ = policy.plan(problem, None, _chance())
    validate(problem, plan)
    assert {job: given.placement.gpus for job, given in plan.assignments.items()} == {
        JobId(number): size for number, size in enumerate([8, 3, 2, 6, 4], start=1)
    } | ({JobId(6): 16} if JobId(6) in plan.assignments else {})


def test_nobody_overtakes_a_job_that_waits() -> None:
    nodes = a_cluster()
    jobs = [a_job(1, "12", requested=12), a_job(2, "8", requested=8), a_job(3, "1", requested=1)]
    plan, _ = make("liquid").plan(a_problem(jobs, nodes), None, _chance())
    assert set(plan.assignments) == {1}
    assert plan.idle[JobId(3)] == "job 2 is ahead of it and waits for its GPUs"


def test_a_job_that_never_fits_blocks_nobody() -> None:
    nodes = a_cluster(2)
    jobs = [
        a_job(1, "16", requested=16, nodes=a_cluster()),
        a_job(2, "4", requested=4, nodes=nodes),
    ]
    plan, _ = make("liquid").plan(a_problem(jobs, nodes), None, _chance())
    assert set(plan.assignments) == {2}
    assert "can't hold its" in plan.idle[JobId(1)]


def test_running_jobs_run_to_their_end() -> None:
    held = a_job(1, placement=on(n1=2))
    plan, _ = make("liquid").plan(a_problem([held]), None, _chance())
    assert plan.assignments[held.id].placement == on(n1=2)


def test_the_account_with_the_fewest_gpus_is_next_where_that_is_asked_for() -> None:
    running = a_job(1, "8", requested=8, placement=on(n1=4, n2=4))
    rich = a_job(2, "8", requested=8)
    poor = a_job(3, "8", requested=8, account="other")
    problem = a_problem([running, rich, poor])
    assert 2 in make("liquid").plan(problem, None, _chance())[0].assignments
    assert 3 in make("liquid:order=fair").plan(problem, None, _chance())[0].assignments


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("liquid:mode=later", "its mode 'later' is none of: batch, immediate"),
        ("liquid:order=random", "its order 'random' is none of: priority, arrival, fair"),
        ("liquid:placement=best", "no placement 'best'"),
        ("liquid:leaf=5", "do not grow"),
    ],
)
def test_settings_that_cannot_be_are_named(name: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        make(name)
