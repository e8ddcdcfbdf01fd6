from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, on, unusable

from ones.policies.guard import History, Limits, Verdict, check, freeze, one_first
from ones.policies.invariants import PlanError, validate
from ones.policies.model import Assignment, Batch, JobId, Placement, Plan, Problem, Shape
from ones.policies.moves import Move, reconcile

LIMITS = Limits(grace=60, exempt=120, max_resizes_per_hour=3, max_wait=3600)
NO_HISTORY = History()


def start(job: int, target: Placement) -> Move:
    return Move(job=JobId(job), kind="start", target=target)


def resize(job: int, target: Placement, gain: float = -10.0) -> Move:
    return Move(job=JobId(job), kind="resize", target=target, gain=gain)


def preempt(job: int) -> Move:
    return Move(job=JobId(job), kind="preempt", gain=-10.0)


def verdict(problem: Problem, *moves: Move, history: History = NO_HISTORY) -> Verdict:
    return check(moves, problem, history, LIMITS)


def reasons(found: Verdict) -> dict[int, str]:
    return {int(refused.move.job): refused.reason for refused in found.refused}


def test_a_waiting_job_starts_on_free_gpus() -> None:
    problem = a_problem([a_job(1)])
    assert verdict(problem, start(1, on(n1=4))).allowed == (start(1, on(n1=4)),)


def test_a_job_that_did_not_opt_in_is_never_moved() -> None:
    assert "opt in" in reasons(verdict(a_problem([]), preempt(7)))[7]


def test_a_fixed_job_is_never_moved() -> None:
    problem = a_problem([a_job(1, placement=on(n1=4), fixed="no checkpoint")])
    assert "no checkpoint" in reasons(verdict(problem, resize(1, on(n2=4), gain=99)))[1]


def test_a_job_that_waits_for_a_reason_of_its_own_is_not_started() -> None:
    problem = a_problem([a_job(1, startable=False)])
    assert reasons(verdict(problem, start(1, on(n1=1))))


def test_a_run_is_left_alone_in_its_grace() -> None:
    problem = a_problem([a_job(1, placement=on(n1=1), started=950.0)])
    assert "grace" in reasons(verdict(problem, resize(1, on(n1=4), gain=500)))[1]


def test_a_job_near_its_time_limit_is_left_to_end() -> None:
    problem = a_problem([a_job(1, placement=on(n1=1), time_left=60.0)])
    assert "time limit" in reasons(verdict(problem, resize(1, on(n1=4), gain=500)))[1]


def test_moves_within_an_hour_are_limited_and_older_ones_forgotten() -> None:
    problem = a_problem([a_job(1, placement=on(n1=1))], now=10000.0)
    move = resize(1, on(n1=4), gain=500)
    often = History({JobId(1): (7000.0, 8000.0, 9000.0)})
    assert "within the hour" in reasons(verdict(problem, move, history=often))[1]
    old = History({JobId(1): (1000.0, 8000.0, 9000.0)})
    assert verdict(problem, move, history=old).allowed == (move,)


def test_growth_must_gain_more_than_it_costs() -> None:
    problem = a_problem([a_job(1, placement=on(n1=1))])
    assert "costs 10 s" in reasons(verdict(problem, resize(1, on(n1=4), gain=-1)))[1]
    strict = Limits(grace=0, min_gain=2.0)
    assert check([resize(1, on(n1=4), gain=5)], problem, NO_HISTORY, strict).refused
    assert check([resize(1, on(n1=4), gain=11)], problem, NO_HISTORY, strict).allowed


def test_a_job_about_to_end_is_not_stopped_for_another() -> None:
    problem = a_problem([a_job(1, placement=on(n1=4)), a_job(2)], left={1: 20.0})
    found = verdict(problem, preempt(1), start(2, on(n1=4)))
    assert not found.allowed
    assert "to its end" in reasons(found)[1]


def test_a_refused_move_takes_with_it_those_that_needed_its_gpus() -> None:
    jobs = [
        a_job(1, placement=on(n1=4), fixed="busy"),
        a_job(2),
        a_job(3, placement=on(n2=2)),
    ]
    found = verdict(a_problem(jobs), preempt(1), start(2, on(n1=4)), resize(3, on(n2=4), gain=100))
    assert [int(move.job) for move in found.allowed] == [3]
    assert "n1" in reasons(found)[2]


def test_room_is_not_made_for_a_job_that_may_not_have_it() -> None:
    problem = a_problem([a_job(1, placement=on(n1=4)), a_job(2, fixed="user's hold")])
    found = verdict(problem, resize(1, on(n1=2)), start(2, on(n1=2)))
    assert not found.allowed
    assert "nobody takes" in reasons(found)[1]


def test_room_is_made_for_plain_jobs_that_wait() -> None:
    first, *others = a_cluster()
    problem = a_problem([a_job(1, placement=on(n1=4))], [replace(first, taken=2), *others])
    assert verdict(problem, resize(1, on(n1=2))).allowed


def test_two_jobs_may_change_places() -> None:
    jobs = [a_job(1, placement=on(n1=4)), a_job(2, placement=on(n2=4))]
    moves = (resize(1, on(n2=4), gain=5), resize(2, on(n1=4), gain=-5))
    assert verdict(a_problem(jobs), *moves).allowed == moves


def test_who_has_waited_too_long_is_not_preempted_again() -> None:
    jobs = [a_job(1, placement=on(n1=4), waited=4000.0), a_job(2)]
    assert "waited" in reasons(verdict(a_problem(jobs), preempt(1), start(2, on(n1=4))))[1]


def test_gpus_are_kept_for_who_has_waited_too_long() -> None:
    jobs = [a_job(1, "8", waited=4000.0), a_job(2), a_job(3, placement=on(n2=1))]
    found = verdict(a_problem(jobs), start(2, on(n1=2)), resize(3, on(n2=4), gain=200))
    assert not found.allowed
    assert all("job 1 has waited" in reason for reason in reasons(found).values())
    both = verdict(a_problem(jobs), start(1, on(n3=4, n4=4)), start(2, on(n1=2)))
    assert len(both.allowed) == 2


@pytest.mark.parametrize("why", ["down", "plain jobs"])
@pytest.mark.parametrize("uneven", [False, True])
def test_no_gpus_are_kept_for_whom_no_move_could_make_room(why: str, uneven: bool) -> None:
    """Its node may be away for days, in which it would keep all the others idle."""
    *others, last = a_cluster()
    nodes = [*others, unusable(last) if why == "down" else replace(last, taken=1)]
    stuck = a_job(1, "16", requested=16, waited=4000.0, uneven=uneven)
    jobs = [stuck, a_job(2), a_job(3, placement=on(n2=1))]
    moves = start(2, on(n1=2)), resize(3, on(n2=4), gain=200)
    assert verdict(a_problem(jobs, nodes), *moves).allowed == moves
    back = verdict(a_problem(jobs), *moves)
    assert not back.allowed
    assert all("job 1 has waited" in reason for reason in reasons(back).values())


def test_gpus_are_kept_for_an_uneven_job_that_fits_in_none_of_its_shapes() -> None:
    nodes = [replace(node, taken=1) for node in a_cluster(2)]
    late = a_job(1, "5", requested=5, nodes=nodes, shapes=(Shape(1, 5),), waited=4000.0)
    young = a_job(2, nodes=nodes)
    for uneven, starts in ((True, False), (False, True)):
        jobs = [replace(late, uneven=uneven), young]
        assert bool(verdict(a_problem(jobs, nodes), start(2, on(n1=1))).allowed) == starts


def test_who_cannot_start_does_not_keep_the_next_one_from_being_first() -> None:
    nodes = [*a_cluster()[:3], unusable(a_cluster()[3])]
    stuck = a_job(1, "16", requested=16, waited=6000.0)
    problem = a_problem([stuck, a_job(2, waited=5000.0), a_job(3, waited=4000.0)], nodes)
    shown = one_first(problem, LIMITS)
    assert [job.waited > LIMITS.max_wait for job in shown.jobs] == [True, True, False]


def test_freezing_marks_what_the_guard_would_refuse_to_move() -> None:
    young = a_job(1, placement=on(n1=1), started=990.0)
    old = a_job(2, placement=on(n2=1))
    frozen = freeze(a_problem([young, old, a_job(3)]), NO_HISTORY, LIMITS)
    assert [bool(job.fixed) for job in frozen.jobs] == [True, False, False]


@pytest.mark.parametrize("bad", [{"grace": -1.0}, {"max_resizes_per_hour": 0}])
def test_senseless_limits_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Limits(**bad)  # type: ignore[arg-type]


def a_plan(**placed: Placement) -> Plan:
    return Plan({JobId(int(job[1:])): Assignment(p, None, "why") for job, p in placed.items()})


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        (a_plan(j1=on(n1=4), j2=on(n1=1)), "node n1"),
        (a_plan(j1=on(n1=3, n2=1)), "none of its shapes"),
        (a_plan(j1=on(n9=1)), "n9"),
        (a_plan(j1=on(n4=1)), "unusable node n4"),
        (a_plan(j1=on(n2=4, n3=4)), "mix GPU types"),
        (a_plan(j3=on(n2=4)), "job 3 is moved but fixed"),
        (a_plan(j4=on(n2=4)), "job 4 may not be started"),
        (a_plan(j9=on(n2=4)), "job 9 is not in the problem"),
        (Plan({}, {JobId(3): "no"}), "job 3 is preempted but fixed"),
        (Plan({JobId(1): Assignment(on(n1=4), 64, "")}), "job 1 keeps its own batch"),
        (Plan({JobId(5): Assignment(on(n1=1), 256, "")}), "does not accept batch 256"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_by_name(plan: Plan, fault: str) -> None:
    nodes = a_cluster(types=("v100", "k80"))
    nodes[3] = unusable(nodes[3])
    jobs = [
        a_job(1, nodes=nodes),
        a_job(2),
        a_job(3, placement=on(n1=1), fixed="held"),
        a_job(4, startable=False),
        a_job(5, batches=Batch(submitted=64, most_per_gpu=64, most=512)),
    ]
    with pytest.raises(PlanError, match=fault):
        validate(a_problem(jobs, nodes), plan)


def test_a_job_on_a_drained_node_may_stay_there() -> None:
    first, *others = a_cluster()
    problem = a_problem([a_job(1, placement=on(n1=4))], [unusable(first), *others])
    validate(problem, a_plan(j1=on(n1=4)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_proposed_what_is_allowed_fits_the_nodes(data: st.DataObject) -> None:
    nodes = [
        replace(node, taken=data.draw(st.integers(0, 2)), usable=data.draw(st.booleans()))
        for node in a_cluster(3)
    ]
    free = {node.name: node.gpus - node.taken for node in nodes}
    places = st.dictionaries(
        st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 4), min_size=1
    ).map(Placement.of)
    jobs = []
    for id_ in range(1, data.draw(st.integers(1, 6)) + 1):
        place = data.draw(st.none() | places)
        if place and any(free[name] < gpus for name, gpus in place.gpus_on):
            place = None
        for name, gpus in place.gpus_on if place else ():
            free[name] -= gpus
        fixed = data.draw(st.sampled_from(["", "", "", "fixed"]))
        jobs.append(a_job(id_, placement=place, fixed=fixed))
    problem = a_problem(jobs, nodes)
    assignments, idle = {}, {}
    for job in jobs:
        target = data.draw(st.none() | places)
        if target is None:
            idle[job.id] = "no"
        else:
            assignments[job.id] = Assignment(target, None, "yes")
    moves = reconcile(problem, Plan(assignments, idle))
    found = check(moves, problem, NO_HISTORY, LIMITS)
    assert len(found.allowed) + len(found.refused) == len(moves)
    held = {job.id: job.placement for job in jobs if job.placement}
    before = dict(held)
    for move in found.allowed:
        assert not next(job for job in jobs if job.id == move.job).fixed
        held.pop(move.job, None)
        if move.target:
            held[move.job] = move.target
    for node in nodes:
        now, then = (
            sum(dict(p.gpus_on).get(node.name, 0) for p in side.values()) for side in (before, held)
        )
        assert then <= (node.gpus - node.taken if node.usable else now)


@given(st.data())
def test_carrying_out_all_moves_gives_the_plan(data: st.DataObject) -> None:
    jobs = [a_job(i, placement=data.draw(st.sampled_from([None, on(n1=1)]))) for i in (1, 2, 3)]
    wanted = {job.id: data.draw(st.sampled_from([None, on(n1=1), on(n2=2)])) for job in jobs}
    problem = a_problem(jobs)
    plan = Plan(
        {id_: Assignment(p, None, "") for id_, p in wanted.items() if p},
        {id_: "" for id_, p in wanted.items() if not p},
    )
    held = {job.id: job.placement for job in jobs}
    for move in reconcile(problem, plan):
        held[move.job] = move.target
    assert held == wanted


def test_a_restart_to_unequal_parts_is_refused_because_no_allocation_can_promise_them() -> None:
    apart = on(n1=3, n2=1)
    restarts = a_problem([a_job(1, placement=on(n1=1))])
    refused = reasons(verdict(restarts, resize(1, apart, gain=500)))
    assert refused == {1: "no allocation can promise 3 GPUs on n1, 1 on n2"}
    assert "no allocation" in reasons(verdict(a_problem([a_job(1)]), start(1, apart)))[1]
    live = a_problem([a_job(1, placement=on(n1=1), keeps=on(n1=1))])
    assert verdict(live, resize(1, apart, gain=500)).allowed
    replayed = a_problem([a_job(1, placement=on(n1=1), uneven=True)])
    assert verdict(replayed, resize(1, apart, gain=500)).allowed


def test_a_live_job_in_unequal_parts_is_not_restarted_there_for_another_batch() -> None:
    apart = on(n1=3, n2=1)
    live = a_problem([a_job(1, placement=apart, keeps=on(n1=1), batch=64)])
    move = Move(job=JobId(1), kind="resize", target=apart, batch=128, gain=500)
    assert "no allocation" in reasons(verdict(live, move))[1]


def test_a_live_job_asks_slurm_for_nothing_on_a_node_where_it_may_start_no_more() -> None:
    soon = a_job(1, placement=on(n1=2, n2=2), keeps=on(n1=2), closed=frozenset({"n2"}))
    elsewhere = resize(1, on(n2=4), gain=500)  # by a restart
    assert "n2" in reasons(verdict(a_problem([soon]), elsewhere))[1]
    more_there = resize(1, on(n1=2, n2=4), gain=500)
    assert "n2" in reasons(verdict(a_problem([soon]), more_there))[1]
    for kept_there in (on(n1=4, n2=2), on(n1=2, n2=1), on(n1=2)):
        assert verdict(a_problem([soon]), resize(1, kept_there, gain=500)).allowed
