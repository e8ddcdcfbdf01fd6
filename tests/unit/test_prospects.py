"""What would have to change for a waiting job to start, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from policy_builders import a_cluster, a_job, a_problem, an_outlook, on, unusable

from ones.policies.model import Job, Node, Problem
from ones.policies.prospects import NEVER, Prospects, Release
from ones.policies.words import counted, lasting


def said(
    problem: Problem, job: Job, others: Sequence[Release] = (), *, resizes: bool = True
) -> str | None:
    found = Prospects(problem, lambda: others, resizes=resizes).of(job)
    return None if found is None else found.words(lambda seconds: f"in {seconds:.0f} s")


def a_plain_job(number: int, left: float, **gpus: int) -> Release:
    return Release(job=number, left=left, gpus_on=tuple(gpus.items()), at_limit=True)


def held(nodes: list[Node], **gpus: int) -> list[Node]:
    return [replace(node, taken=gpus.get(node.name, 0)) for node in nodes]


def test_the_job_is_named_whose_end_gives_it_what_it_needs() -> None:
    waiting = a_job(1, "4", nodes=a_cluster(2))
    running = [a_job(n, "2", placement=on(n1=2), nodes=a_cluster(2)) for n in (812, 813)]
    problem = a_problem(
        [waiting, *running], held(a_cluster(2), n2=4), left={812: 100.0, 813: 1000.0}
    )
    text = said(problem, waiting)
    assert text is not None
    assert text.startswith("needs 4 GPUs on 1 to 2 nodes; the first come free when job 81")
    # n1 is free once both have ended: the later one counts.
    assert "job 813 ends, about in" in text


def test_a_time_limit_is_no_forecast() -> None:
    waiting = a_job(1, "2", nodes=a_cluster(1))
    problem = a_problem([waiting], held(a_cluster(1), n1=4))
    others = [a_plain_job(40, 900.0, n1=3), a_plain_job(41, 60.0, n1=1)]
    assert said(problem, waiting, others) == (
        "needs 2 GPUs on one node; the first come free when job 40 ends,"
        " at the latest in 900 s, its time limit"
    )


def test_what_was_never_measured_is_not_foretold() -> None:
    waiting, running = a_job(1, "4"), a_job(2, "4", placement=on(n1=4))
    nodes = held(a_cluster(), n2=4, n3=4, n4=4)
    problem = a_problem([waiting, running], nodes)
    guessed = replace(problem, outlooks={job.id: an_outlook(points=0) for job in problem.jobs})
    text = said(guessed, waiting)
    assert (
        text
        == "needs 4 GPUs on 1 to 2 nodes; nobody knows when the jobs end that have them, such as 2"
    )
    absurd = replace(problem, outlooks={job.id: an_outlook(remaining=1e25) for job in problem.jobs})
    assert said(absurd, waiting) == text
    limited = replace(running, time_left=500.0)
    text = said(replace(guessed, jobs=(waiting, limited)), waiting)
    assert text is not None
    assert "at the latest in 500 s" in text


def test_where_its_gpus_are_free_nothing_is_said() -> None:
    waiting = a_job(1, "2-4")
    assert said(a_problem([waiting]), waiting) is None
    for other in (replace(waiting, fixed="paused"), replace(waiting, startable=False)):
        assert said(a_problem([other], held(a_cluster(1), n1=4)), other) is None


def test_a_policy_that_keeps_sizes_waits_for_the_one_asked_for() -> None:
    waiting = a_job(1, "1-4", requested=4, nodes=a_cluster(1))
    problem = a_problem([waiting], held(a_cluster(1), n1=4))
    others = [a_plain_job(7, 10.0, n1=1), a_plain_job(8, 20.0, n1=3)]
    assert "needs 1 GPU; the first come free when job 7" in str(said(problem, waiting, others))
    text = said(problem, waiting, others, resizes=False)
    assert "needs 4 GPUs on one node; the first come free when job 8" in str(text)


@pytest.mark.parametrize(
    ("nodes", "others", "said_of_it"),
    [
        ([unusable(node) for node in a_cluster()], [], "no node that it may run on is in service"),
        ([a_cluster()[0]], [], "the nodes in service that it may run on do not have them"),
        (held(a_cluster(), n1=4, n2=4, n3=4, n4=4), [], "is kept for jobs that have waited longer"),
        (
            held(a_cluster(), n1=4, n2=4, n3=4, n4=4),
            [a_plain_job(9, NEVER, n1=4, n2=4)],
            "nobody knows when the jobs end that have them, such as 9",
        ),
    ],
)
def test_where_no_end_helps_the_obstacle_is_named(
    nodes: list[Node], others: list[Release], said_of_it: str
) -> None:
    waiting = a_job(1, "8")
    text = str(said(a_problem([waiting], nodes), waiting, others))
    assert text.startswith("needs 8 GPUs on 2")
    assert said_of_it in text


def test_gpus_of_one_allocation_are_of_one_type() -> None:
    nodes = held(a_cluster(2, types=("v100", "k80")), n1=4, n2=4)
    waiting = a_job(1, "8", nodes=nodes)
    others = [a_plain_job(7, 10.0, n1=4), a_plain_job(8, 20.0, n2=4)]
    assert "do not have them" in str(said(a_problem([waiting], nodes), waiting, others))


def test_times_and_numbers_are_written_as_slurm_writes_them() -> None:
    assert [lasting(seconds) for seconds in (0.2, 59.4, 60, 499193)] == [
        *("0 s", "59 s", "00:01:00", "5-18:39:53")
    ]
    assert [lasting(seconds) for seconds in (float("inf"), float("nan"), -float("inf"))] == [
        *("UNLIMITED", "INVALID", "INVALID")
    ]
    assert (counted(1, "job"), counted(2, "job")) == ("1 job", "2 jobs")
