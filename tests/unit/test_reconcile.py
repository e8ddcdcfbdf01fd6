from __future__ import annotations

from policy_builders import a_job, a_problem, on

from ones.policies.model import Assignment, Batch, JobId, Plan
from ones.policies.moves import reconcile


def plan(*, idle: tuple[int, ...] = (), **placed: object) -> Plan:
    return Plan(
        {
            JobId(int(job[1:])): Assignment(*(p if isinstance(p, tuple) else (p, None)), "why")  # type: ignore[arg-type]
            for job, p in placed.items()
        },
        {JobId(job): "others first" for job in idle},
    )


def test_a_plan_that_changes_nothing_needs_no_moves() -> None:
    problem = a_problem([a_job(1, placement=on(n1=2)), a_job(2)])
    assert reconcile(problem, plan(j1=on(n1=2), idle=(2,))) == []


def test_jobs_that_the_plan_does_not_name_are_left_as_they_are() -> None:
    assert reconcile(a_problem([a_job(1, placement=on(n1=2))]), plan()) == []


def test_what_frees_gpus_comes_before_what_takes_them() -> None:
    problem = a_problem(
        [
            a_job(1, placement=on(n1=2)),
            a_job(2, placement=on(n2=4)),
            a_job(3, placement=on(n3=4)),
            a_job(4),
        ]
    )
    moves = reconcile(problem, plan(j1=on(n1=4), j2=on(n2=2), j4=on(n2=2), idle=(3,)))
    assert [(move.kind, int(move.job)) for move in moves] == [
        ("preempt", 3),
        ("resize", 2),
        ("start", 4),
        ("resize", 1),
    ]


def test_a_new_batch_alone_is_a_move_and_an_unsaid_one_is_not() -> None:
    batches = Batch(submitted=64, most_per_gpu=64, most=512)
    job = a_job(1, placement=on(n1=4), batch=64, batches=batches)
    assert [m.batch for m in reconcile(a_problem([job]), plan(j1=(on(n1=4), 128)))] == [128]
    assert reconcile(a_problem([job]), plan(j1=(on(n1=4), None))) == []


def test_the_gain_of_a_resize_is_what_the_job_itself_wins_with_its_restart_paid() -> None:
    problem = a_problem([a_job(1, placement=on(n1=1))], left={1: 1000.0})
    (move,) = reconcile(problem, plan(j1=on(n1=4)))
    assert move.gain == 1000.0 - 1000.0 * (0.9 / 4 + 0.1) - 10.0


def test_giving_way_has_a_negative_gain() -> None:
    problem = a_problem([a_job(1, placement=on(n1=4))])
    assert all(move.gain < 0 for move in reconcile(problem, plan(j1=on(n1=1))))
    assert all(move.gain < 0 for move in reconcile(problem, plan(idle=(1,))))
