"""Limits of the site on several jobs together: no plan of any policy is beyond them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, decided, on

from ones.daemon.onesd.deciding import Question, answer
from ones.policies.caps import exceeded, final, most_taken, narrow, of_shape, taken
from ones.policies.cutting import within
from ones.policies.fifo import Fifo
from ones.policies.guard import History, Limits, check, freeze
from ones.policies.invariants import PlanError, validate
from ones.policies.model import Assignment, Cap, Job, JobId, Plan, Problem, Shape, Take
from ones.policies.moves import Move
from ones.policies.ones_caps import CapTable, best_within, still_left, tabled
from ones.policies.ones_options import Options, build
from ones.policies.ones_settings import Settings
from ones.policies.registry import make
from ones.policies.round import decide

NODES = a_cluster(4, 4)
WORDS = "QOS normal allows 4 GPUs a user; ada has 2"


def a_cap(left: float, *jobs: int, words: str = WORDS, **more: Any) -> Cap:
    take = more.pop("take", Take(gpu=1.0))
    return Cap(words=words, left=left, takes={JobId(job): take for job in jobs}, **more)


def sizes(problem: Problem, plan: Plan) -> dict[int, int]:
    return {int(job): placement.gpus for job, placement in final(problem, plan).items()}


def test_a_job_is_offered_no_size_beyond_a_cap() -> None:
    job = a_job(1, "1-8", nodes=NODES, placement=on(n1=2))
    (less,) = narrow(a_problem([job], NODES, caps=(a_cap(4, 1),))).jobs
    assert max(shape.gpus for shape in less.shapes) == 4
    assert less.limited == WORDS


def test_a_job_beyond_a_lowered_limit_keeps_what_it_has() -> None:
    job = a_job(1, "1-8", nodes=NODES, placement=on(n1=4, n2=4))
    (less,) = narrow(a_problem([job], NODES, caps=(a_cap(2, 1),))).jobs
    assert {shape.gpus for shape in less.shapes} == {1, 2, 8}
    for policy in ("ones", "fifo", "sia", "gavel:max_min_fairness_perf"):
        found = decided(a_problem([job], NODES, caps=(a_cap(2, 1),)), policy)
        targets = [move.target for move in found.verdict.allowed]
        assert all(target is not None and target.gpus <= 2 for target in targets), policy


@pytest.mark.parametrize(("left", "starts"), [(6, {1: 6, 2: 8}), (8, {2: 8})])
def test_no_room_is_kept_for_whom_slurm_would_not_start_for_a_limit(
    left: float, starts: Mapping[int, int]
) -> None:
    """Its turn in Slurm's queue may be long past: GPUs would stand idle until the limit allows it.

    Meanwhile it may have fewer; where the limit allows its request, Slurm starts it on its room.
    """
    queued = a_job(1, "4-8", nodes=NODES, requested=8, queued=True)
    other = a_job(2, "4-8", nodes=NODES, requested=8)
    problem = a_problem([queued, other], NODES, caps=(a_cap(left, 1),))
    question = Question(problem=problem, history=History(), limits=Limits(), plain=())
    found = answer(question, make("fifo"), None, np.random.default_rng(0))
    assert found.rigid is not None
    assert JobId(1) in found.rigid.claims
    assert {int(move.job): move.target and move.target.gpus for move in found.moves} == starts


def test_what_a_cap_leaves_nothing_of_waits_and_says_why() -> None:
    jobs = [a_job(1, "1-4", nodes=NODES), a_job(2, "1-4", nodes=NODES)]
    found = decided(a_problem(jobs, NODES, caps=(a_cap(0, 1),)))
    assert found.plan.idle[JobId(1)] == WORDS
    assert sizes(found.problem, found.plan) == {2: 2}
    assert found.fault == ""


def test_who_is_cut_leaves_the_gpus_to_others() -> None:
    alices = [a_job(i, "4", requested=4, nodes=NODES) for i in range(1, 7)]
    bob = a_job(9, "4", requested=4, nodes=NODES)
    found = decided(a_problem([*alices, bob], NODES, caps=(a_cap(4, *range(1, 7)),)))
    assert sizes(found.problem, found.plan) == {1: 4, 9: 4}
    assert all(found.plan.idle[JobId(i)] == WORDS for i in range(2, 7))
    assert all(found.capped[JobId(i)] == WORDS for i in range(2, 5))


def test_what_holds_gpus_for_a_live_job_takes_of_a_node_by_its_gpus() -> None:
    """1000 MiB of each node, where it runs on 2 GPUs: Slurm counts 1000 MiB for every two more,
    also on the same node. Licences it has no more of than before."""
    job = a_job(1, "1-8", nodes=NODES, placement=on(n1=2), keeps=on(n1=2))
    problem = a_problem([job], NODES)
    memory, licences = Take(node=1000.0, spread=True), Take(once=2.0)

    def takes(take: Take, **gpus: int) -> float:
        return taken(a_cap(0, 1, take=take), job, on(**gpus), problem.by_name)

    assert [takes(memory, n1=2), takes(memory, n1=4), takes(memory, n1=4, n2=4)] == [1e3, 2e3, 4e3]
    assert takes(memory, n2=4) == 1000.0  # by a restart
    assert [takes(licences, n1=2), takes(licences, n1=4, n2=4)] == [2.0, 2.0]
    assert most_taken(memory, job) >= takes(memory, n1=4, n2=4)
    rigid = replace(job, keeps=None)
    assert taken(a_cap(0, 1, take=memory), rigid, on(n1=4), problem.by_name) == 1000.0


@pytest.mark.parametrize(("take", "lost"), [(Take(once=1.0), True), (Take(gpu=1.0), False)])
def test_who_has_licences_that_another_waits_for_is_not_restarted(take: Take, lost: bool) -> None:
    """It gives them back with all that it has, whatever it is to have then."""
    job = a_job(1, "1-4", requested=2, nodes=NODES, placement=on(n1=4), started=0.0)
    cap = a_cap(8, 1, take=take, awaited="the cluster has 1 matlab licence; job 9 waits for it")
    problem = a_problem([job], NODES, caps=(cap,))
    limits = Limits(grace=0.0, exempt=0.0, min_gain=None)
    move = Move(job=JobId(1), kind="resize", target=on(n1=2))
    verdict = check([move], problem, History(), limits)
    assert bool(verdict.refused) == lost


AWAITED = "account robots allows 32 GPUs together; job 9 waits for it"


@pytest.mark.parametrize(("lacks", "restarted"), [(5.0, 2), (2.0, 1), (1.0, 0)])
def test_who_gives_back_too_little_for_one_that_waits_for_it_may_be_restarted(
    lacks: float, restarted: int
) -> None:
    """Jobs that had begun on one GPU each stayed there for days, with room left for them all: a
    plain job of eight waited for the same limit."""
    nodes = a_cluster(2, 8)
    jobs = [
        a_job(i, "1-8", requested=4, nodes=nodes, placement=on(n1=1), started=0.0) for i in (1, 2)
    ]
    cap = a_cap(8, 1, 2, awaited=AWAITED, lacks=lacks)
    problem = a_problem(jobs, nodes, caps=(cap,))
    limits = Limits(grace=0.0, exempt=0.0, min_gain=None)
    frozen = freeze(problem, History(), limits)
    assert [not job.fixed for job in frozen.jobs].count(True) == restarted
    moves = [
        Move(job=JobId(1), kind="resize", target=on(n1=4)),
        Move(job=JobId(2), kind="resize", target=on(n2=4)),
    ]
    verdict = check(moves, problem, History(), limits)
    assert len(verdict.allowed) == restarted
    assert all(one.reason == AWAITED for one in verdict.refused)


def test_what_one_has_beyond_its_request_counts_as_given_back_with_the_others() -> None:
    nodes = a_cluster(2, 8)
    jobs = [
        a_job(1, "1-8", requested=2, nodes=nodes, placement=on(n1=4), started=0.0),
        a_job(2, "1-8", requested=4, nodes=nodes, placement=on(n2=1), started=0.0),
    ]
    cap = a_cap(8, 1, 2, awaited=AWAITED, lacks=5.0)
    problem = a_problem(jobs, nodes, caps=(cap,))
    moves = [
        Move(job=JobId(1), kind="resize", target=on(n1=2)),
        Move(job=JobId(2), kind="resize", target=on(n2=4)),
    ]
    limits = Limits(grace=0.0, exempt=0.0, min_gain=None)
    verdict = check(moves, problem, History(), limits)
    assert [move.job for move in verdict.allowed] == [1]


@pytest.mark.parametrize("policy", ["ones", "srtf", "gavel:max_min_fairness_perf"])
def test_who_is_kept_off_by_a_cap_alone_is_told_so(policy: str) -> None:
    jobs = [a_job(i, "1-4", requested=1, nodes=NODES) for i in range(1, 4)]
    cap = a_cap(2, 1, 2, 3, take=Take(each=1.0))
    found = decided(a_problem(jobs, NODES, caps=(cap,)), policy)
    (waits,) = {1, 2, 3} - sizes(found.problem, found.plan).keys()
    assert found.plan.idle[JobId(waits)] == WORDS


def test_jobs_are_counted_as_well_as_gpus() -> None:
    jobs = [a_job(i, "1-2", requested=1, nodes=NODES) for i in range(1, 5)]
    cap = a_cap(2, 1, 2, 3, 4, take=Take(each=1.0))
    found = decided(a_problem(jobs, NODES, caps=(cap,)))
    assert set(sizes(found.problem, found.plan)) == {1, 2}


def test_a_cap_on_one_type_of_gpu_leaves_the_other_type_free() -> None:
    nodes = a_cluster(2, 4, types=("v100", "k80"))
    jobs = [a_job(i, "4", requested=4, nodes=nodes) for i in (1, 2)]
    caps = (a_cap(0, 1, 2, gpu_type="v100"),)
    found = decided(a_problem(jobs, nodes, caps=caps), "ones")
    held = final(found.problem, found.plan)
    assert [placement.nodes for placement in held.values()] == [("n2",)]


@pytest.mark.parametrize("left", [8.0, 1.0, 0.0])
def test_a_job_keeps_what_it_holds_on_a_node_that_slurm_no_longer_names(left: float) -> None:
    """Of a node that is gone nobody knows the type of its GPUs: it is no other type's."""
    nodes = a_cluster(2, 4)
    live = a_job(1, "1-8", nodes=nodes, placement=on(n1=4, n2=2), keeps=on(n1=4))
    live = replace(live, closed=frozenset({"n2"}))
    other = a_job(2, "1-2", nodes=nodes[:1])
    waits = a_job(3, "1-2", nodes=nodes)
    cap = a_cap(left, 1, 2, 3, gpu_type="v100", held={JobId(1): 4.0})
    found = decided(a_problem([live, other, waits], nodes[:1], caps=(cap,)), "ones")
    assert (found.fault, found.left_out) == ("", {})
    assert sizes(found.problem, found.plan)[1] == 6
    assert all("n2" not in move.target.nodes for move in found.verdict.allowed if move.target)
    limited = {int(job.id): bool(job.fixed) for job in found.problem.jobs}
    assert limited[2] == limited[3] == (left == 0.0)


def test_a_start_waits_until_others_have_made_way() -> None:
    """Slurm counts what a job holds until it has given it back."""
    big = a_job(1, "1-4", nodes=NODES, placement=on(n1=4))
    new = a_job(2, "2", nodes=NODES)
    problem = a_problem([big, new], NODES, caps=(a_cap(4, 1, 2, held={JobId(1): 4.0}),))
    plan = Plan(
        {
            JobId(1): Assignment(on(n1=2), None, "shrinks"),
            JobId(2): Assignment(on(n2=2), None, "starts"),
        }
    )
    found = decide(
        problem,
        Fixed(plan),
        None,
        np.random.default_rng(0),
        history=History(),
        limits=Limits(grace=0.0, exempt=0.0),
    )
    assert [(int(move.job), move.kind) for move in found.verdict.allowed] == [(1, "resize")]
    assert [refused.reason for refused in found.verdict.refused] == [
        f"{WORDS}; waits until others have made way"
    ]


class Fixed:
    """Always the same plan."""

    name = "fixed"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        return self._plan, None


def test_a_plan_beyond_a_cap_is_refused_by_name() -> None:
    jobs = [a_job(1, "1-8", nodes=NODES), a_job(2, "1-8", nodes=NODES, placement=on(n1=2))]
    problem = a_problem(jobs, NODES, caps=(a_cap(4, 1, 2),))
    too_much = Plan({JobId(1): Assignment(on(n2=4), None, "")})
    with pytest.raises(PlanError, match="job 1 would get more than is allowed: QOS normal"):
        validate(problem, too_much)
    cut = within(problem, too_much)
    validate(problem, cut.plan)
    assert sizes(problem, cut.plan) == {1: 2, 2: 2}


def test_a_running_job_whose_gpus_were_promised_to_another_keeps_them() -> None:
    """It may not go where the plan has it go, so nobody comes to where it is."""
    mover = a_job(1, "4", requested=4, nodes=NODES, placement=on(n1=4))
    other = a_job(2, "4", requested=4, nodes=NODES)
    problem = a_problem([mover, other], NODES, caps=(a_cap(2, 1),))
    plan = Plan(
        {
            JobId(1): Assignment(on(n2=4), None, "moves"),
            JobId(2): Assignment(on(n1=4), None, "starts"),
        }
    )
    cut = within(problem, plan)
    assert final(problem, cut.plan) == {1: on(n1=4)}
    assert cut.plan.idle[JobId(2)].startswith("its GPUs on n1 are kept: QOS normal")
    validate(problem, cut.plan)


def test_without_a_cap_a_plan_is_the_same_object() -> None:
    problem = a_problem([a_job(1, nodes=NODES)], NODES)
    plan, _ = Fifo().plan(problem, None, np.random.default_rng(0))
    assert within(problem, plan).plan is plan
    assert narrow(problem) is problem


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Jobs that wait or run on four nodes, and caps over some of them that may be over already."""
    nodes = a_cluster(4, 4, types=draw(st.sampled_from([("v100",), ("v100", "k80")])))
    free = {node.name: node.gpus for node in nodes}
    jobs: list[Job] = []
    for i in range(1, draw(st.integers(1, 7)) + 1):
        wants = draw(st.sampled_from(("1-8", "1-4", "2-8:2", "4")))
        job = a_job(i, wants, requested=4 if wants == "4" else 2, nodes=nodes)
        if draw(st.booleans()):
            shape = draw(st.sampled_from(job.shapes))
            kind = draw(st.sampled_from(sorted({node.gpu_type for node in nodes})))
            hosts = [
                node.name
                for node in nodes
                if free[node.name] >= shape.gpus_per_node and node.gpu_type == kind
            ][: shape.nodes]
            if len(hosts) == shape.nodes:
                for name in hosts:
                    free[name] -= shape.gpus_per_node
                where = on(**dict.fromkeys(hosts, shape.gpus_per_node))
                live = draw(st.booleans())
                job = replace(job, placement=where, started=0.0, keeps=where if live else None)
        jobs.append(job)
    caps = []
    for number in range(draw(st.integers(1, 3))):
        counted = draw(st.sets(st.sampled_from([int(job.id) for job in jobs]), min_size=1))
        linear = (Take(gpu=1.0), Take(each=1.0), Take(node=2.0, gpu=1.5))
        take = draw(st.sampled_from((*linear, Take(once=2.0), Take(node=2.0, spread=True))))
        kind = draw(st.sampled_from(("", nodes[0].gpu_type)))
        held = {
            job.id: float(job.placement.gpus)
            for job in jobs
            if job.placement is not None and int(job.id) in counted and take.gpu == 1.0 and not kind
        }
        cap = a_cap(
            draw(st.integers(-2, 12)), *counted, take=take, gpu_type=kind, words=f"cap {number}"
        )
        caps.append(replace(cap, held=held))
    return a_problem(jobs, nodes, caps=tuple(caps))


def spread_beyond_its_share() -> Problem:
    """A job that holds two nodes of a type, and is due that type on one node instead."""
    nodes = a_cluster(4, 4, types=("v100", "k80"))
    first, other = (
        a_job(1, "1-8", requested=2, nodes=nodes),
        a_job(2, "1-8", requested=2, nodes=nodes),
    )
    first = replace(first, placement=on(n3=1, n4=1), started=0.0)
    return a_problem([first, other], nodes, caps=(a_cap(1, 1, gpu_type="v100", words="cap 0"),))


PLANNERS = (
    *("fifo", "srtf", "tiresias", "sia", "ones", "liquid"),
    *("gavel:max_min_fairness_perf", "gavel:fifo"),
)


@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=15, deadline=None)
@given(problem=problems())
@example(problem=spread_beyond_its_share())
def test_no_policy_gives_more_than_is_allowed(name: str, problem: Problem) -> None:
    found = decided(problem, name)
    assert found.fault == ""
    assert found.left_out == {}
    validate(found.problem, found.plan)
    held = {job.id: job.placement for job in problem.jobs if job.placement is not None}
    before = {cap.words for cap in exceeded(problem, held)}
    stopped: Mapping[JobId, str] = {
        move.job: move.reason for move in found.verdict.allowed if move.kind == "preempt"
    }
    assert not any(reason.startswith("cap ") for reason in stopped.values())
    # Each prefix of the moves is within the limits as Slurm counts: what isn't done yet is held.
    for move in found.verdict.allowed:
        after = dict(held)
        if move.target is not None:
            after[move.job] = move.target
            grown = sum(p.gpus for p in after.values()) > sum(p.gpus for p in held.values())
            assert not grown or {cap.words for cap in exceeded(problem, after)} <= before
            if grown:
                held = after


@settings(max_examples=50, deadline=None)
@given(problem=problems())
def test_caps_that_are_wide_enough_change_nothing(problem: Problem) -> None:
    wide = replace(problem, caps=tuple(replace(cap, left=1000.0) for cap in problem.caps))
    free = replace(problem, caps=())
    for name in ("fifo", "ones", "sia"):
        assert decided(wide, name).plan == decided(free, name).plan


def test_ones_fills_a_cap_with_the_jobs_that_gain_most_by_it() -> None:
    """Short jobs first; what the cap leaves free goes to others."""
    jobs = [a_job(i, "4", requested=4, nodes=NODES) for i in range(1, 6)]
    other = a_job(9, "1-16", requested=1, nodes=NODES)
    left = {1: 90000.0, 2: 80000.0, 3: 70000.0, 4: 60000.0, 5: 100.0, 9: 50000.0}
    problem = a_problem([*jobs, other], NODES, left=left, caps=(a_cap(8, 1, 2, 3, 4, 5),))
    plan, _ = make("ones").plan(problem, None, np.random.default_rng(0))
    validate(problem, plan)
    given = sizes(problem, plan)
    assert given.pop(9) >= 8
    assert sorted(given.values()) == [4, 4]
    assert 5 in given


@st.composite
def choices(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, CapTable]:
    """A small knapsack: jobs, one or two types, three sizes, caps over some of it."""
    jobs, types = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    count = 4
    drawn = draw(
        st.lists(st.floats(0.1, 10.0), min_size=jobs * types * 3, max_size=jobs * types * 3)
    )
    worth = np.full((jobs, types, count, 1), -np.inf)
    worth[:, :, 1:, 0] = np.cumsum(np.array(drawn).reshape(jobs, types, 3), axis=2)
    worth[:, :, 0] = 0.0
    sizes = np.tile(np.array([0, 1, 2, 4]), (jobs, 1))
    capacity = np.array([draw(st.integers(0, 6)) for _ in range(types)])
    caps = draw(st.integers(1, 2))
    counted = np.array(
        draw(st.lists(st.booleans(), min_size=caps * jobs, max_size=caps * jobs))
    ).reshape(caps, jobs, 1, 1)
    takes = counted * sizes[None, :, None, :] * np.ones((1, 1, types, 1))
    left = np.array([float(draw(st.integers(0, 6))) for _ in range(caps)])
    cap, job = np.indices((caps, jobs)).reshape(2, -1)
    return worth, sizes, capacity, CapTable(left, cap, job, takes.reshape(caps * jobs, types, -1))


@settings(max_examples=60, deadline=None)
@given(choices())
def test_the_knapsack_with_caps_is_the_best_there_is(
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray, CapTable],
) -> None:
    worth, counts, capacity, caps = drawn
    found = best_within(worth, counts, capacity, caps)
    jobs, types, count, _ = worth.shape
    best = 0.0
    each = [(0, 0), *((t, k) for t in range(types) for k in range(1, count))]
    for chosen in product(each, repeat=jobs):
        used = [
            sum(int(counts[j, k]) for j, (t, k) in enumerate(chosen) if t == s)
            for s in range(types)
        ]
        if any(u > c for u, c in zip(used, capacity, strict=True)):
            continue
        picked = np.array([[(t, k, 0) for t, k in chosen]])
        if caps.excess(picked)[0] > 1e-9:
            continue
        best = max(best, sum(float(worth[j, t, k, 0]) for j, (t, k) in enumerate(chosen)))
    assert caps.excess(found.chosen[None])[0] < 1e-6
    got = float(worth[np.arange(jobs), found.chosen[:, 0], found.chosen[:, 1], 0].sum())
    assert got >= best * (1 - 1e-3) - 1e-6
    assert found.bound >= best - 1e-6


@settings(max_examples=60, deadline=None)
@given(problem=problems(), data=st.data())
def test_the_table_says_what_each_option_takes_of_each_cap(
    problem: Problem, data: st.DataObject
) -> None:
    """Against the definition, job by job; without caps that nothing can exceed."""
    options = build(problem, problem.jobs, {}, Settings())
    ledger = still_left(problem, ())
    each = [
        [_of_option(problem, options, cap, at) for at in np.ndindex(options.seconds.shape[:3])]
        for cap in problem.caps
    ]
    takes = np.array(each).reshape(len(problem.caps), *options.seconds.shape[:3])
    left = np.array(ledger.left)
    binding = takes.max(axis=(2, 3)).sum(axis=1) > left
    found = tabled(problem, options, ledger)
    if found is None:
        assert not binding.any()
        return
    kept = [cap for cap, binds in zip(problem.caps, binding, strict=True) if binds]
    rows = [(c, j) for c, cap in enumerate(kept) for j in _counted(options, cap)]
    assert list(zip(found.cap.tolist(), found.job.tolist(), strict=True)) == rows
    assert found.left.tolist() == left[binding].tolist()
    for row, (c, j) in enumerate(rows):
        assert found.takes[row].tolist() == takes[binding][c, j].tolist()
    every = list(np.ndindex(takes.shape[2:]))
    chosen = [[data.draw(st.sampled_from(every)) for _ in options.jobs] for _ in range(3)]
    used = [
        [sum(takes[c, j, t, k] for j, (t, k) in enumerate(one)) for c in np.flatnonzero(binding)]
        for one in chosen
    ]
    over = np.maximum(np.array(used) - found.left, 0.0) / np.maximum(found.left, 1.0)
    candidates = np.array([[(t, k, 0) for t, k in one] for one in chosen])
    assert found.excess(candidates) == pytest.approx(over.sum(axis=1))


def _counted(options: Options, cap: Cap) -> list[int]:
    return [j for j, job in enumerate(options.jobs) if job.id in cap.takes]


def _of_option(problem: Problem, options: Options, cap: Cap, at: tuple[int, ...]) -> float:
    j, t, k = at
    job, shapes = options.jobs[j], options.shapes.get((j, t, k))
    if k and (t, k) == tuple(options.present[j][:2]):
        return taken(cap, job, job.placement, problem.by_name)
    if shapes is None or job.id not in cap.takes or cap.gpu_type not in ("", options.types[t]):
        return 0.0
    return of_shape(cap.takes[job.id], shapes[0])


def test_a_table_of_many_users_caps_has_each_job_under_its_own_alone() -> None:
    """3000 jobs of 300 users took a gigabyte."""
    nodes = a_cluster(2, 8)
    jobs = [a_job(i, "1-8", nodes=nodes) for i in range(1, 61)]
    caps = [a_cap(4, *range(1 + at, 61, 20)) for at in range(20)]
    problem = a_problem(jobs, nodes, caps=(*caps, a_cap(1000, *range(1, 61))))
    options = build(problem, jobs, {}, Settings())
    found = tabled(problem, options, still_left(problem, ()))
    assert found is not None
    assert len(found.takes) == len(jobs)  # the last cap can't be exceeded


def test_shapes_of_a_job_count_nodes_where_a_cap_is_on_nodes() -> None:
    job = a_job(1, "1-8", nodes=NODES)
    cap = a_cap(1, 1, take=Take(node=1.0))
    (less,) = narrow(a_problem([job], NODES, caps=(cap,))).jobs
    assert all(shape.nodes == 1 for shape in less.shapes)
    assert Shape(1, 4) in less.shapes
