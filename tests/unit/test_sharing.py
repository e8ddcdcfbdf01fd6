"""Two jobs on one GPU: who may, who is put beside whom, and what a plan and a guard make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gavel_rounds_rig import LIMITS
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, an_outlook, on

from ones.estimator.interference import Alone, Interference, Measured
from ones.estimator.pairing import Rules, Sharer, against, pairs_of
from ones.policies.guard import History, Limits, check
from ones.policies.invariants import PlanError, validate
from ones.policies.liquid import Liquid
from ones.policies.model import Assignment, Job, JobId, Node, Pairs, Plan, Policy, Problem
from ones.policies.moves import reconcile
from ones.policies.registry import Site, make
from ones.policies.round import Decided, decide
from ones.policies.sharing import occupied, pair_up, riders

ANY = frozenset({"n1", "n2"})
CARDS = {"n1": 16384.0, "n2": 16384.0}


def sharer(id_: int, **more: object) -> Sharer:
    busy = more.pop("busy", 0.4)
    model = str(more.pop("model", f"model{id_}"))
    fields = {"user": "ada", "account": "lab", "memory": 4000.0, "nodes": ANY}
    alone = Alone(model=model, busy=busy)  # type: ignore[arg-type]
    return Sharer(job=JobId(id_), alone=alone, **(fields | more))  # type: ignore[arg-type]


def speeds(*pairs: tuple[int, int], each: float = 0.9) -> Pairs:
    return {(JobId(one), JobId(other)): (each, each) for one, other in pairs}


def sharing_nodes(nodes: int = 1, gpus: int = 1) -> list[Node]:
    return [replace(node, shares=True) for node in a_cluster(nodes, gpus)]


def one_gpu(id_: int, nodes: list[Node], **more: object) -> Job:
    return a_job(id_, "1", requested=1, nodes=nodes, **more)


@pytest.mark.parametrize(
    ("other", "rules", "reason"),
    [
        ({}, Rules(), ""),
        ({"memory": 12000.0}, Rules(), "16000 MiB of 14746 MiB"),
        ({"memory": 12000.0}, Rules(spare_memory=0.0), ""),
        ({"busy": 0.7}, Rules(), "busy for 110%"),
        ({"busy": 0.7}, Rules(most_busy=1.3), ""),
        ({"memory": None}, Rules(), "nobody knows how much GPU memory it needs (job 2)"),
        ({"busy": None}, Rules(), "nobody knows how busy"),
        ({"user": "bob"}, Rules(between="user"), "different users"),
        ({"user": "bob"}, Rules(between="account"), ""),
        ({"account": "else"}, Rules(between="account"), "different accounts"),
        ({"nodes": frozenset({"n9"})}, Rules(), "no node"),
    ],
)
def test_who_may_sit_with_whom(other: dict[str, object], rules: Rules, reason: str) -> None:
    found = against(sharer(1), sharer(2, **other), CARDS, rules)
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_pair_that_was_slow_is_not_expected_to_be_fast_again() -> None:
    both = sharer(1), sharer(2)
    model = Interference()
    assert pairs_of(both, CARDS, model, Rules()) == {(1, 2): (1.0, 1.0)}
    for _ in range(3):
        model.learn(Measured(first=both[0].alone, second=both[1].alone, speeds=(0.3, 0.4)))
    assert pairs_of(both, CARDS, model, Rules()) == {}
    # Even where no speed is too low, two that do less than one alone are no pair.
    assert pairs_of(both, CARDS, model, Rules(least_speed=0.1)) == {}


def test_speeds_stand_in_the_order_of_the_jobs_whoever_is_asked_first() -> None:
    slow, fast = sharer(1), sharer(2)
    model = Interference()
    for _ in range(5):
        model.learn(Measured(first=slow.alone, second=fast.alone, speeds=(0.65, 0.95)))
    for both in ((slow, fast), (fast, slow)):
        first, second = pairs_of(both, CARDS, model, Rules())[1, 2]
        assert first < 0.75 < second


def test_those_who_were_parted_do_not_meet_again() -> None:
    both = sharer(1, model="b"), sharer(2, model="a")
    assert pairs_of(both, CARDS, Interference(), Rules(), parted={("a", "b")}) == {}


def test_a_gpu_that_two_jobs_share_counts_once() -> None:
    held = {JobId(1): on(n1=1), JobId(2): on(n1=1), JobId(3): on(n1=2)}
    assert occupied(held, {}) == {"n1": 4}
    assert occupied(held, {JobId(1): JobId(2)}) == {"n1": 3}
    assert occupied(held, {JobId(1): JobId(2), JobId(2): JobId(1)}) == {"n1": 3}
    elsewhere = held | {JobId(2): on(n2=1)}
    assert occupied(elsewhere, {JobId(1): JobId(2)}) == {"n1": 3, "n2": 1}


def decided(problem: Problem, policy: Policy, limits: Limits = LIMITS) -> Decided:
    rng = np.random.default_rng(0)
    found = decide(problem, policy, None, rng, history=History(), limits=limits)
    assert (found.left_out, found.fault) == ({}, "")
    return found


SHARES = Liquid(share_load=0.75)


def test_a_job_that_finds_no_gpu_is_put_beside_a_running_one_which_is_restarted_for_it() -> None:
    nodes = sharing_nodes()
    host, guest = one_gpu(1, nodes, placement=on(n1=1)), one_gpu(2, nodes)
    found = decided(a_problem([host, guest], nodes, pairs=speeds((1, 2))), SHARES)
    moves = [(move.job, move.kind, move.target, move.beside) for move in found.verdict.allowed]
    assert moves == [(1, "resize", on(n1=1), 2), (2, "start", on(n1=1), 1)]


def test_one_that_is_alone_on_a_shared_gpu_is_joined_without_a_restart() -> None:
    nodes = sharing_nodes(1, 2)
    whole = one_gpu(1, nodes, placement=on(n1=1))
    half = one_gpu(2, nodes, placement=on(n1=1), share=True)
    guest = one_gpu(3, nodes)
    problem = a_problem([whole, half, guest], nodes, pairs=speeds((1, 3), (2, 3)))
    moves = decided(problem, SHARES).verdict.allowed
    assert [(move.job, move.kind, move.beside) for move in moves] == [(3, "start", 2)]


def test_nobody_is_put_where_slurm_would_choose_another_gpu() -> None:
    """Job 2 has half a GPU of the node: Slurm would put whoever comes beside it."""
    nodes = sharing_nodes(1, 2)
    jobs = [
        one_gpu(1, nodes, placement=on(n1=1)),
        one_gpu(2, nodes, placement=on(n1=1), share=True),
        one_gpu(3, nodes),
    ]
    found = decided(a_problem(jobs, nodes, pairs=speeds((1, 3))), SHARES)
    assert found.verdict.allowed == ()
    assert JobId(3) in found.plan.idle


def test_a_node_gets_one_new_pair_at_a_time() -> None:
    nodes = sharing_nodes(1, 2)
    jobs = [one_gpu(id_, nodes, placement=on(n1=1)) for id_ in (1, 2)]
    jobs += [one_gpu(id_, nodes) for id_ in (3, 4)]
    pairs = speeds((1, 3), (1, 4), (2, 3), (2, 4))
    moves = decided(a_problem(jobs, nodes, pairs=pairs), SHARES).verdict.allowed
    assert len({move.beside for move in moves} - {None}) == 2


def test_nobody_shares_as_long_as_the_cluster_is_not_full_or_sharing_is_off() -> None:
    nodes = sharing_nodes(1, 4)
    picky = replace(one_gpu(2, nodes), nodes=frozenset({"n9"}))
    jobs = [one_gpu(1, nodes, placement=on(n1=1)), picky]
    problem = a_problem(jobs, nodes, pairs=speeds((1, 2)))
    assert decided(problem, SHARES).verdict.allowed == ()
    full = sharing_nodes()
    jobs = [one_gpu(1, full, placement=on(n1=1)), one_gpu(2, full)]
    for policy in (Liquid(), make("liquid"), make("srtf")):
        problem = a_problem(jobs, full, pairs=speeds((1, 2)))
        assert decided(problem, policy).plan.assignments.get(JobId(2)) is None
    with pytest.raises(ValueError, match=r"\[sharing\] allow"):
        make("liquid:share_load=0.5")
    assert make("liquid", site=Site(sharing=True)) == replace(Liquid(), share_load=0.75)


@pytest.mark.parametrize("name", ["fifo", "srtf", "ones", "liquid", "pollux", "sia", "tiresias"])
def test_policies_that_know_nothing_of_pairs_leave_them_alone(name: str) -> None:
    nodes = sharing_nodes(1, 2)
    pair = [
        one_gpu(1, nodes, placement=on(n1=1), share=True, beside=JobId(2), started=1.0),
        one_gpu(2, nodes, placement=on(n1=1), share=True, beside=JobId(1), started=2.0),
    ]
    problem = a_problem([*pair, one_gpu(3, nodes), one_gpu(4, nodes)], nodes)
    assert riders(problem) == {2: 1}
    found = decided(problem, make(name))
    moved = {move.job: move.kind for move in found.verdict.allowed}
    assert moved.keys() & {1, 2} == set()
    assert list(moved.values()) == ["start"], "the other GPU has room for one, not for two"


@pytest.mark.parametrize(
    ("one", "two", "fault"),
    [
        ((on(n1=1), 2), (on(n1=1), None), "which is elsewhere"),
        ((on(n1=1), 2), (on(n2=1), 1), "which is elsewhere"),
        ((on(n1=2), 2), (on(n1=2), 1), "more than one GPU"),
        ((on(n1=1), 2), (on(n1=1), 1), "may not share"),
    ],
)
def test_a_plan_with_half_a_pair_is_refused(one: tuple, two: tuple, fault: str) -> None:  # type: ignore[type-arg]
    nodes = sharing_nodes(2, 2)
    jobs = [a_job(id_, "1-2", requested=1, nodes=nodes) for id_ in (1, 2)]
    plan = Plan(
        {
            JobId(id_): Assignment(placement, None, "", beside=other)
            for id_, (placement, other) in ((1, one), (2, two))
        }
    )
    with pytest.raises(PlanError, match=fault):
        validate(a_problem(jobs, nodes), plan)


def test_a_host_is_not_restarted_for_a_guest_that_may_not_come() -> None:
    nodes = sharing_nodes()
    host = one_gpu(1, nodes, placement=on(n1=1))
    guest = replace(one_gpu(2, nodes), startable=False)
    problem = a_problem([host, guest], nodes, pairs=speeds((1, 2)))
    plan = Plan(
        {
            JobId(1): Assignment(on(n1=1), None, "", beside=JobId(2)),
            JobId(2): Assignment(on(n1=1), None, "", beside=JobId(1)),
        }
    )
    limits = replace(LIMITS, min_gain=1.0)
    verdict = check(reconcile(problem, plan), problem, History(), limits)
    assert verdict.allowed == ()
    assert "does not come beside it" in " ".join(one.reason for one in verdict.refused)


def test_a_guest_is_refused_where_its_host_keeps_the_whole_gpu() -> None:
    nodes = sharing_nodes()
    host = one_gpu(1, nodes, placement=on(n1=1), fixed="it is suspended")
    problem = a_problem([host, one_gpu(2, nodes)], nodes, pairs=speeds((1, 2)))
    plan = Plan({JobId(2): Assignment(on(n1=1), None, "", beside=JobId(1))})
    verdict = check(reconcile(problem, plan), problem, History(), LIMITS)
    assert verdict.allowed == ()


GAVEL = "gavel:max_min_fairness_packed:entities=none"


@pytest.mark.parametrize("name", [GAVEL, "gavel:gandiva"])
def test_gavels_packed_policies_make_pairs_and_keep_them(name: str) -> None:
    policy, nodes = make(name, site=Site(sharing=True)), sharing_nodes()
    jobs = [one_gpu(1, nodes, placement=on(n1=1)), one_gpu(2, nodes)]
    problem = a_problem(jobs, nodes, pairs=speeds((1, 2)))
    found = decided(problem, policy)
    assert {(move.job, move.beside) for move in found.verdict.allowed} == {(1, 2), (2, 1)}
    together = [
        replace(jobs[0], share=True, beside=JobId(2), started=1100.0),
        replace(jobs[1], share=True, beside=JobId(1), started=1101.0, placement=on(n1=1)),
    ]
    again = decide(
        replace(problem, jobs=tuple(together), now=2000.0),
        policy,
        found.memory,
        np.random.default_rng(0),
        history=History(),
        limits=LIMITS,
    )
    assert (again.left_out, again.fault) == ({}, "")
    assert again.verdict.allowed == ()
    assert {id_: one.beside for id_, one in again.plan.assignments.items()} == {1: 2, 2: 1}


def test_what_a_pair_leaves_free_goes_to_who_waits() -> None:
    policy, nodes = make(GAVEL, site=Site(sharing=True)), sharing_nodes(1, 2)
    jobs = [
        one_gpu(1, nodes, placement=on(n1=1), share=True, beside=JobId(2), started=1.0),
        one_gpu(2, nodes, placement=on(n1=1), share=True, beside=JobId(1), started=2.0),
        one_gpu(3, nodes),
    ]
    found = decided(a_problem(jobs, nodes, pairs=speeds((1, 2))), policy)
    assert [(move.job, move.kind) for move in found.verdict.allowed] == [(3, "start")]


@settings(deadline=None, max_examples=60)
@given(
    states=st.lists(st.sampled_from(["waits", "whole", "half", "pair"]), min_size=2, max_size=7),
    fixed=st.sets(st.integers(1, 7), max_size=3),
    allowed=st.sets(st.tuples(st.integers(1, 7), st.integers(1, 7)), max_size=12),
    policy=st.sampled_from(["liquid", GAVEL, "gavel:gandiva"]),
)
def test_no_plan_puts_more_than_two_on_a_gpu_or_those_who_may_not(
    states: list[str], fixed: set[int], allowed: set[tuple[int, int]], policy: str
) -> None:
    """`decide` validates every plan; what is checked here is what its moves come to."""
    nodes = sharing_nodes(2, 2)
    room = [name for node in nodes for name in [node.name] * node.gpus]
    jobs = []
    for id_, state in enumerate(states, start=1):
        placed = on(**{room.pop(): 1}) if state != "waits" and room else None
        share = placed is not None and state in ("half", "pair")
        more = {"placement": placed, "share": share, "fixed": "grace" if id_ in fixed else ""}
        jobs.append(one_gpu(id_, nodes, **more))
        if share and state == "pair":
            rider = one_gpu(id_ + 10, nodes, **more, started=1.0)
            jobs[-1] = replace(jobs[-1], beside=rider.id)
            jobs.append(replace(rider, beside=jobs[-1].id))
    pairs = speeds(*((min(both), max(both)) for both in allowed if both[0] != both[1]))
    problem = a_problem(jobs, nodes, pairs=pairs)
    problem = replace(problem, outlooks={job.id: an_outlook(1e5) for job in jobs})
    found = decided(problem, make(policy, site=Site(sharing=True)))
    before = {job.id: job.beside for job in jobs}
    for move in found.verdict.allowed:
        if move.beside is not None and JobId(move.beside) != before[move.job]:
            assert (min(move.job, move.beside), max(move.job, move.beside)) in pairs
    hosts = [one.beside for one in found.plan.assignments.values() if one.beside is not None]
    assert len(hosts) == len({*hosts}), "nobody is in two pairs"


def test_pairs_are_made_in_the_order_of_the_guests() -> None:
    nodes = sharing_nodes()
    jobs = [one_gpu(1, nodes, placement=on(n1=1)), one_gpu(2, nodes), one_gpu(3, nodes)]
    problem = a_problem(jobs, nodes, pairs=speeds((1, 2), (1, 3)))
    plan = Plan({JobId(1): Assignment(on(n1=1), None, "")}, {JobId(2): "waits", JobId(3): "waits"})
    for order in ([2, 3], [3, 2]):
        shared = pair_up(problem, plan, map(JobId, order))
        assert shared.assignments[JobId(1)].beside == order[0]
        assert shared.idle.keys() == {order[1]}
