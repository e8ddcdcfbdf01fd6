"""Plans for jobs that are resized live: every policy's, gone over so that no restart is needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, an_outlook, on

from ones.policies.forecast import move_cost
from ones.policies.guard import History, Limits, check
from ones.policies.live import settle
from ones.policies.model import Assignment, Job, JobId, Placement, Plan, Problem
from ones.policies.moves import Move
from ones.policies.registry import make, names
from ones.policies.round import decide

NODES = a_cluster(2, 4)


def live(id_: int, keeps: Placement, placement: Placement, **more: object) -> Job:
    return a_job(id_, "1-8", nodes=NODES, keeps=keeps, placement=placement, **more)


def settled(job: Job, target: Placement, *others: Job) -> Placement:
    problem = a_problem([job, *others], NODES)
    plan = Plan({job.id: Assignment(target, None, "")})
    return settle(problem, plan).assignments[job.id].placement


def test_a_target_without_the_jobs_own_gpus_is_moved_around_them() -> None:
    job = live(1, on(n1=1), on(n1=1))
    assert settled(job, on(n2=3)) == on(n1=3)
    other = a_job(2, nodes=NODES, placement=on(n1=2))
    assert settled(job, on(n2=3), other) == on(n1=2, n2=1)


def test_a_job_of_the_right_size_stays_where_it_is_unless_fewer_nodes_will_do() -> None:
    spread = live(1, on(n1=1), on(n1=1, n2=2))
    assert settled(spread, on(n2=3)) == on(n1=1, n2=2)
    assert settled(spread, on(n1=3)) == on(n1=3)


def test_a_job_that_grows_gives_nothing_back_on_the_way_unless_fewer_nodes_will_do() -> None:
    """A satellite can't be split: it would leave before a smaller one comes."""
    job = live(1, on(n1=2), on(n1=4))
    assert settled(job, on(n1=3, n2=3)) == on(n1=4, n2=2)
    spread = live(1, on(n1=2), on(n1=2, n2=1))
    assert settled(spread, on(n1=4)) == on(n1=4)
    other = a_job(2, nodes=NODES, placement=on(n2=2))
    assert settled(live(1, on(n1=1), on(n1=1, n2=1)), on(n1=2, n2=2), other) == on(n1=2, n2=2)


def test_where_others_get_its_own_gpus_or_fewer_are_planned_it_is_left_to_a_restart() -> None:
    job = live(1, on(n1=2), on(n1=2, n2=2))
    assert settled(job, on(n2=1)) == on(n2=1)
    other = a_job(2, nodes=NODES)
    problem = a_problem([job, other], NODES)
    plan = Plan(
        {
            job.id: Assignment(on(n2=4), None, ""),
            other.id: Assignment(on(n1=4), None, ""),
        }
    )
    assert settle(problem, plan) == plan


def test_jobs_that_need_a_restart_anyhow_are_not_touched() -> None:
    job = a_job(1, nodes=NODES, placement=on(n1=1))
    assert settled(job, on(n2=3)) == on(n2=3)


LIMITS = Limits(grace=60, live_grace=10, exempt=120, max_resizes_per_hour=3)


def test_a_live_resize_is_in_grace_after_the_last_one_and_not_after_a_runs_start() -> None:
    job = live(1, on(n1=1), on(n1=1), started=0.0)
    problem = a_problem([job], NODES, now=20.0)
    grow = Move(job=JobId(1), kind="resize", target=on(n1=4), gain=100.0)
    assert check([grow], problem, History(), LIMITS).allowed == (grow,)
    soon = check([grow], problem, History(live={JobId(1): [15.0]}), LIMITS)
    assert soon.refused[0].reason == "resized live 5 s ago"
    restart = Move(job=JobId(1), kind="resize", target=on(n2=4), gain=100.0)
    assert "in grace for 40 s" in check([restart], problem, History(), LIMITS).refused[0].reason


counts = st.tuples(st.integers(0, 3), st.integers(0, 3))


@pytest.mark.parametrize("name", names())
@settings(max_examples=5, deadline=None)
@given(split=counts, kept=st.integers(1, 2), seed=st.integers(0, 9))
def test_every_policy_plans_soundly_for_a_job_that_is_spread_unevenly(
    name: str, split: tuple[int, int], kept: int, seed: int
) -> None:
    own = on(n1=kept)
    held = Placement.of({"n1": min(4, kept + split[0]), "n2": split[1]})
    jobs = [live(1, own, held, requested=2), a_job(2, nodes=NODES, waited=50.0)]
    problem = a_problem(jobs, NODES, now=1000.0)
    policy, memory = make(name), None
    for number in range(3):
        rng = np.random.default_rng([seed, number])
        decided = decide(
            problem, policy, memory, rng, history=History(), limits=Limits(min_gain=None)
        )
        assert (decided.left_out, decided.fault) == ({}, "")
        memory = decided.memory


def test_only_what_keeps_the_jobs_own_gpus_costs_as_little_as_a_live_resize() -> None:
    job = live(1, on(n1=2), on(n1=2))
    outlook = an_outlook(restart_cost=30.0, live_cost=1.0)
    assert move_cost(job, outlook, on(n1=2, n2=1)) == 1.0
    assert move_cost(job, outlook, on(n2=4)) == 30.0
    assert move_cost(job, outlook, None) == 30.0
    assert move_cost(a_job(2, nodes=NODES), an_outlook(), on(n1=1)) == 10.0


@pytest.mark.parametrize(("restart", "gpu_type"), [(300.0, "k80"), (0.5, "v100")])
def test_a_live_job_does_not_restart_on_faster_gpus_for_less_than_that_costs(
    restart: float, gpu_type: str
) -> None:
    nodes = a_cluster(2, 4, types=("v100", "k80"))
    here = on(n2=1)
    job = a_job(1, "1", nodes=nodes, keeps=here, placement=here)
    problem = Problem(
        now=1000.0,
        nodes=tuple(nodes),
        jobs=(job,),
        outlooks={job.id: an_outlook(100.0, restart_cost=restart, live_cost=0.5)},
    )
    plan, _ = make("ones").plan(problem, None, np.random.default_rng(0))
    (name,) = plan.assignments[job.id].placement.nodes
    assert problem.by_name[name].gpu_type == gpu_type
