"""Runs that are begun anew before their time limit ends them, and those that are not."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from policy_builders import a_cluster, a_job, a_problem, on, unusable
from replay_builders import a_world
from test_replay_plain import a_record

from ones.daemon.onesd.deciding import Question, answer
from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.simulation import replay
from ones.daemon.replay.workload import Workload
from ones.policies.fifo import Fifo
from ones.policies.guard import History, Limits
from ones.policies.model import Job, JobId, Placement, Problem
from ones.policies.moves import Move
from ones.policies.registry import make
from ones.policies.renewal import ended_in, limit_share, renewals
from ones.policies.sizes import Sizes

LIMIT, NOW = 3600.0, 3500.0
ONE = on(n1=1)


def a_run(placement: Placement = ONE, *, requested: int = 4, **more: Any) -> Job:
    """A job that has run for all but the last 100 s of its hour on what it has now."""
    fields: dict[str, Any] = {
        "time_limit": LIMIT,
        "time_left": LIMIT - NOW,
        "limit_used": NOW * limit_share(placement.gpus, requested),
    }
    return a_job(1, placement=placement, requested=requested, **(fields | more))


def problem(job: Job, left: float = 9000.0) -> Problem:
    return a_problem([job], now=NOW, left={1: left})


def move(job: Job, left: float = 9000.0) -> Move | None:
    (found,) = renewals(problem(job, left), ()) or [None]
    return found


def test_who_had_fewer_gpus_than_it_asked_for_is_restarted_where_it_is() -> None:
    found = move(a_run())
    assert found is not None
    assert (found.kind, found.target) == ("resize", on(n1=1))
    assert found.reason == "its time limit of 01:00:00 is of 4 GPUs, and it has had less"


@pytest.mark.parametrize(
    "why, job, left",
    [
        ("it has had all that it asked for", a_run(on(n1=4)), 9000.0),
        ("it has had more", a_run(on(n1=4, n2=4), limit_used=NOW), 9000.0),
        ("it has had its time before", a_run(limit_used=LIMIT), 9000.0),
        ("it is done in time", a_run(), 40.0),
        ("it has time", replace(a_run(), time_left=1700.0, started=1800.0), 9000.0),
        ("its reservation is over sooner", a_run(time_left=50.0), 9000.0),
        ("it can't be moved", a_run(fixed="it can't save a checkpoint"), 9000.0),
        ("it has no limit", a_run(time_limit=None, time_left=None), 9000.0),
        ("nobody knows what it has had", a_run(limit_used=None), 9000.0),
        ("it waits", a_job(1, requested=4, time_limit=LIMIT), 9000.0),
    ],
)
def test_who_is_left_to_its_time_limit(why: str, job: Job, left: float) -> None:
    assert move(job, left) is None, why


def test_who_moves_anyhow_is_not_restarted() -> None:
    assert renewals(problem(a_run()), {JobId(1)}) == []


def test_short_limits_leave_less_time_for_it() -> None:
    short = a_run(time_limit=240.0, started=NOW - 170.0, time_left=70.0, limit_used=42.5)
    assert move(short) is None
    assert move(replace(short, started=NOW - 185.0, time_left=55.0)) is not None


@pytest.mark.parametrize(
    "job",
    [
        a_run(nodes=a_cluster()[1:]),
        a_run(keeps=ONE, closed=frozenset({"n1"})),
        a_run(stays="a reservation leaves it no node"),
        a_run(share=True, beside=JobId(2)),
        a_run(beside=JobId(2)),
    ],
)
def test_who_could_not_start_there_again_makes_way(job: Job) -> None:
    found = move(job)
    assert found is not None
    assert (found.kind, found.target) == ("preempt", None)


def test_who_is_on_a_drained_node_makes_way() -> None:
    first, *others = a_cluster()
    drained = replace(problem(a_run()), nodes=(unusable(first), *others))
    assert [one.kind for one in renewals(drained, ())] == ["preempt"]


def test_what_a_live_job_has_is_asked_for_as_far_as_an_allocation_can_promise_it() -> None:
    found = move(a_run(on(n1=3, n2=1), keeps=on(n1=1), requested=8))
    assert found is not None
    assert found.target == on(n1=3)


def test_a_limit_that_will_not_end_a_job_is_no_end() -> None:
    assert ended_in(a_run(), None, NOW) == inf
    assert ended_in(a_run(on(n1=4)), None, NOW) == LIMIT - NOW


@pytest.mark.parametrize("renews", [True, False])
def test_the_round_renews_runs_unless_the_site_wants_none(renews: bool) -> None:
    job = a_run(sizes="1")
    asked = Question(
        problem=problem(job), history=History(), limits=Limits(renew_runs=renews), plain=None
    )
    given = answer(asked, make("ones"), None, np.random.default_rng(1))
    # Though the guard leaves a job so near its limit to end, whatever a policy may want.
    assert [one.kind for one in given.moves] == ["resize"] * renews


def the_squeezed(renews: bool) -> SimulatedJob:
    """Fifty minutes of work on four GPUs within an hour, where one alone is left."""
    beside = a_record("plain", 0.0, 3, 50000.0)
    elastic = a_record("elastic", 60.0, 4, 3000.0, sizes=Sizes((1, 2, 3, 4)), time_limit=LIMIT)
    ran = replay(
        Workload((beside, elastic)),
        make("ones"),
        a_world(1, limits=Limits(renew_runs=renews)),
        clock=lambda: 0.0,
        scheduler=Fifo(),
    )
    return ran.jobs[1]


def test_a_job_on_a_quarter_of_its_gpus_has_more_than_its_limit() -> None:
    lost, job = the_squeezed(False), the_squeezed(True)
    assert lost.at_limit and lost.finished == pytest.approx(60.0 + LIMIT, abs=2.0)
    assert not job.at_limit and job.finished is not None
    assert job.finished > 60.0 + 2 * LIMIT
    assert job.resizes == 3
