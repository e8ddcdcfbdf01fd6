from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from policy_builders import a_cluster, a_job, a_problem, on, unusable

from ones.policies.fifo import Fifo
from ones.policies.invariants import validate
from ones.policies.model import JobId, Plan, Problem
from ones.policies.ones import Ones
from ones.policies.ones_settings import Settings
from ones.policies.registry import information, make, names
from ones.policies.srtf import Srtf
from ones.policies.tiresias import Tiresias


def plan(policy: Fifo | Srtf, problem: Problem) -> Plan:
    found, _ = policy.plan(problem, None, np.random.default_rng(0))
    validate(problem, found)
    return found


def gpus(found: Plan) -> dict[int, int]:
    return {int(job): given.placement.gpus for job, given in found.assignments.items()}


def test_who_waits_for_gpus_of_plain_jobs_is_not_overtaken_under_fifo() -> None:
    nodes = [replace(node, taken=1) for node in a_cluster(1)]
    found = plan(Fifo(), a_problem([a_job(1, "4", requested=4), a_job(2, "1")], nodes))
    assert gpus(found) == {}
    assert found.idle[JobId(1)] == "waits for 4 GPUs"


def test_policies_are_made_by_name() -> None:
    assert {"fifo", "ones", "srtf", "tiresias", "optimus-oracle", "pollux", "sia"} <= {*names()}
    assert [make(name).name for name in names()] == list(names())


def test_a_policys_settings_stand_behind_its_name() -> None:
    assert make("ones:generations=0:exponent=0.5") == Ones(Settings(generations=0, exponent=0.5))
    assert make("tiresias:threshold=60") == Tiresias(threshold=60.0)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("ones:speed=1", "policy 'ones:speed=1': it has no setting 'speed'; known: batch_limits"),
        ("ones:exponent=fast", "its setting exponent is not a number: 'fast'"),
        ("ones:exponent=nan", "its setting exponent is not a number: 'nan'"),
        ("ones:exact=2", "its setting exact is not true or false: '2'"),
        ("ones:rank_power=1", "rank_power is 0 to below 1"),
        ("ones:objective=best", "its setting objective is flow or sruf, not 'best'"),
        ("shockwave:seconds=0", "its setting seconds is at least 1"),
        ("shockwave:rounds=0", "its setting rounds is 1 to 1000"),
        ("shockwave:rounds=-1", "its setting rounds is 1 to 1000"),
        ("shockwave:rounds=100000000000000000000", "its setting rounds is 1 to 1000"),
        ("shockwave:power=1e300", "its setting power is 0 to 10"),
        ("shockwave:regularizer=-1", "its setting regularizer is at least 0"),
        ("pollux:population=100000000000000000000", "its setting population is 4 to 1000"),
        ("pollux:generations=100000000000000000000", "its setting generations is 1 to 1000"),
        ("pollux:generations=0", "its setting generations is 1 to 1000"),
        ("fifo:exact=true", "it has no setting 'exact'; known: none"),
        ("ones:generations=0:generations=1", "its setting 'generations' is there twice"),
        ("ones:generations", "its setting 'generations' has no value; write generations=VALUE"),
        ("ones:exact=true:generations", "its setting 'generations' has no value"),
        ("gavel:isolated:hold", "its setting 'hold' has no value; write hold=VALUE"),
        ("ones::", "no policy 'ones::'"),
    ],
)
def test_a_setting_that_cannot_be_is_named(name: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        make(name)


def test_oracles_are_known_as_such() -> None:
    assert {name for name in names() if information(name) == "truth"} == {
        name for name in names() if "-oracle" in name
    }


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no policy 'lifo'; choose one of: fifo, liquid, ones,"):
        make("lifo")


def test_fifo_serves_in_order_of_submission_at_the_requested_size() -> None:
    jobs = [a_job(i, requested=6, sizes="1-8") for i in (3, 1, 2)]
    found = plan(Fifo(), a_problem(jobs))
    assert gpus(found) == {1: 6, 2: 6}
    assert "waits for 6" in found.idle[JobId(3)]


def test_fifo_lets_nobody_overtake() -> None:
    jobs = [a_job(1, placement=on(n1=4)), a_job(2, "16", requested=16), a_job(3)]
    found = plan(Fifo(), a_problem(jobs))
    assert gpus(found) == {1: 4}
    assert "job 2 is ahead" in found.idle[JobId(3)]


def test_fifo_goes_by_slurms_priority_before_age() -> None:
    jobs = [a_job(1, "16", requested=16), a_job(2, "16", requested=16, priority=5)]
    assert gpus(plan(Fifo(), a_problem(jobs))) == {2: 16}


def test_a_job_that_fits_nowhere_does_not_block_the_queue() -> None:
    nodes = [unusable(node) for node in a_cluster()[:2]] + a_cluster()[2:]
    found = plan(Fifo(), a_problem([a_job(1, "16", requested=16), a_job(2)], nodes))
    assert gpus(found) == {2: 2}
    assert found.idle[JobId(1)] == "the usable nodes can't hold its 16 GPUs"


def test_jobs_for_other_nodes_do_not_wait_for_each_other() -> None:
    first, second = a_cluster(2)
    jobs = [
        a_job(1, placement=on(n1=4)),
        a_job(2, "4", requested=4, nodes=[first]),
        a_job(3, "4", requested=4, nodes=[second]),
    ]
    assert gpus(plan(Fifo(), a_problem(jobs))) == {1: 4, 3: 4}


def test_srtf_serves_the_shortest_first() -> None:
    jobs = [a_job(i, "8", requested=8) for i in (1, 2, 3)]
    found = plan(Srtf(), a_problem(jobs, left={1: 900, 2: 100, 3: 500}))
    assert gpus(found) == {2: 8, 3: 8}


def test_srtf_preempts_the_longest_only_where_gpus_are_missing() -> None:
    jobs = [
        a_job(1, "8", requested=8, placement=on(n1=4, n2=4)),
        a_job(2, "4", requested=4, placement=on(n3=4)),
        a_job(3, "8", requested=8),
        a_job(4, "4", requested=4),
    ]
    found = plan(Srtf(), a_problem(jobs, left={1: 5000, 2: 2000, 3: 100, 4: 100}))
    assert gpus(found) == {2: 4, 3: 8, 4: 4}
    assert found.assignments[JobId(2)].placement == on(n3=4)
    assert JobId(1) in found.idle


def test_srtf_does_not_preempt_for_less_than_a_restart() -> None:
    jobs = [a_job(1, "16", requested=16, placement=on(n1=4, n2=4, n3=4, n4=4)), a_job(2, "4")]
    assert gpus(plan(Srtf(), a_problem(jobs, left={1: 40, 2: 30}))) == {1: 16}


def test_srtf_puts_first_who_waited_too_long() -> None:
    jobs = [a_job(1, "16", requested=16, waited=50.0), a_job(2, "16", requested=16)]
    found = plan(Srtf(max_wait=10.0), a_problem(jobs, left={1: 5000, 2: 100}))
    assert gpus(found) == {1: 16}
