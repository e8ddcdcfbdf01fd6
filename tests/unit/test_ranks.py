"""Who goes first: tiers strictly and under any policy, priorities as far as is wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, on

from ones.policies.fifo import Fifo
from ones.policies.guard import History, Limits, check
from ones.policies.invariants import faults
from ones.policies.model import Job, JobId, Plan, Policy, Problem, Shape
from ones.policies.moves import Move
from ones.policies.ranks import plan_by_rank, ranks
from ones.policies.registry import make, names
from ones.policies.round import decide

NODES = a_cluster(2, 4)
HIGH, LOW = JobId(1), JobId(2)
POLICIES = [name for name in names() if "oracle" not in name]
MOVING = [
    name for name in POLICIES if name not in ("fifo", "liquid", "slurm")
]  # who runs may be stopped
FREE = Limits(grace=0.0, exempt=0.0, min_gain=None)


def plan(policy: Policy, problem: Problem, memory: object = None) -> tuple[Plan, object]:
    return plan_by_rank(policy, problem, memory, np.random.default_rng(0))


def here(id_: int, sizes: str = "1-8", **more: object) -> Job:
    return a_job(id_, sizes, nodes=NODES, **more)  # type: ignore[arg-type]


def ids(found: list[tuple[Job, ...]]) -> list[list[int]]:
    return [[int(job.id) for job in rank] for rank in found]


def test_every_tier_is_a_rank_and_the_highest_is_first() -> None:
    jobs = [here(1, tier=1), here(2, tier=3), here(3, tier=1, priority=9)]
    assert ids(ranks(jobs, 0.0)) == [[2], [3, 1]]


def test_strictness_leads_from_one_rank_to_one_for_each_priority() -> None:
    jobs = [here(id_, priority=p) for id_, p in ((1, 100), (2, 100), (3, 60), (4, 0))]
    assert ids(ranks(jobs, 0.0)) == [[1, 2, 3, 4]]
    assert ids(ranks(jobs, 0.5)) == [[1, 2, 3], [4]]
    assert ids(ranks(jobs, 1.0)) == [[1, 2], [3], [4]]


def test_the_number_of_ranks_is_bounded() -> None:
    jobs = [here(id_, priority=id_) for id_ in range(1, 101)]
    found = ranks(jobs, 1.0)
    assert len(found) == 16
    assert sum(map(len, found)) == 100


def test_who_shares_a_gpu_goes_with_the_first_of_both() -> None:
    jobs = [here(1, tier=1, beside=JobId(2)), here(2, tier=2, beside=JobId(1)), here(3, tier=1)]
    assert ids(ranks(jobs, 0.0)) == [[1, 2], [3]]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("strictness", [0.0, 1.0])
def test_where_all_are_alike_nothing_changes(name: str, strictness: float) -> None:
    jobs = [here(id_, tier=4, priority=7) for id_ in range(1, 6)]
    problem = replace(a_problem(jobs, NODES), strictness=strictness)
    bare = make(name).plan(problem, None, np.random.default_rng(0))
    assert plan(make(name), problem) == bare


@pytest.mark.parametrize("name", POLICIES)
def test_of_two_that_wait_the_higher_tier_starts(name: str) -> None:
    high = here(1, "8", requested=8, tier=2, submitted=9.0)
    low = here(2, "8", requested=8, tier=1, submitted=1.0, priority=99, waited=1e6)
    found, _ = plan(make(name), a_problem([high, low], NODES, left={1: 1e6, 2: 10.0}))
    assert set(found.assignments) == {HIGH}


@pytest.mark.parametrize("name", MOVING)
def test_a_lower_tier_makes_way_at_once(name: str) -> None:
    high = here(1, "8", requested=8, tier=2)
    low = here(2, "4-8", requested=4, tier=1, placement=on(n1=4), executed=900.0)
    found, _ = plan(make(name), a_problem([high, low], NODES, left={1: 1e6, 2: 10.0}))
    assert found.assignments[HIGH].placement == on(n1=4, n2=4)
    assert LOW in found.idle


@pytest.mark.parametrize("name", POLICIES)
def test_nobody_makes_way_where_there_is_room_beside_him(name: str) -> None:
    high = here(1, "1-8", requested=4, tier=2)
    low = here(2, "4", requested=4, tier=1, placement=on(n1=4), executed=900.0)
    found, _ = plan(make(name), a_problem([high, low], NODES))
    assert found.assignments[LOW].placement == on(n1=4)
    assert set(found.assignments[HIGH].placement.nodes) == {"n2"}


def test_a_policy_that_stops_nobody_does_not_stop_a_lower_tier() -> None:
    high = here(1, "8", requested=8, tier=2)
    low = here(2, "4", requested=4, tier=1, placement=on(n1=4))
    found, _ = plan(Fifo(), a_problem([high, low], NODES))
    assert found.assignments[LOW].placement == on(n1=4)
    assert HIGH in found.idle


def test_what_is_free_is_kept_for_a_higher_tier_that_waits_for_more() -> None:
    high = here(1, "8", requested=8, tier=2)
    stays = here(2, "4", requested=4, tier=1, placement=on(n1=4), fixed="in grace")
    late = here(3, "4", requested=4, tier=1)
    found, _ = plan(make("ones"), a_problem([high, stays, late], NODES))
    assert found.assignments[LOW].placement == on(n1=4)
    assert set(found.idle) == {HIGH, late.id}


@pytest.mark.parametrize("uneven", [True, False])
def test_what_is_free_is_kept_for_who_takes_any_split_though_no_shape_of_it_fits(
    uneven: bool,
) -> None:
    high = here(1, "8", requested=8, tier=2, shapes=(Shape(1, 8),), uneven=uneven)
    stays = here(2, "4", requested=4, tier=1, placement=on(n1=4), fixed="in grace")
    late = here(3, "4", requested=4, tier=1)
    found, _ = plan(make("tiresias"), a_problem([high, stays, late], NODES))
    assert (late.id in found.idle) == uneven


def test_a_tier_that_can_never_start_keeps_nothing() -> None:
    high = here(1, "16", requested=16, tier=2, shapes=(a_job(9, "16").shapes))
    late = here(3, "4", requested=4, tier=1)
    found, _ = plan(make("ones"), a_problem([high, late], NODES))
    assert found.assignments[late.id].placement.gpus == 4


@pytest.mark.parametrize("name", ["ones", "srtf", "tiresias"])
def test_in_strict_order_the_priority_decides_and_otherwise_the_policy(name: str) -> None:
    long = here(1, "8", requested=8, priority=9, submitted=5.0)
    short = here(2, "8", requested=8, priority=1, submitted=1.0)
    problem = a_problem([long, short], NODES, left={1: 1e6, 2: 10.0})
    loose, _ = plan(make(name), problem)
    strict, _ = plan(make(name), replace(problem, strictness=1.0))
    assert set(loose.assignments) == {LOW}
    assert set(strict.assignments) == {HIGH}


def test_a_policys_memory_goes_with_a_job_from_rank_to_rank() -> None:
    jobs = [here(1, priority=9, placement=on(n1=1)), here(2, priority=1, placement=on(n2=1))]
    strict = replace(a_problem(jobs, NODES), strictness=1.0)
    _, first = plan(make("sia"), strict)
    turned = [replace(jobs[0], priority=1), replace(jobs[1], priority=9)]
    _, second = plan(make("sia"), replace(strict, jobs=tuple(turned), now=1060.0), first)
    _, third = plan(make("sia"), replace(strict, strictness=0.0, now=1120.0), second)
    past = third["past"]  # type: ignore[index]
    assert [row[3] for row in past.values()] == [120.0, 120.0]  # GPU-seconds


def test_who_has_waited_too_long_does_not_come_before_a_higher_tier() -> None:
    high, low = here(1, tier=2), here(2, tier=1, waited=1e6)
    start = Move(job=HIGH, kind="start", target=on(n1=4))
    verdict = check([start], a_problem([high, low], NODES), History(), Limits(max_wait=100.0))
    assert verdict.allowed == (start,)


def test_who_has_waited_too_long_makes_way_for_a_higher_tier_and_nobody_else() -> None:
    low = here(2, "8", requested=8, tier=1, waited=1e6, placement=on(n1=4, n2=4), started=0.0)
    limits = replace(FREE, max_wait=100.0)
    for tier, stopped in ((2, True), (1, False)):
        high = here(1, "8", requested=8, tier=tier, waited=1e6)
        moves = [
            Move(job=LOW, kind="preempt"),
            Move(job=HIGH, kind="start", target=on(n1=4, n2=4)),
        ]
        verdict = check(moves, a_problem([high, low], NODES), History(), limits)
        assert bool(verdict.allowed) is stopped


@st.composite
def mixes(draw: st.DrawFn) -> Problem:
    """Jobs of several tiers and priorities, some running where they fit, some of them fixed."""
    nodes = a_cluster(draw(st.integers(1, 4)), 4)
    free = {node.name: node.gpus for node in nodes}
    jobs = []
    for id_ in range(1, draw(st.integers(1, 8)) + 1):
        most = draw(st.sampled_from([1, 2, 4]))
        least = draw(st.sampled_from([1, most]))
        where = draw(st.sampled_from(["", *free]))
        held = draw(st.integers(least, most))
        runs = bool(where) and free[where] >= held
        if runs:
            free[where] -= held
        jobs.append(
            a_job(
                id_,
                f"{least}-{most}",
                requested=draw(st.integers(least, most)),
                nodes=nodes,
                tier=draw(st.integers(1, 3)),
                priority=draw(st.integers(1, 3)),
                placement=on(**{where: held}) if runs else None,
                fixed="in grace" if runs and draw(st.booleans()) else "",
                startable=draw(st.booleans()),
                executed=100.0 if runs else 0.0,
            )
        )
    left = {job.id: draw(st.sampled_from([50.0, 1000.0, 50000.0])) for job in jobs}
    problem = a_problem(jobs, nodes, left=left)  # type: ignore[arg-type]
    return replace(problem, strictness=draw(st.sampled_from([0.0, 0.5, 1.0])))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=mixes())
def test_no_mix_of_ranks_breaks_a_plan(name: str, problem: Problem) -> None:
    found, memory = plan(make(name), problem)
    assert list(faults(problem, found)) == []
    again, _ = plan(make(name), replace(problem, now=problem.now + 60.0), memory)
    assert list(faults(problem, again)) == []
    decided = decide(
        problem, make(name), memory, np.random.default_rng(0), history=History(), limits=FREE
    )
    assert not decided.fault
    assert not decided.left_out
