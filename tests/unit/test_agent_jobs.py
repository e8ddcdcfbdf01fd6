"""What the agent remembers of the jobs on its node, and for how long."""

from __future__ import annotations

import pytest

from ones.daemon.agent.attribution import Process
from ones.daemon.agent.jobs import KEPT_AFTER_END, KEPT_UNSENT, MOST_JOBS, Jobs
from ones.daemon.agent.messages import Refused
from ones.daemon.wire import Checkpoint, Lease, Received, Report

STEPD = Process(10, 1)
STEP = Process(11, 2)


def took(message: Report | Checkpoint, at: float = 0.0) -> Received:
    return Received(at=at, evidence="cgroup", message=message)


def nobody(_: Process) -> bool:
    return False


def test_the_first_step_of_a_run_begins_it_and_the_next_does_not() -> None:
    jobs = Jobs()
    assert jobs.begin(7, STEPD, now=0)
    assert not jobs.begin(7, STEP, now=1)


def test_a_lease_holds_for_the_run_it_was_given_to() -> None:
    jobs = Jobs()
    jobs.begin(7, STEPD, now=0)
    jobs.learn(Lease(job=7, gpus=4))
    jobs.begin(7, STEP, now=1)
    assert jobs.lease(7) == Lease(job=7, gpus=4)
    jobs.bury(nobody, now=2)
    jobs.see({7: [Process(20, 9)]}, now=3)
    assert jobs.begin(7, Process(21, 9), now=3)
    assert jobs.lease(7) is None


def test_a_job_ends_once_with_its_last_process() -> None:
    jobs = Jobs()
    jobs.see({7: [STEPD, STEP]}, now=0)
    assert jobs.bury(lambda process: process == STEPD, now=1) == []
    assert jobs.bury(nobody, now=2) == [7]
    assert jobs.bury(nobody, now=3) == []
    assert not jobs.alive(7)


def test_the_last_report_and_the_last_checkpoint_are_kept() -> None:
    jobs = Jobs()
    last = took(Report(job=7, samples=2), at=2)
    saved = took(Checkpoint(job=7, samples=1), at=1)
    for received in (took(Report(job=7, samples=1)), saved, last):
        jobs.hear(received, now=received.at)
    assert jobs.received() == (last, saved)


def test_only_another_checkpoint_is_news() -> None:
    jobs = Jobs()
    assert not jobs.hear(took(Report(job=7)), now=0)
    assert jobs.hear(took(Checkpoint(job=7, samples=1)), now=0)
    assert not jobs.hear(took(Checkpoint(job=7, samples=1), at=1), now=1)
    assert jobs.hear(took(Checkpoint(job=7, samples=2), at=2), now=2)


def test_that_a_job_saves_no_more_is_news_once() -> None:
    jobs = Jobs()
    assert not jobs.hear(took(Report(job=7)), now=0)
    assert jobs.hear(took(Report(job=7, checkpoints=False)), now=1)
    assert not jobs.hear(took(Report(job=7, checkpoints=False, samples=1)), now=2)
    assert not jobs.hear(took(Report(job=7)), now=3)
    assert jobs.hear(took(Report(job=7, checkpoints=False)), now=4)


def test_a_flood_is_refused_and_the_checkpoint_after_it_is_not() -> None:
    jobs = Jobs()
    with pytest.raises(Refused, match="more than 10 reports a second"):
        for _ in range(50):
            jobs.hear(took(Report(job=7)), now=0)
    assert jobs.hear(took(Checkpoint(job=7)), now=0)
    assert not jobs.hear(took(Report(job=8)), now=0)
    assert not jobs.hear(took(Report(job=7)), now=1)


def test_a_clock_set_back_stops_nobody_for_long() -> None:
    jobs = Jobs()
    for now in (1000, 0, 1, 2):
        jobs.hear(took(Report(job=7)), now=now)


def test_an_ended_jobs_last_words_are_kept_until_sent() -> None:
    jobs = Jobs()
    jobs.see({7: [STEPD]}, now=0)
    jobs.hear(took(Report(job=7)), now=0)
    jobs.bury(nobody, now=1)
    assert jobs.forget(now=KEPT_AFTER_END + 2) == []
    jobs.sent(jobs.received())
    assert jobs.forget(now=KEPT_AFTER_END + 2) == [7]
    assert jobs.received() == ()


def test_they_are_not_kept_for_ever() -> None:
    jobs = Jobs()
    jobs.hear(took(Report(job=7)), now=0)
    assert jobs.forget(now=KEPT_UNSENT + 1) == [7]


def test_what_came_while_a_report_was_under_way_is_not_taken_for_sent() -> None:
    jobs = Jobs()
    jobs.hear(took(Report(job=7, samples=1)), now=0)
    under_way = jobs.received()
    jobs.hear(took(Report(job=7, samples=2)), now=0)
    jobs.sent(under_way)
    assert jobs.forget(now=KEPT_AFTER_END + 1) == []


def test_a_job_with_processes_is_never_forgotten() -> None:
    jobs = Jobs()
    jobs.see({7: [STEPD]}, now=0)
    assert jobs.forget(now=10 * KEPT_UNSENT) == []


def test_the_number_of_jobs_is_bounded_and_living_ones_stay() -> None:
    jobs = Jobs()
    jobs.see({1: [STEPD]}, now=0)
    for job in range(2, MOST_JOBS + 10):
        jobs.hear(took(Report(job=job)), now=job)
    assert len(jobs) == MOST_JOBS
    assert 1 in jobs
    assert 2 not in jobs
