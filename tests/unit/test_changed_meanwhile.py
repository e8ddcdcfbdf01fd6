"""What others do to a job between onesd's last look at it and its next word to Slurm."""

from __future__ import annotations

import pytest
from simulated_onesd import AtWork

from ones.policies.model import JobId, Placement
from ones.policies.moves import Move
from ones.slurm_ext.simulated.gate import PASS, Call, Verdict


@pytest.mark.parametrize("call", ["signal", "requeue_hold", "hold", "update", "release"])
def test_a_job_cancelled_between_read_and_write_stays_cancelled(call: str) -> None:
    at_work = AtWork()
    job = at_work.submit()
    at_work.live(60, until=lambda: at_work.job(job).state == "RUNNING")
    at_work.live(90)  # out of its grace
    struck = []

    def cancelled_before(one: Call) -> Verdict:
        if one.name == call and one.arguments[0] == job and not struck:
            struck.append(one)
            at_work.world.by("alice").cancel(job)
        return PASS

    at_work.door.judge = cancelled_before
    at_work.move(Move(job=JobId(job), kind="resize", target=Placement.of({"n2": 2}), reason="-"))
    at_work.live(300)
    assert struck, f"a resize makes no call {call}"
    assert (at_work.job(job).state, at_work.onesd.moves.open()) == ("CANCELLED", [])


def test_a_lost_nodes_job_that_can_not_be_planned_for_goes_on_as_a_plain_job() -> None:
    at_work = AtWork()
    job = at_work.submit()
    at_work.live(60, until=lambda: at_work.job(job).state == "RUNNING")
    (lost,) = at_work.job(job).nodes
    at_work.world.by("root").update(job, {"AdminComment": "ONES1:hands-off"})
    at_work.world.fail_node(lost)
    at_work.live(60, until=lambda: at_work.job(job).state == "PENDING")
    assert at_work.job(job).state == "PENDING"
    at_work.live(300, until=lambda: at_work.job(job).state == "RUNNING")
    assert (at_work.job(job).state, lost in at_work.job(job).nodes) == ("RUNNING", False)


def test_a_cancelled_job_leaves_its_gpus_to_no_other_elastic_job() -> None:
    """Who has ended by himself would go on if he were rigid; who was cancelled would not."""
    at_work = AtWork()
    stays, cancelled = at_work.running(), at_work.running()
    at_work.live(30)
    rounds = at_work.onesd.rounds
    assert rounds.published.rigid is not None
    assert set(rounds.published.rigid.claims) == {stays, cancelled}
    at_work.world.by("alice").cancel(cancelled)
    at_work.live(30)
    assert rounds.published.rigid is not None
    assert set(rounds.published.rigid.claims) == {stays}
