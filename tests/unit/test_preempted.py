"""Elastic jobs that Slurm preempts for others are planned anew, and are nobody else's."""

from __future__ import annotations

import pytest
from simulated_onesd import AtWork


@pytest.mark.parametrize("policy", ["fifo", "ones"])
def test_a_job_that_slurm_preempted_is_taken_back_and_started_elsewhere(policy: str) -> None:
    at_work = AtWork(policy=policy)
    job = at_work.submit(4, elastic="4")
    at_work.live(60)
    (before,) = at_work.job(job).nodes
    at_work.world.preempt(job)
    at_work.world.submit("bob", wants=at_work.job(job).wants, elastic=None, priority=9000)
    at_work.live(5)
    blocker = at_work.world.state.nodes[before]
    assert at_work.job(job).state == "PENDING"
    at_work.live(240, until=lambda: at_work.job(job).state == "RUNNING")
    found = at_work.job(job)
    assert (found.state, found.restarts) == ("RUNNING", 1)
    assert blocker.jobs
    lease = at_work.onesd.service.lease(job)
    assert lease is not None
    assert lease.gpus == 4


def test_its_first_wait_is_no_longer_than_slurms_own_delay() -> None:
    at_work = AtWork()
    job = at_work.submit(4, elastic="4")
    at_work.live(60)
    at_work.world.preempt(job)
    begun = at_work.world.now
    at_work.live(240, until=lambda: at_work.job(job).state == "RUNNING")
    assert at_work.job(job).started - begun < 140
