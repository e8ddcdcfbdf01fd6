"""Slurm's own scheduling as a policy: what it starts, in which order, and what it keeps free."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, on

from ones.policies.invariants import validate
from ones.policies.model import Job, JobId, Node, Placement, Plan, Problem
from ones.policies.registry import make
from ones.policies.shapes import own_forms
from ones.policies.slurm.backfill import Form, Held, Releases
from ones.policies.slurm.fair_share import decay, factors, tree
from ones.policies.slurm.floor import Floor, Free, runs
from ones.policies.slurm.policy import Slurm
from ones.policies.slurm.settings import (
    Association,
    Bounds,
    Partition,
    Qos,
    Reservation,
    SlurmSettings,
)

RNG = np.random.default_rng(0)
NOW = 1000.0


def plan(problem: Problem, memory: object = None, **settings: Any) -> tuple[Plan, Any]:
    found, kept = Slurm(SlurmSettings(**settings)).plan(problem, memory, RNG)
    validate(problem, found)
    return found, json.loads(json.dumps(kept))


def started(problem: Problem, **settings: Any) -> dict[int, dict[str, int]]:
    """Where the jobs that waited are started."""
    found, _ = plan(problem, **settings)
    waited = {job.id for job in problem.jobs if job.placement is None}
    return {
        int(job): dict(given.placement.gpus_on)
        for job, given in found.assignments.items()
        if job in waited
    }


def why(problem: Problem, job: int, **settings: Any) -> str:
    return plan(problem, **settings)[0].idle[JobId(job)]


def waiting(number: int, gpus: int = 1, *, limit: float = 600.0, **more: Any) -> Job:
    return a_job(number, "1-16", requested=gpus, time_limit=limit, **more)


def running(number: int, limit: float = 600.0, *, since: float = NOW, **gpus: int) -> Job:
    return a_job(
        number,
        "1-16",
        requested=sum(gpus.values()),
        placement=on(**gpus),
        started=since,
        time_limit=limit,
    )


def test_it_is_made_by_name_with_its_settings() -> None:
    made = make("slurm:bf_interval=10:weight_age=5:favor_small=true")
    assert isinstance(made, Slurm)
    assert (made.settings.bf_interval, made.settings.weight_age) == (10.0, 5.0)
    with pytest.raises(ValueError, match="its setting calc_period must be above 0"):
        make("slurm:calc_period=0")
    with pytest.raises(ValueError, match="it has no setting 'partitions'"):
        make("slurm:partitions=a")


def test_jobs_start_in_order_at_their_own_request_and_run_to_their_end() -> None:
    problem = a_problem([waiting(3, 4), waiting(1, 8), waiting(2, 4), running(9, n1=2)], now=NOW)
    found, _ = plan(problem)
    assert {job: given.placement.gpus for job, given in found.assignments.items()} == {
        1: 8,
        2: 4,
        9: 2,
    }
    assert found.assignments[JobId(9)].placement == on(n1=2)
    assert found.idle[JobId(3)] == "Resources"


@pytest.mark.parametrize(
    ("free", "gpus", "chosen"),
    [
        # As Slurm 24.11 chose in the cluster of the tests: n1 and n2 under one switch, n3 and n4
        # under the other.
        ((4, 4, 4, 4), 1, "n1"),
        ((0, 4, 4, 4), 1, "n2"),
        ((4, 2, 1, 4), 1, "n1"),
        ((4, 4, 1, 0), 1, "n3"),
        ((4, 4, 0, 1), 1, "n4"),
        ((2, 4, 4, 3), 2, "n1"),
        ((1, 4, 2, 4), 2, "n2"),
        ((4, 4, 4, 1), 4, "n3"),
        ((3, 4, 4, 4), 8, "n3 n4"),
    ],
)
def test_nodes_are_chosen_as_slurm_chooses_them(
    free: tuple[int, ...], gpus: int, chosen: str
) -> None:
    nodes = [
        replace(node, taken=4 - left, gpu_type="v100")
        for node, left in zip(a_cluster(types=("a", "b")), free, strict=True)
    ]
    (where,) = started(a_problem([waiting(1, gpus)], nodes, now=NOW)).values()
    assert " ".join(sorted(where)) == chosen


def test_without_switches_the_smallest_gap_that_holds_a_job_is_filled() -> None:
    nodes = tuple(Node(f"n{at}", "v100", 4) for at in range(6))
    floor = Floor(nodes)
    assert list(runs(0b110111)) == [0b000111, 0b110000]
    assert floor.choose(0b110111, 2) == 0b110000
    assert floor.choose(0b110111, 4) == 0b010111
    assert floor.choose(0b000011, 3) is None


def test_a_lower_job_that_ends_in_time_is_backfilled_and_no_other() -> None:
    """Four GPUs are free; the first job wants eight, which are there in 600 s."""
    nodes = a_cluster(2)
    held = running(9, n1=4)
    first, fits, late = waiting(1, 8), waiting(2, 4, limit=500), waiting(3, 4, limit=700)
    for job in (first, fits, late):
        assert job.nodes >= {"n1", "n2"}
    jobs = [replace(job, nodes=frozenset({"n1", "n2"})) for job in (first, fits, late)]
    assert started(a_problem([held, *jobs], nodes, now=NOW)) == {2: {"n2": 4}}
    assert started(a_problem([held, jobs[0], jobs[2]], nodes, now=NOW)) == {}
    # The main scheduler alone lets nobody past.
    assert started(a_problem([held, *jobs], nodes, now=NOW), bf_max_job_test=0) == {}


def test_backfill_keeps_whole_nodes_free_as_slurm_does() -> None:
    """The first job will have one GPU of each of two nodes; nobody runs there past its start."""
    nodes = a_cluster(2)
    held = [running(8, n1=4), running(9, n2=3)]
    wide = replace(waiting(1, 2), requested_nodes=2)
    long, short = waiting(2, 1, limit=3600), waiting(3, 1, limit=300)
    jobs = [replace(job, nodes=frozenset({"n1", "n2"})) for job in (wide, long, short)]
    assert started(a_problem([*held, *jobs], nodes, now=NOW)) == {3: {"n2": 1}}


def test_reservations_are_rounded_outwards_to_the_resolution() -> None:
    nodes = a_cluster(2)
    problem = a_problem(
        [
            running(9, 650.0, n1=4),
            replace(waiting(1, 8), nodes=frozenset({"n1", "n2"})),
            replace(waiting(2, 1, limit=620.0), nodes=frozenset({"n1", "n2"})),
        ],
        nodes,
        now=NOW,
    )
    # Free at 1650, kept from 1620 on: job 2 would end then.
    assert started(problem) == {}
    assert started(problem, bf_resolution=1.0) == {2: {"n2": 1}}


@pytest.mark.parametrize(("elsewhere", "backfilled"), [(168.0, True), (190.0, False)])
def test_ends_of_jobs_elsewhere_put_off_what_the_first_in_the_queue_is_foretold(
    elsewhere: float, backfilled: bool
) -> None:
    """Seen on a real slurmctld: a job that ends on n4 soon after the one on n1 has Slurm look past
    that, so that n1 is kept from the end of those on n2 on, and is lent until then."""
    nodes = a_cluster(4)
    n1, n2, n3, n4 = (node.name for node in nodes)
    begin = 3600.0
    runs = [
        running(5, 133.0, since=begin, **{n1: 2}),
        running(8, 270.0, since=begin, **{n2: 4}),
        running(10, 288.0, since=begin, **{n3: 4}),
        running(12, elsewhere, since=begin, **{n4: 4}),
    ]
    first = waiting(11, 4, limit=120.0, partition="fast", nodes=nodes[:2])
    lower = waiting(14, 2, limit=120.0, submitted=begin, nodes=nodes)
    problem = a_problem([*runs, first, lower], nodes, now=begin + 49.9)
    partitions = (Partition(name="all"), Partition(name="fast", nodes=frozenset({n1, n2}), tier=2))
    found = started(problem, partitions=partitions, bf_interval=1.0, bf_resolution=1.0)
    assert found == ({14: {n1: 2}} if backfilled else {})


def test_backfill_comes_round_each_interval_only() -> None:
    nodes = a_cluster(2)
    jobs = [running(9, n1=4), waiting(1, 8), waiting(2, 4, limit=500)]
    jobs = [replace(job, nodes=frozenset({"n1", "n2"})) for job in jobs]
    _, memory = plan(a_problem(jobs[:2], nodes, now=NOW))
    found, memory = plan(a_problem(jobs, nodes, now=NOW + 10), memory)
    assert found.idle[JobId(2)] == "Priority"
    found, memory = plan(a_problem(jobs, nodes, now=NOW + 30), memory)
    assert JobId(2) in found.assignments


def test_nothing_is_looked_at_again_before_something_has_changed() -> None:
    jobs = [running(9, n1=4, n2=4, n3=4, n4=4), waiting(1, 8)]
    _, memory = plan(a_problem(jobs, now=NOW))
    found, memory = plan(a_problem(jobs, now=NOW + 60), memory)
    assert found.idle[JobId(1)] == "nothing has changed"
    found, memory = plan(a_problem(jobs[1:], now=NOW + 120), memory)
    assert JobId(1) in found.assignments


def test_the_tier_of_a_partition_comes_before_any_priority() -> None:
    partitions = (Partition(name="gpu"), Partition(name="fast", tier=2))
    low = waiting(1, 16, partition="gpu", nice=-(10**6))
    high = waiting(2, 16, partition="fast")
    assert set(started(a_problem([low, high], now=NOW), partitions=partitions)) == {2}


def test_a_partition_whose_first_job_waits_keeps_its_nodes_from_others() -> None:
    partitions = (
        Partition(name="gpu"),
        Partition(name="left", nodes=frozenset({"n1", "n2"}), tier=2),
    )
    jobs = [
        running(9, n1=1),
        waiting(1, 8, partition="left", limit=86400),
        waiting(2, 4, partition="gpu", limit=86400),
        waiting(3, 4, partition="gpu", limit=86400),
        waiting(4, 4, partition="gpu", limit=86400),
    ]
    found = started(a_problem(jobs, now=NOW), partitions=partitions)
    assert found == {2: {"n3": 4}, 3: {"n4": 4}}


def test_who_has_used_less_than_his_share_comes_first() -> None:
    """Ada's job has run since the beginning; bob has run nothing."""
    held = running(9, n1=4, n2=4, n3=4, since=0.0)
    ada, bob = waiting(1, 4), replace(waiting(2, 4), user="bob")
    _, memory = plan(a_problem([held], now=NOW))
    found, _ = plan(a_problem([held, ada, bob], now=NOW + 300), memory)
    assert JobId(2) in found.assignments
    assert JobId(1) in found.idle


def test_usage_of_jobs_that_have_ended_counts_and_halves_with_time() -> None:
    held = running(9, n1=4, since=0.0)
    _, memory = plan(a_problem([held], now=0.0), half_life=3600.0)
    _, memory = plan(a_problem([], now=1000.0), memory, half_life=3600.0)
    ((account, user, used),) = memory["usage"]
    assert (account, user) == ("lab", "ada")
    # As in Slurm: decayed when the job ends, and then with all else since the last time.
    assert used == pytest.approx(4000.0 * decay(3600.0, 1000.0) ** 2, rel=1e-6)
    _, memory = plan(a_problem([], now=4600.0), memory, half_life=3600.0)
    assert memory["usage"][0][2] == pytest.approx(used / 2, rel=1e-3)


def test_fair_tree_ranks_accounts_before_their_users() -> None:
    """Whoever is in the account that used less comes before everybody of the other one."""
    people = [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")]
    top = tree([], people)
    usage = {("a", "a1"): 10.0, ("a", "a2"): 60.0, ("b", "b1"): 0.0, ("b", "b2"): 50.0}
    found = factors(top, usage)
    assert [found[one] for one in (people[2], people[3], people[0], people[1])] == [
        1.0,
        0.75,
        0.5,
        0.25,
    ]
    assert set(factors(top, {}).values()) == {1.0}
    shares = [Association(account="a", shares=9), Association(account="b", shares=1)]
    skewed = factors(tree(shares, people), usage)
    assert skewed["a", "a1"] == 1.0
    assert skewed["b", "b2"] == 0.25


def test_users_of_equal_standing_share_a_rank() -> None:
    people = [("a", "a1"), ("a", "a2"), ("a", "a3")]
    found = factors(tree([], people), {("a", "a1"): 5.0})
    assert found == {("a", "a2"): 1.0, ("a", "a3"): 1.0, ("a", "a1"): pytest.approx(1 / 3)}


LIMITED = {
    "grp_gpus": ("QOSGrpGRES", "AssocGrpGRES"),
    "grp_memory": ("QOSGrpMemLimit", "AssocGrpMemLimit"),
    "memory_per_user": ("QOSMaxMemoryPerUser", None),
    "memory_per_account": ("QOSMaxMemoryPerAccount", None),
    "memory_per_job": ("QOSMaxMemoryPerJob", "AssocMaxMemPerJob"),
    "gpus_per_user": ("QOSMaxGRESPerUser", None),
    "gpus_per_account": ("QOSMaxGRESPerAccount", None),
    "gpus_per_job": ("QOSMaxGRESPerJob", "AssocMaxGRESPerJob"),
    "nodes_per_job": ("QOSMaxNodePerJobLimit", "AssocMaxNodePerJobLimit"),
    "nodes_per_user": ("QOSMaxNodePerUserLimit", None),
    "grp_nodes": ("QOSGrpNodeLimit", "AssocGrpNodeLimit"),
    "grp_jobs": ("QOSGrpJobsLimit", "AssocGrpJobsLimit"),
    "jobs_per_user": ("QOSMaxJobsPerUserLimit", "AssocMaxJobsLimit"),
    "jobs_per_account": ("QOSMaxJobsPerAccountLimit", None),
}


@pytest.mark.parametrize("limit", LIMITED)
def test_a_limit_stops_a_job_and_lets_others_past(limit: str) -> None:
    """Ada runs on four GPUs of one node and wants four of another one; bob comes after her. Each
    asks for 1 MiB a GPU."""
    most = 1 if "jobs" in limit or "nodes" in limit else 7
    if limit.endswith("per_job"):
        most = 0 if "nodes" in limit else 3
    of_qos, of_account = LIMITED[limit]
    other = {"user": "bob", "account": "other", "qos": "free"}
    jobs = [running(9, n1=4), waiting(1, 4), replace(waiting(2, 4), **other)]
    jobs = [replace(job, requested_memory=float(job.requested)) for job in jobs]
    problem = a_problem(jobs, now=NOW)
    qos = (Qos(name="normal", bounds=Bounds(**{limit: most})),)
    assert why(problem, 1, qos=qos) == of_qos
    assert set(started(problem, qos=qos)) == {2}
    if of_account is not None:
        own = (Association(account="lab", bounds=Bounds(**{limit: most})),)
        assert why(problem, 1, associations=own) == of_account
        # What the QOS says comes before what the association says.
        wide = (Qos(name="normal", bounds=Bounds(**{limit: 100})),)
        assert set(started(problem, associations=own, qos=wide)) == {1, 2}


def test_a_job_starts_where_its_licences_are_left() -> None:
    matlab = (("matlab", 2),)
    jobs = [replace(running(9, n1=4), licenses=(("matlab", 1),)), waiting(2, 4)]
    jobs.append(replace(waiting(1, 4), licenses=matlab))
    problem = a_problem(jobs, now=NOW)
    assert why(problem, 1, licenses=matlab) == "Licenses"
    assert set(started(problem, licenses=matlab)) == {2}
    assert set(started(problem, licenses=(("matlab", 3),))) == {1, 2}


def test_limits_on_length_size_and_minutes_hold() -> None:
    problem = a_problem([waiting(1, 4)], now=NOW)
    for bounds, reason in (
        (Bounds(wall=599.0), "QOSMaxWallDurationPerJobLimit"),
        (Bounds(least_gpus=5), "QOSMinGRES"),
        (Bounds(grp_gpu_minutes=0.0), "QOSGrpGRESMinutes"),
    ):
        assert why(problem, 1, qos=(Qos(name="normal", bounds=bounds),)) == reason


def test_the_qos_of_a_partition_comes_before_that_of_the_job() -> None:
    qos = (
        Qos(name="normal", bounds=Bounds(gpus_per_job=1)),
        Qos(name="large", bounds=Bounds(gpus_per_job=8)),
    )
    partitions = (Partition(name="gpu", qos="large"),)
    problem = a_problem([waiting(1, 4)], now=NOW)
    assert set(started(problem, qos=qos, partitions=partitions)) == {1}
    assert started(problem, qos=qos) == {}


def test_a_job_without_room_is_in_the_way_even_where_its_limits_forbid_its_start() -> None:
    """Slurm looks for nodes first: no room means that the partition waits."""
    jobs = [running(9, n1=4, n2=4, n3=4, n4=1), waiting(1, 4), waiting(2, 1, limit=10**7)]
    qos = (Qos(name="normal", bounds=Bounds(gpus_per_job=3)),)
    assert why(a_problem(jobs, now=NOW), 1, qos=qos, bf_max_job_test=0) == "Resources"
    assert started(a_problem(jobs, now=NOW), qos=qos, bf_max_job_test=0) == {}


def test_reserved_nodes_are_for_their_own_jobs_and_for_those_that_end_before() -> None:
    own = Reservation(name="class", nodes=frozenset({"n1", "n2"}), start=NOW + 600, end=NOW + 1200)
    short, long = waiting(1, 16, limit=500), waiting(2, 16, limit=700)
    student = waiting(3, 4, reservation="class")
    assert set(started(a_problem([short], now=NOW), reservations=(own,))) == {1}
    assert why(a_problem([long], now=NOW), 2, reservations=(own,)) == (
        "ReqNodeNotAvail, May be reserved for other job"
    )
    assert why(a_problem([student], now=NOW), 3, reservations=(own,)) == "Reservation"
    assert started(a_problem([student, long], now=NOW + 600), reservations=(own,)) == {3: {"n1": 4}}
    assert set(started(a_problem([long], now=NOW + 1200), reservations=(own,))) == {2}
    assert why(a_problem([student], now=NOW + 1200), 3, reservations=(own,)) == "ReservationDeleted"


def test_a_job_that_can_never_run_is_in_nobodys_way() -> None:
    partitions = (Partition(name="small", nodes=frozenset({"n1"})),)
    jobs = [waiting(1, 8), waiting(2, 1)]
    assert why(a_problem(jobs, now=NOW), 1, partitions=partitions) == "BadConstraints"
    assert set(started(a_problem(jobs, now=NOW), partitions=partitions)) == {2}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"associations": (Association(account="a", parent="a"),)}, "account a is below itself"),
        ({"qos": (Qos(name="q"), Qos(name="q"))}, "qos q is there twice"),
        ({"bf_interval": 0.0}, "bf_interval must be above 0"),
        ({"half_life": -1.0}, "half_life is -1, not 0 or more"),
    ],
)
def test_settings_that_make_no_sense_are_named(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        SlurmSettings(**fields)


def test_bounds_below_nothing_and_reservations_that_end_before_they_start_are_named() -> None:
    with pytest.raises(ValueError, match="the limit grp_gpus is -1, below 0"):
        Bounds(grp_gpus=-1)
    with pytest.raises(ValueError, match="reservation r ends before it starts"):
        Reservation(name="r", nodes=frozenset(), start=2.0, end=1.0)
    with pytest.raises(ValueError, match="account a: shares must not be below 0"):
        Association(account="a", shares=-1)


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[int, float, float]]:
    """GPUs, time limit in minutes and the part of it that is used, of jobs in a queue."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from([1, 1, 2, 4, 8, 16]),
                st.integers(1, 12).map(float),
                st.sampled_from([0.1, 0.5, 1.0]),
            ),
            min_size=1,
            max_size=10,
        )
    )


def simulate(
    jobs: list[Job], lasting: dict[int, float], **settings: Any
) -> tuple[dict[int, float], list[Problem]]:
    """When each job starts where all is decided at whole minutes, and what was asked then."""
    policy = Slurm(SlurmSettings(**settings))
    placed: dict[int, tuple[Placement, float]] = {}
    starts: dict[int, float] = {}
    asked: list[Problem] = []
    memory: object = None
    now, over = 0.0, set[int]()
    while len(over) < len(jobs):
        assert now < 10**5, "everybody comes to his turn"
        over |= {job for job, (_, began) in placed.items() if began + lasting[job] <= now}
        present = [
            replace(job, placement=placed[job.id][0], started=placed[job.id][1])
            if job.id in placed
            else job
            for job in jobs
            if job.id not in over
        ]
        problem = a_problem(present, now=now)
        found, memory = policy.plan(problem, memory, RNG)
        validate(problem, found)  # no GPU is given twice
        asked.append(problem)
        for id_, given_ in found.assignments.items():
            if id_ not in placed:
                placed[id_] = given_.placement, now
                starts[id_] = now
        now += 60.0
    return starts, asked


@settings(max_examples=20, deadline=None)
@given(crowds())
def test_no_gpu_is_given_twice_and_everybody_gets_his_turn(
    crowd: list[tuple[int, float, float]],
) -> None:
    jobs = [waiting(n, gpus, limit=60 * mins) for n, (gpus, mins, _) in enumerate(crowd, start=1)]
    lasting = {n: 60 * mins * part for n, (_, mins, part) in enumerate(crowd, start=1)}
    starts, _ = simulate(jobs, lasting)
    assert set(starts) == {int(job.id) for job in jobs}


@settings(max_examples=20, deadline=None)
@given(crowds())
def test_the_main_scheduler_alone_starts_jobs_in_their_order(
    crowd: list[tuple[int, float, float]],
) -> None:
    jobs = [waiting(n, gpus, limit=60 * mins) for n, (gpus, mins, _) in enumerate(crowd, start=1)]
    lasting = {n: 60 * mins * part for n, (_, mins, part) in enumerate(crowd, start=1)}
    starts, _ = simulate(jobs, lasting, bf_max_job_test=0)
    assert [starts[n] for n in sorted(starts)] == sorted(starts.values())


@settings(max_examples=20, deadline=None)
@given(crowds())
@example(
    [(gpus, float(minutes), 0.1) for gpus, minutes in
     ((4, 12), (8, 2), (1, 2), (1, 3), (1, 3), (1, 9), (1, 8), (8, 1), (2, 8))]
)  # fmt: skip
def test_backfill_delays_nobody_who_is_next_where_limits_are_true(
    crowd: list[tuple[int, float, float]],
) -> None:
    """Who is at the head of the queue can start when that was foreseen, though others were started.

    Foreseen is the end of a group of running jobs, as Slurm forms them, which may be later than
    that of those whose nodes he needs.
    """
    jobs = [waiting(n, gpus, limit=60 * mins) for n, (gpus, mins, _) in enumerate(crowd, start=1)]
    lasting = {n: 60 * mins for n, (_, mins, _) in enumerate(crowd, start=1)}
    _, asked = simulate(jobs, lasting, bf_resolution=1.0)
    for problem, following in pairwise(asked):
        queue = sorted(job.id for job in problem.jobs if job.placement is None)
        left = {job.id for job in following.jobs if job.placement is None}
        if queue and queue[0] in left:
            there = [job for job in following.jobs if job.placement or job.id == queue[0]]
            assert start_alone(there, lasting, following.now) <= foreseen(problem, queue[0])


def foreseen(problem: Problem, head: JobId) -> float:
    """When Slurm expects this job to start, by the limits of those that run."""
    floor = Floor(problem.nodes)
    free = {node.name: node.gpus for node in problem.nodes}
    held = []
    for job in problem.jobs:
        if job.placement is not None and job.started is not None and job.time_limit is not None:
            for name, gpus in job.placement.gpus_on:
                free[name] -= gpus
            on = tuple((floor.index[name], gpus) for name, gpus in job.placement.gpus_on)
            held.append(Held(job.started + job.time_limit, on))
    job = next(each for each in problem.jobs if each.id == head)
    form = Form(own_forms(job.shapes, job.requested, 0), floor.every, job.time_limit or 0.0, None)
    releases = Releases.of(floor, Free.of(list(free.values()), floor.most), held)
    start = releases.first(form, floor.every, problem.now)
    assert start is not None
    return start.at


def start_alone(jobs: list[Job], lasting: dict[int, float], now: float) -> float:
    """The start of the one job that waits, if nobody else came."""
    (head,) = [job for job in jobs if job.placement is None]
    while True:
        present = [
            job
            for job in jobs
            if job.placement is None or (job.started or 0.0) + lasting[int(job.id)] > now
        ]
        found, _ = Slurm().plan(a_problem(present, now=now), None, RNG)
        if head.id in found.assignments:
            return now
        now += 60.0
