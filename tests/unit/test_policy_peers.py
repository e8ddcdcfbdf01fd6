from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from policy_builders import PlainSpeed, a_cluster, a_job, a_problem, an_outlook, on, unusable

from ones.policies.invariants import validate
from ones.policies.model import Batch, Job, JobId, Node, Outlook, Plan, Policy, Problem, Segment
from ones.policies.optimus import Optimus
from ones.policies.placement import Room
from ones.policies.pollux import Pollux
from ones.policies.pollux_search import (
    Question,
    _crowding,
    _fronts,
    _repair,
    _survivors,
    evaluate,
    search,
)
from ones.policies.shockwave import Shockwave
from ones.policies.sia import Sia
from ones.policies.sia_choice import Menu, by_integer_programme, by_table
from ones.policies.tiresias import Tiresias

ALL: list[Policy] = [Tiresias(), Optimus(), Pollux(generations=20), Sia(), Shockwave()]
ADAPTIVE = [Pollux(generations=40), Sia()]
HOUR = 3600.0


def plan(policy: Policy, problem: Problem, memory: object = None) -> tuple[Plan, object]:
    found, kept = policy.plan(problem, memory, np.random.default_rng(0))
    validate(problem, found)
    return found, json.loads(json.dumps(kept))


def gpus(found: Plan) -> dict[int, int]:
    return {int(job): given.placement.gpus for job, given in found.assignments.items()}


def elastic(id_: int, sizes: str = "1-16", **more: object) -> Job:
    """A job that takes any split over nodes and tunes its batch, as those of a replay."""
    batches = Batch(
        submitted=256,
        most_per_gpu=256,
        most=4096,
        least_per_gpu=16,
        initial=64,
        accumulates=True,
        tunes=True,
    )
    return a_job(id_, sizes, **({"uneven": True, "batches": batches} | more))


def outlook(
    *, remaining: float = 1e5, fixed: float = 0.02, noise: float = 1e4, points: int = 3
) -> Outlook:
    """Of a job that scales well as long as its fixed share is small and its noise scale large."""
    return replace(
        an_outlook(remaining),
        speed=PlainSpeed(sample_seconds=0.01, fixed=fixed, between_nodes=fixed),
        points=points,
        segments=(Segment(remaining / 2, noise), Segment(remaining / 2, noise)),
    )


def problem_of(
    jobs: list[Job],
    outlooks: dict[int, Outlook] | None = None,
    *,
    nodes: list[Node] | None = None,
    now: float = 1000.0,
) -> Problem:
    problem = a_problem(jobs, nodes, now=now)
    given = {job.id: (outlooks or {}).get(job.id, outlook()) for job in jobs}
    return replace(problem, outlooks=given)


def carried_out(problem: Problem, found: Plan, *, seconds: float = 60.0) -> Problem:
    """The next round's problem when everything went as planned."""
    jobs = []
    for job in problem.jobs:
        given = found.assignments.get(job.id)
        placement = given.placement if given else None
        moved = placement != job.placement
        jobs.append(
            replace(
                job,
                placement=placement,
                started=(problem.now if moved else job.started) if placement else None,
                executed=job.executed + (seconds if placement else 0.0),
            )
        )
    return replace(problem, now=problem.now + seconds, jobs=tuple(jobs))


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
class TestAnyPeer:
    def test_a_fixed_job_stays_and_its_gpus_are_nobody_elses(self, policy: Policy) -> None:
        jobs = [
            elastic(1, placement=on(n1=4, n2=2), fixed="in grace", batch=256),
            *(elastic(number, requested=4) for number in range(2, 6)),
        ]
        found, _ = plan(policy, problem_of(jobs))
        assert found.assignments[JobId(1)].placement == on(n1=4, n2=2)
        assert sum(gpus(found).values()) <= 16

    def test_a_job_that_may_not_start_waits_with_its_reason(self, policy: Policy) -> None:
        found, _ = plan(policy, problem_of([elastic(1, startable=False), elastic(2)]))
        assert JobId(1) in found.idle
        assert JobId(2) in found.assignments

    def test_nothing_goes_to_an_unusable_node(self, policy: Policy) -> None:
        nodes = [*a_cluster()[:2], *(unusable(node) for node in a_cluster()[2:])]
        found, _ = plan(policy, problem_of([elastic(1), elastic(2)], nodes=nodes))
        used = {name for one in found.assignments.values() for name in one.placement.nodes}
        assert used <= {"n1", "n2"}

    def test_a_job_of_slurms_gets_its_own_shapes_only(self, policy: Policy) -> None:
        jobs = [
            elastic(number, "1-8", uneven=False, requested=size)
            for number, size in enumerate((3, 5, 8, 2, 6), start=1)
        ]
        problem, memory = problem_of(jobs), None
        for _ in range(5):
            found, memory = plan(policy, problem, memory)  # validated there
            problem = carried_out(problem, found)
        assert found.assignments

    def test_no_job_mixes_gpu_types(self, policy: Policy) -> None:
        nodes = a_cluster(4, types=("k80", "v100"))
        jobs = [elastic(number, requested=6, nodes=nodes) for number in range(1, 4)]
        problem, memory = problem_of(jobs, nodes=nodes), None
        for _ in range(5):
            found, memory = plan(policy, problem, memory)
            problem = carried_out(problem, found)
        assert found.assignments

    def test_the_same_seed_gives_the_same_plan(self, policy: Policy) -> None:
        problem = problem_of([elastic(number) for number in range(1, 9)])
        assert plan(policy, problem)[0] == plan(policy, problem)[0]

    def test_who_has_waited_too_long_is_served(self, policy: Policy) -> None:
        jobs = [elastic(number, "4", requested=4) for number in range(1, 6)]
        jobs[4] = replace(jobs[4], waited=5 * HOUR)
        patient = replace(policy, max_wait=4 * HOUR)  # type: ignore[type-var]
        found, _ = plan(patient, problem_of(jobs))
        assert JobId(5) in found.assignments

    def test_jobs_wait_where_others_have_all_gpus(self, policy: Policy) -> None:
        nodes = [replace(node, taken=4) for node in a_cluster()]
        found, _ = plan(policy, problem_of([elastic(1), elastic(2)], nodes=nodes))
        assert not found.assignments

    def test_a_job_of_one_odd_size_runs(self, policy: Policy) -> None:
        nodes = a_cluster(6)
        jobs = [
            elastic(1, "6", requested=6, nodes=nodes),
            elastic(2, "3", requested=3, nodes=nodes),
            elastic(3, "6", requested=6, nodes=nodes, uneven=False),
        ]
        found, _ = plan(policy, problem_of(jobs, nodes=nodes))
        assert gpus(found) == {1: 6, 2: 3, 3: 6}

    def test_nodes_that_others_use_in_part_are_no_reason_to_preempt(self, policy: Policy) -> None:
        nodes = [replace(node, taken=1) for node in a_cluster()]
        jobs = [
            elastic(number, "1-4", uneven=False, requested=2, placement=on(**{f"n{number}": 2}))
            for number in (1, 2)
        ]
        problem, memory = problem_of(jobs, nodes=nodes), None
        for _ in range(3):
            found, memory = plan(policy, problem, memory)
            assert set(gpus(found)) == {1, 2}
            problem = carried_out(problem, found)

    def test_without_jobs_there_is_nothing_to_do(self, policy: Policy) -> None:
        assert plan(policy, problem_of([]))[0] == Plan({}, {})


def test_tiresias_serves_at_the_requested_size_in_order_of_submission() -> None:
    jobs = [elastic(number, requested=6) for number in (3, 1, 2)]
    assert gpus(plan(Tiresias(), problem_of(jobs))[0]) == {1: 6, 2: 6}


def test_tiresias_lets_a_smaller_job_pass_one_that_does_not_fit() -> None:
    jobs = [elastic(1, requested=12), elastic(2, requested=12), elastic(3, requested=4)]
    assert gpus(plan(Tiresias(), problem_of(jobs))[0]) == {1: 12, 3: 4}


def test_tiresias_preempts_who_has_had_16_gpu_hours() -> None:
    old = elastic(1, requested=16, placement=on(n1=4, n2=4, n3=4, n4=4))
    young = elastic(2, requested=8)
    before = replace(old, executed=HOUR - 1)
    assert gpus(plan(Tiresias(), problem_of([before, young]))[0]) == {1: 16}
    after = replace(old, executed=HOUR)
    assert gpus(plan(Tiresias(), problem_of([after, young]))[0]) == {2: 8}


def test_tiresias_keeps_the_second_queue_in_the_order_of_demotion() -> None:
    first = elastic(2, requested=12, executed=2 * HOUR)
    second = elastic(1, requested=12)
    _, memory = plan(Tiresias(), problem_of([second, first]))
    found, _ = plan(Tiresias(), problem_of([replace(second, executed=2 * HOUR), first]), memory)
    assert gpus(found) == {2: 12}


def test_tiresias_leaves_running_jobs_where_they_are_and_fills_the_emptiest_node() -> None:
    jobs = [
        elastic(1, requested=2, placement=on(n1=2)),
        elastic(2, requested=1, placement=on(n2=1)),
        elastic(3, requested=5),
    ]
    found, _ = plan(Tiresias(), problem_of(jobs))
    assert found.assignments[JobId(1)].placement == on(n1=2)
    assert found.assignments[JobId(2)].placement == on(n2=1)
    assert found.assignments[JobId(3)].placement == on(n3=4, n4=1)


def test_optimus_gives_everybody_a_gpu_before_anybody_two() -> None:
    jobs = [elastic(number) for number in range(1, 17)]
    assert set(gpus(plan(Optimus(), problem_of(jobs))[0]).values()) == {1}


def test_optimus_gives_most_to_the_job_with_most_left_to_do() -> None:
    looks = {1: outlook(remaining=1e5), 2: outlook(remaining=1e7)}
    found, _ = plan(Optimus(), problem_of([elastic(1), elastic(2)], looks))
    assert gpus(found)[2] > gpus(found)[1]
    assert sum(gpus(found).values()) == 16


def test_optimus_stops_where_a_gpu_saves_nothing() -> None:
    found, _ = plan(Optimus(), problem_of([elastic(1)], {1: outlook(fixed=1.0)}))
    assert gpus(found) == {1: 1}


def test_optimus_leaves_each_gpu_the_least_local_batch() -> None:
    found, _ = plan(Optimus(), problem_of([elastic(1)]))  # 256 samples in parts of 16 at least
    assert gpus(found) == {1: 16}
    job = replace(elastic(1), batches=replace(elastic(1).batches, least_per_gpu=64))
    assert gpus(plan(Optimus(), problem_of([job]))[0]) == {1: 4}


@pytest.mark.parametrize("policy", ADAPTIVE, ids=lambda policy: policy.name)
class TestAdaptivePeers:
    def test_a_new_job_starts_on_one_gpu_with_its_least_batch(self, policy: Policy) -> None:
        found, _ = plan(policy, problem_of([elastic(1)], {1: outlook(points=0)}))
        given = found.assignments[JobId(1)]
        assert (given.placement.gpus, given.batch) == (1, 64)

    def test_a_job_at_most_doubles_what_it_has_run_on(self, policy: Policy) -> None:
        problem, memory, seen = problem_of([elastic(1)]), None, []
        for _ in range(6):
            found, memory = plan(policy, problem, memory)
            problem = carried_out(problem, found, seconds=3600)
            seen.append(gpus(found)[1])
        assert seen == [1, 2, 4, 8, 16, 16]

    def test_the_batch_is_the_one_of_the_largest_goodput(self, policy: Policy) -> None:
        running = elastic(1, "2", placement=on(n1=2), batch=64)
        for noise, speed, wanted in ((1.0, PlainSpeed(), 64), (1e9, _Overhead(), 4096)):
            look = replace(outlook(noise=noise), speed=speed)
            found, _ = plan(policy, problem_of([running], {1: look}))
            assert found.assignments[JobId(1)].batch == wanted

    def test_a_job_that_scales_gets_more_than_one_that_does_not(self, policy: Policy) -> None:
        jobs = [
            elastic(1, placement=on(n1=4, n2=4)),
            elastic(2, placement=on(n3=4, n4=4)),
        ]
        looks = {1: outlook(fixed=0.001), 2: outlook(fixed=0.5)}
        problem, memory = problem_of(jobs, looks, now=1e6), None
        for _ in range(4):
            found, memory = plan(policy, problem, memory)
            problem = carried_out(problem, found)
        assert gpus(found)[1] > gpus(found)[2]

    def test_a_young_job_is_not_restarted_for_a_little(self, policy: Policy) -> None:
        """Its restart factor, age / (age + 30 s), makes four GPUs worth less than three."""
        job = elastic(1, "3-4", placement=on(n1=3), submitted=1000.0, started=1000.0)
        memory = {"at": 1000.0, "past": {"1": [[["n1", 3]], 1, 3, 0.0]}}
        problem = problem_of([job], now=1060.0)
        if policy.name == "sia":
            job = replace(job, sizes=elastic(1, "2,4").sizes, placement=on(n1=2))
            memory = {"at": 1000.0, "past": {"1": [[["n1", 2]], 4, 2, 0.0]}}
            problem = problem_of([job], now=1060.0)
        found, _ = plan(policy, problem, memory)
        assert found.assignments[JobId(1)].placement == job.placement


class _Overhead(PlainSpeed):
    """A step that costs a second however small its batch is."""

    def step_seconds(self, gpu_type, nodes, gpus, global_batch):  # type: ignore[no-untyped-def]
        return 1.0 + 0.0001 * np.asarray(global_batch) / gpus


def test_pollux_shares_alike_between_alike_jobs() -> None:
    placements = [on(n1=1), on(n2=1), on(n3=1), on(n4=1)]
    jobs = [elastic(number + 1, placement=one) for number, one in enumerate(placements)]
    problem, memory = problem_of(jobs, now=1e6), None
    for _ in range(6):
        found, memory = plan(Pollux(), problem, memory)
        problem = carried_out(problem, found)
    assert set(gpus(found).values()) == {4}


def test_pollux_carries_its_population_over_to_new_jobs_and_nodes() -> None:
    problem = problem_of([elastic(1), elastic(2)])
    _, memory = plan(Pollux(generations=5), problem)
    grown = problem_of([elastic(2), elastic(3)], nodes=a_cluster(6))
    found, memory = plan(Pollux(generations=5), grown, memory)
    assert set(gpus(found)) == {2, 3}
    assert memory["population"]["jobs"] == [2, 3] or memory["population"]["jobs"] == [3, 2]


def a_question(jobs: int = 6, nodes: int = 4, **more: object) -> Question:
    """Jobs that scale perfectly on empty nodes of 4 GPUs."""
    total = 4 * nodes
    speedup = np.broadcast_to(np.arange(total + 1.0), (jobs, 1, 1, total + 1)).copy()
    fields = {
        "capacity": np.full(nodes, 4),
        "kinds": np.zeros(nodes, dtype=np.int64),
        "base": np.zeros((jobs, nodes), dtype=np.int16),
        "pinned": 0,
        "fits": np.full((jobs, nodes), 4, dtype=np.int16),
        "most": np.full(jobs, total),
        "speedup": speedup,
        "node_class": np.zeros(nodes + 1, dtype=np.int64),
        "factor": np.ones(jobs),
        "weight": np.ones(jobs),
    }
    return Question(**(fields | more))


@pytest.mark.parametrize("seed", range(5))
def test_repair_keeps_to_the_cluster_and_to_each_jobs_most(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = np.zeros((6, 4), dtype=np.int16)
    base[0, :2] = 3
    question = a_question(base=base, pinned=1, most=rng.integers(1, 9, size=6))
    question.most[0] = 6
    states = rng.integers(0, 5, size=(50, 6, 4)).astype(np.int16)
    repaired = _repair(question, states, rng)
    assert (repaired.sum(axis=1) <= 4).all()
    assert (repaired.sum(axis=2) <= question.most).all()
    assert (repaired[:, 0] == base[0]).all()
    distributed = ((repaired > 0).sum(axis=2) > 1)[:, :, None] & (repaired > 0)
    assert (distributed.sum(axis=1) <= 1).all()


def test_repair_keeps_a_job_on_one_gpu_type() -> None:
    rng = np.random.default_rng(0)
    question = a_question(kinds=np.array([0, 0, 1, 1]))
    question = replace(question, speedup=np.repeat(question.speedup, 2, axis=1))
    repaired = _repair(question, rng.integers(0, 3, size=(50, 6, 4)).astype(np.int16), rng)
    of_first = repaired[:, :, :2].any(axis=2)
    of_second = repaired[:, :, 2:].any(axis=2)
    assert not (of_first & of_second).any()


def test_a_job_without_gpus_ruins_the_power_mean() -> None:
    question = a_question(2)
    fair = np.array([[4, 0, 0, 0], [0, 4, 0, 0]])
    unfair = np.array([[4, 4, 4, 4], [0, 0, 0, 0]])
    values = evaluate(question, np.stack((fair, unfair)).astype(np.int16))
    assert values[0, 0] == pytest.approx(-(4 * 4 / 16 + 1e-3))
    assert values[1, 0] > -0.01


def test_a_moved_job_counts_with_its_restart_factor() -> None:
    base = np.array([[4, 0, 0, 0]], dtype=np.int16)
    question = a_question(1, base=base, factor=np.array([0.5]))
    moved = np.array([[0, 4, 0, 0]], dtype=np.int16)
    stays, goes = evaluate(question, np.stack((base, moved)))[:, 0] + 1e-3
    assert goes == pytest.approx(stays / 2)


def test_the_search_never_loses_its_fittest() -> None:
    question = a_question(8)
    best = 0.0
    start = np.zeros((1, 8, 4), dtype=np.int16)
    for generations in (0, 20, 100):
        found = search(
            question, start, np.random.default_rng(1), population=50, generations=generations
        )
        assert found.values[0, 0] <= best
        best = found.values[0, 0]
    assert best == pytest.approx(-0.5, abs=0.05)  # two GPUs for each of eight jobs


def test_fronts_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 6, size=(60, 2)).astype(float)
    front = _fronts(values)
    left = np.ones(len(values), dtype=bool)
    number = 0
    while left.any():
        dominates = (values[:, None] <= values).all(axis=2) & (values[:, None] < values).any(axis=2)
        first = left & ~(dominates & left[:, None]).any(axis=0)
        assert (front[first] == number).all()
        left &= ~first
        number += 1


def test_the_ends_of_a_front_are_never_crowded_out() -> None:
    values = np.array([[0.0, 4.0], [1.0, 3.0], [1.1, 2.9], [2.0, 2.0], [4.0, 0.0], [0.0, 4.0]])
    crowding = _crowding(values, np.zeros(6, dtype=np.int64))
    assert np.isinf(crowding[[0, 4]]).all()
    assert crowding[5] == 0.0  # a repeat
    kept = _survivors(np.zeros((6, 1, 1), dtype=np.int16), values, 3)
    assert {(0.0, 4.0), (4.0, 0.0)} <= {tuple(row) for row in kept.values.tolist()}


def test_sia_hands_out_powers_of_two_and_whole_nodes() -> None:
    jobs = [elastic(number, placement=on(**{f"n{number}": 3})) for number in range(1, 4)]
    problem, memory = problem_of(jobs, now=1e6), None
    for _ in range(4):
        found, memory = plan(Sia(), problem, memory)
        problem = carried_out(problem, found)
        assert set(gpus(found).values()) <= {1, 2, 4, 8, 12, 16}
    whole = [one.placement for one in found.assignments.values() if one.placement.gpus > 4]
    assert all(count == 4 for placement in whole for _, count in placement.gpus_on)


def test_sia_leaves_a_job_alone_in_the_midst_of_its_restart() -> None:
    job = elastic(1, placement=on(n1=1), started=995.0)
    assert gpus(plan(Sia(), problem_of([job]))[0]) == {1: 1}
    later = replace(job, started=900.0)
    assert gpus(plan(Sia(), problem_of([later]))[0]) == {1: 2}


def test_sia_takes_the_faster_gpu_type_for_the_job_that_gains_by_it() -> None:
    nodes = a_cluster(2, types=("k80", "v100"))
    jobs = [elastic(1, "4", nodes=nodes, requested=4, submitted=0.0)]
    found, _ = plan(Sia(), problem_of(jobs, nodes=nodes))
    assert found.assignments[JobId(1)].placement == on(n2=4)


def test_sia_moves_small_jobs_out_of_the_way_of_whole_nodes() -> None:
    """Each node holds one small job; together they fit one node, and the large job two."""
    nodes = a_cluster(3)
    jobs = [
        elastic(1, "1", nodes=nodes, placement=on(n1=1), started=0.0),
        elastic(2, "1", nodes=nodes, placement=on(n2=1), started=0.0),
        elastic(3, "1", nodes=nodes, placement=on(n3=1), started=0.0),
        elastic(4, "8", nodes=nodes, requested=8),
    ]
    found, _ = plan(Sia(), problem_of(jobs, nodes=nodes))
    assert gpus(found) == {1: 1, 2: 1, 3: 1, 4: 8}


def test_sia_leaves_unchanged_configurations_where_they_are() -> None:
    jobs = [elastic(number, "2", placement=on(**{f"n{number}": 2})) for number in range(1, 5)]
    problem = problem_of(jobs)
    found, _ = plan(Sia(), problem)
    assert all(found.assignments[job.id].placement == job.placement for job in jobs)


@pytest.mark.parametrize("types", [("v100",), ("k80", "v100")])
def test_sias_table_is_as_good_as_its_integer_programme(types: tuple[str, ...]) -> None:
    rng = np.random.default_rng(1)
    menu = Menu.of(Room.of(a_cluster(4, types=types)), [], most=16)
    for _ in range(20):
        cost = np.round(rng.uniform(-1.1, 0.3, size=(7, len(menu.gpus))), 2)
        cost[rng.random(cost.shape) < 0.3] = np.inf
        found = [by_table(cost, menu), by_integer_programme(cost, menu)]
        sums = []
        for chosen in found:
            taken = [one for one in chosen if one >= 0]
            for kind, free in enumerate(menu.free):
                assert sum(menu.gpus[one] for one in taken if menu.kind[one] == kind) <= free
            sums.append(sum(cost[job, one] for job, one in enumerate(chosen) if one >= 0))
        assert sums[0] <= sums[1] + 1e-9
        assert sums[0] == pytest.approx(sums[1], rel=2e-4)
