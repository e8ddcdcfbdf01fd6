from __future__ import annotations

import json
from dataclasses import replace
from time import process_time

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_builders import PlainSpeed, a_cluster, a_job, a_problem, on, unusable

from ones.estimator.speed import AssumedSpeed
from ones.policies.fifo import Fifo
from ones.policies.invariants import validate
from ones.policies.model import MAX_WAIT, Batch, JobId, Placement, Plan, Policy, Problem
from ones.policies.ones import Ones
from ones.policies.ones_batch import SHARE, BatchLimit, batch_limits
from ones.policies.ones_seed import best_sizes
from ones.policies.ones_settings import Settings
from ones.policies.placement import Room
from ones.policies.srtf import Srtf

BATCHES = Batch(submitted=64, most_per_gpu=64, most=512)


def plan(problem: Problem, policy: Policy | None = None, memory: object = None) -> Plan:
    found, _ = (policy or Ones()).plan(problem, memory, np.random.default_rng(3))
    validate(problem, found)
    return found


def gpus(found: Plan) -> dict[int, int]:
    return {int(job): given.placement.gpus for job, given in found.assignments.items()}


def carried_out(problem: Problem, found: Plan, *, later: float = 100.0) -> Problem:
    """The problem once the plan is carried out, nothing else changed."""
    jobs = tuple(
        replace(
            job,
            placement=given.placement if (given := found.assignments.get(job.id)) else None,
            batch=given.batch if given else job.batch,
            started=problem.now,
        )
        for job in problem.jobs
    )
    return replace(problem, now=problem.now + later, jobs=jobs)


def test_an_empty_cluster_needs_no_plan() -> None:
    assert plan(a_problem([])) == Plan({})


def test_free_gpus_are_all_used() -> None:
    assert sum(gpus(plan(a_problem([a_job(i, "1-16") for i in (1, 2, 3)]))).values()) == 16


def test_waiting_jobs_start_at_once_where_gpus_are_free() -> None:
    jobs = [a_job(1, placement=on(n1=4, n2=4)), *(a_job(i) for i in (2, 3, 4))]
    assert set(gpus(plan(a_problem(jobs)))) == {1, 2, 3, 4}


def test_a_job_grows_into_free_gpus_where_that_pays() -> None:
    found = plan(a_problem([a_job(1, placement=on(n1=2))], left={1: 2000}))
    assert gpus(found)[1] > 2
    assert "grows 2 to" in found.assignments[JobId(1)].reason


def test_a_job_near_its_end_is_not_restarted_for_more_gpus() -> None:
    assert gpus(plan(a_problem([a_job(1, placement=on(n1=2))], left={1: 15}))) == {1: 2}


def test_a_gain_of_seconds_moves_nobody_though_the_move_takes_no_time() -> None:
    problem = a_problem([a_job(1, placement=on(n1=2))], left={1: 15}, restart_cost=0.5)
    assert gpus(plan(problem)) == {1: 2}
    assert gpus(plan(problem, Ones(Settings(least_charge=0.0))))[1] > 2
    assert gpus(plan(replace(problem, round_seconds=1.0)))[1] > 2


def test_a_long_job_shrinks_for_a_newcomer() -> None:
    jobs = [a_job(1, "1-16", placement=on(n1=4, n2=4, n3=4, n4=4)), a_job(2, "2-8")]
    found = gpus(plan(a_problem(jobs, left={1: 4000, 2: 300})))
    assert 1 <= found[1] < 16
    assert found[2] >= 2


def test_a_long_job_gives_way_to_a_burst_of_short_ones_that_cannot_fit_otherwise() -> None:
    jobs = [
        a_job(1, "8", placement=on(n1=4, n2=4)),
        a_job(2, "8", placement=on(n3=4, n4=4)),
        *(a_job(i, "4", requested=4) for i in (3, 4)),
    ]
    found = plan(a_problem(jobs, left={1: 8000, 2: 1000, 3: 100, 4: 100}))
    assert set(gpus(found)) == {2, 3, 4}
    assert found.idle[JobId(1)]


def test_nothing_moves_in_a_round_in_which_nothing_changed() -> None:
    nodes = a_cluster(types=("v100", "k80"))
    problem = a_problem([a_job(i, "1-8", nodes=nodes) for i in range(1, 7)], nodes)
    policy, rng = Ones(), np.random.default_rng(1)
    found, memory = policy.plan(problem, None, rng)
    for _ in range(5):
        problem = carried_out(problem, found, later=5.0)
        again, memory = policy.plan(problem, memory, rng)
        assert gpus(again) == gpus(found)
        assert [a.placement for a in again.assignments.values()] == [
            found.assignments[job].placement for job in again.assignments
        ]


def test_fixed_jobs_and_jobs_on_nodes_that_drain_stay_as_they_are() -> None:
    first, *others = a_cluster()
    jobs = [
        a_job(1, placement=on(n1=4)),
        a_job(2, placement=on(n2=1), fixed="in grace"),
        a_job(3, fixed="held by its user"),
        a_job(4, startable=False),
    ]
    found = plan(a_problem(jobs, [unusable(first), *others], left={1: 9000, 2: 9000}))
    assert {int(job): given.placement for job, given in found.assignments.items()} == {
        1: on(n1=4),
        2: on(n2=1),
    }
    assert found.idle[JobId(3)] == "held by its user"


def test_fast_gpus_go_to_where_they_count() -> None:
    nodes = a_cluster(2, types=("v100", "k80"))
    found = plan(a_problem([a_job(1, "4", requested=4, nodes=nodes)], nodes))
    assert found.assignments[JobId(1)].placement == on(n1=4)


def test_room_kept_for_a_plain_job_is_given_up() -> None:
    nodes = [replace(node, taken=2) for node in a_cluster(2)]
    found = plan(a_problem([a_job(1, "2-8", placement=on(n1=4, n2=4))], nodes))
    placement = found.assignments[JobId(1)].placement
    assert Room.of(nodes).fits(placement)


def test_small_jobs_make_way_where_free_gpus_are_scattered() -> None:
    jobs = [
        a_job(1, "2", placement=on(n1=2)),
        a_job(2, "2", placement=on(n2=2)),
        a_job(3, "4", requested=4, shapes=a_job(3, "4").shapes[:1]),
    ]
    found = plan(a_problem(jobs, a_cluster(2), left={1: 3000, 2: 3000, 3: 500}))
    assert gpus(found) == {1: 2, 2: 2, 3: 4}


def test_who_waited_too_long_comes_first() -> None:
    jobs = [
        a_job(1, "16", requested=16, waited=50.0),
        *(a_job(i, "4", requested=4) for i in range(2, 6)),
    ]
    left = {1: 9000.0} | dict.fromkeys(range(2, 6), 50.0)
    assert 1 not in gpus(plan(a_problem(jobs, left=left)))
    assert gpus(plan(a_problem(jobs, left=left), Ones(Settings(max_wait=10)))) == {1: 16}


def test_the_papers_score_also_leaves_no_gpu_unused() -> None:
    jobs = [a_job(i, "1-16") for i in (1, 2, 3)]
    found = plan(a_problem(jobs, left={1: 100}), Ones(Settings(objective="sruf")))
    assert sum(gpus(found).values()) == 16


def test_the_batch_stays_within_memory_and_its_limit() -> None:
    found = plan(a_problem([a_job(1, "1-8", batches=BATCHES)]))
    given = found.assignments[JobId(1)]
    assert given.batch is not None
    assert given.batch <= 64  # its limit at the start is what it was submitted with
    assert given.batch % given.placement.gpus == 0


def test_a_job_submitted_with_less_than_its_least_batch_starts_with_that() -> None:
    batches = replace(BATCHES, submitted=16, least_per_gpu=32)
    found = plan(a_problem([a_job(1, "2-8", batches=batches)]))
    assert found.assignments[JobId(1)].batch == 64


def test_a_job_that_names_no_batches_keeps_its_own() -> None:
    found = plan(a_problem([a_job(1, placement=on(n1=1), batch=48)], left={1: 5000}))
    assert found.assignments[JobId(1)].batch == 48


def limits_after(
    *,
    before: BatchLimit | None,
    rate: float = 0.0,
    epochs: float = 0.0,
    queue: bool = False,
    **job: object,
) -> BatchLimit:
    jobs = [a_job(1, batches=BATCHES, **job)] + ([a_job(2)] if queue else [])  # type: ignore[arg-type]
    problem = a_problem(jobs, arrival_rate=rate)
    outlook = replace(problem.outlooks[JobId(1)], epochs=epochs)
    problem = replace(problem, outlooks={**problem.outlooks, JobId(1): outlook})
    return batch_limits(problem, {JobId(1): before} if before else {})[JobId(1)]


def test_the_batch_limit_starts_at_the_submitted_batch() -> None:
    assert limits_after(before=None).most == 64


def test_the_batch_limit_doubles_at_most_once_a_finished_epoch() -> None:
    running = {"placement": on(n1=1), "batch": 64}
    after = limits_after(before=BatchLimit(64, 2, 64), epochs=5.5, **running)
    assert (after.most, after.epochs) == (128, 5)
    assert limits_after(before=after, epochs=5.9, **running).most == 128
    assert limits_after(before=BatchLimit(512, 2, 64), epochs=3, **running).most == 512


def test_a_preempted_job_comes_back_with_the_batch_it_had() -> None:
    assert limits_after(before=BatchLimit(256, 4, 128), epochs=4).most == 128


def test_while_jobs_queue_one_that_had_its_share_gives_back_half() -> None:
    job = {"placement": on(n1=1), "batch": 256, "executed": 1000.0, "queue": True}
    busy = limits_after(before=BatchLimit(256, 1, 256), epochs=2, rate=2 * SHARE / 1000, **job)
    calm = limits_after(before=BatchLimit(256, 1, 256), epochs=2, rate=SHARE / 2000, **job)
    assert (busy.most, calm.most) == (128, 512)


def test_the_exact_seed_is_no_worse_than_any_choice_of_sizes() -> None:
    rng = np.random.default_rng(5)
    sizes = np.tile(np.array([0, 1, 2, 4]), (4, 1))
    worth = rng.random((4, 2, 4, 1)).cumsum(axis=2)
    worth[:, :, 0] = 0.0
    capacity = np.array([4, 3])
    found = best_sizes(worth, sizes, capacity).chosen
    assert found is not None
    best = max(
        sum(worth[j, t, k, 0] for j, (t, k) in enumerate(choice))
        for choice in _all_choices(4)
        if all(
            sum(int(sizes[j, k]) for j, (t, k) in enumerate(choice) if t == kind) <= capacity[kind]
            for kind in (0, 1)
        )
    )
    got = sum(worth[j, t, k, level] for j, (t, k, level) in enumerate(found))
    assert np.isclose(got, best)


def _all_choices(jobs: int) -> list[tuple[tuple[int, int], ...]]:
    from itertools import product

    return list(product([(0, 0), *((t, k) for t in (0, 1) for k in (1, 2, 3))], repeat=jobs))


def test_a_round_of_forty_jobs_on_64_gpus_takes_little_time() -> None:
    rng = np.random.default_rng(2)
    nodes = a_cluster(16, 4, types=("v100", "k80"))
    jobs = [a_job(i, f"1-{rng.integers(2, 33)}", nodes=nodes) for i in range(1, 41)]
    problem = a_problem(jobs, nodes, left={i: float(rng.uniform(50, 5000)) for i in range(1, 41)})
    begun = process_time()
    plan(problem)
    assert process_time() - begun < 2.0


def test_what_is_carried_between_rounds_is_json_and_survives_a_changed_cluster() -> None:
    policy, rng = Ones(), np.random.default_rng(1)
    _, memory = policy.plan(a_problem([a_job(i) for i in (1, 2, 3)]), None, rng)
    memory = json.loads(json.dumps(memory))
    plan(a_problem([a_job(i) for i in (2, 4)], a_cluster(2)), policy, memory)
    plan(a_problem([a_job(i) for i in (2, 4)], a_cluster(6)), policy, memory)
    plan(a_problem([a_job(1)]), policy, {"version": 0, "jobs": "of another release"})


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any cluster of a few nodes with any mixture of running, waiting, fixed and odd jobs."""
    types = draw(st.sampled_from([("v100",), ("v100", "k80")]))
    nodes = [
        replace(node, taken=draw(st.sampled_from([0, 0, 1, 4])), usable=draw(st.integers(0, 5)) > 0)
        for node in a_cluster(draw(st.integers(1, 5)), 4, types=types)
    ]
    room = Room.of(nodes)
    jobs, left = [], {}
    for id_ in range(1, draw(st.integers(0, 7)) + 1):
        job = a_job(
            id_,
            draw(st.sampled_from(["1-8", "2-16", "4,8", "1,2,4", "3", "6", "16"])),
            requested=draw(st.integers(1, 8)),
            nodes=draw(st.sampled_from([nodes, nodes[:1], nodes[1:] or nodes])),
            fixed=draw(st.sampled_from(["", "", "", "in grace"])),
            startable=draw(st.integers(0, 5)) > 0,
            batches=draw(st.sampled_from([None, BATCHES])),
            waited=draw(st.sampled_from([0.0, 20000.0])),
        )
        placement: Placement | None = None
        if job.shapes and draw(st.booleans()):
            placement = room.place(draw(st.sampled_from(job.shapes)), job.nodes)
        if placement is not None:
            room.take(placement)
            batch = placement.gpus * draw(st.sampled_from([8, 16])) if job.batches else None
            job = replace(job, placement=placement, batch=batch, started=0.0)
        jobs.append(job)
        left[id_] = draw(st.sampled_from([0.1, 30.0, 300.0, 30000.0]))
    return a_problem(jobs, nodes, left=left, arrival_rate=draw(st.sampled_from([0.0, 0.01])))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.integers(0, 99))
def test_every_plan_keeps_within_the_cluster_and_names_every_job(
    problem: Problem, seed: int
) -> None:
    small = Settings(population=8, generations=2)
    for policy in (Fifo(), Srtf(), Ones(small), Ones(replace(small, objective="sruf"))):
        first, memory = policy.plan(problem, None, np.random.default_rng(seed))
        validate(problem, first)
        assert first.assignments.keys() | first.idle.keys() == {job.id for job in problem.jobs}
        again, same = policy.plan(problem, None, np.random.default_rng(seed))
        assert (again, same) == (first, memory)
        later = carried_out(problem, first)
        memory = json.loads(json.dumps(memory))
        validate(later, policy.plan(later, memory, np.random.default_rng(seed))[0])


def test_a_job_is_not_spread_over_nodes_that_would_slow_it() -> None:
    speed = PlainSpeed(between_nodes=2.0)
    problem = a_problem([a_job(1, "1-8")], left={1: 1000.0})
    outlook = replace(problem.outlooks[JobId(1)], speed=speed)
    assert gpus(plan(replace(problem, outlooks={JobId(1): outlook}))) == {1: 4}


def test_the_gap_is_a_plain_number_as_json_has_it() -> None:
    """Where a job makes way for a larger one at the size that it has, too."""
    nodes = a_cluster(2, 4)
    small = [a_job(i, "1", requested=1, nodes=nodes, placement=on(**{f"n{i}": 1})) for i in (1, 2)]
    large = a_job(3, "4", requested=4, nodes=nodes)
    found = plan(a_problem([*small, large], nodes, left={1: 1e4, 2: 1e4}))
    assert found.assignments[JobId(3)].placement.gpus == 4
    assert type(found.gap) is float


def guessed(problem: Problem, *jobs: int) -> Problem:
    """The problem in which nobody knows how long these jobs are."""
    outlooks = {
        id_: replace(one, guessed=True) if id_ in jobs else one
        for id_, one in problem.outlooks.items()
    }
    return replace(problem, outlooks=outlooks)


def one_that_runs_and_one_that_waits(**waits: float) -> Problem:
    """Both can have all GPUs or none; the one that waits seems far shorter."""
    jobs = [
        a_job(1, "16", requested=16, placement=on(n1=4, n2=4, n3=4, n4=4)),
        a_job(2, "16", requested=16, **waits),
    ]
    return a_problem(jobs, left={1: 50_000.0, 2: 500.0})


def test_a_running_job_is_stopped_for_one_that_is_known_to_be_far_shorter() -> None:
    assert gpus(plan(one_that_runs_and_one_that_waits())) == {2: 16}


def test_a_guess_stops_no_running_job() -> None:
    problem = one_that_runs_and_one_that_waits()
    for unknown in ((2,), (1, 2)):
        assert gpus(plan(guessed(problem, *unknown))) == {1: 16}


def test_what_is_known_comes_before_a_running_guess() -> None:
    assert gpus(plan(guessed(one_that_runs_and_one_that_waits(), 1))) == {2: 16}


def test_a_running_job_is_stopped_for_none_that_is_shorter_by_less_than_the_stop_destroys() -> None:
    """A restart of 10 s on 16 GPUs destroys 160 GPU-seconds."""
    problem = one_that_runs_and_one_that_waits()
    speed = PlainSpeed(fixed=0.0, between_nodes=0.0)
    outlooks = {
        id_: replace(one, remaining=10_000.0 if id_ == 1 else 9_900.0, speed=speed)
        for id_, one in problem.outlooks.items()
    }
    assert gpus(plan(replace(problem, outlooks=outlooks))) == {1: 16}


def test_who_waited_too_long_stops_a_running_job_whatever_is_known() -> None:
    problem = guessed(one_that_runs_and_one_that_waits(waited=2 * MAX_WAIT), 1, 2)
    assert gpus(plan(problem)) == {2: 16}


def unmeasured(problem: Problem, *jobs: int) -> Problem:
    """The problem in which these jobs, nor any like them, have run yet."""
    outlooks = {
        id_: replace(
            one,
            speed=AssumedSpeed(one.remaining / 1000.0, problem.jobs[0].requested),
            guessed=True,
            processed=0.0,
            points=0,
        )
        if id_ in jobs
        else one
        for id_, one in problem.outlooks.items()
    }
    return replace(problem, outlooks=outlooks)


def test_jobs_without_history_take_up_to_twice_what_they_asked_for_of_what_is_idle() -> None:
    problem = a_problem([a_job(i) for i in (1, 2, 3)])
    assert gpus(plan(unmeasured(problem, 1, 2, 3))) == {1: 4, 2: 4, 3: 4}


def test_a_job_without_history_takes_no_more_than_it_asked_for_where_others_can_use_it() -> None:
    problem = unmeasured(a_problem([a_job(1), a_job(2, "1-16")]), 1)
    scales = replace(problem.outlooks[JobId(2)], speed=PlainSpeed(fixed=0.0, between_nodes=0.0))
    problem = replace(problem, outlooks={**problem.outlooks, JobId(2): scales})
    found = gpus(plan(problem))
    assert found.get(1, 0) <= 2
    assert found[2] >= 14


def test_a_running_job_shrinks_for_one_of_which_little_is_known() -> None:
    jobs = [a_job(1, "1-16", placement=on(n1=4, n2=4, n3=4, n4=4)), a_job(2, "1-16")]
    found = gpus(plan(guessed(a_problem(jobs, left={1: 50_000.0, 2: 500.0}), 2)))
    assert set(found) == {1, 2}
