"""onesd and Slurm's own scheduler at the same queue: neither keeps GPUs from the other in vain."""

from __future__ import annotations

import pytest
from simulated_onesd import AtWork

from ones.slurm_ext.actions import FIRST
from ones.slurm_ext.simulated.gate import PASS, Call, Verdict
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.world import gpus

EVERYWHERE = Wants(tres_per_node="gres/gpu:4", nodes=(4, 4))


def busy(at_work: AtWork, *nodes: str) -> None:
    """Plain jobs hold these nodes for an hour."""
    for node in nodes:
        at_work.world.submit("bob", wants=gpus(4, required=(node,)), time_limit=3600.0)


def test_an_elastic_job_uses_what_a_coming_wide_job_leaves_idle() -> None:
    at_work = AtWork(policy="ones")
    busy(at_work, "n1")
    at_work.world.step(3)
    wide = at_work.world.submit("bob", wants=EVERYWHERE, time_limit=3600.0)
    at_work.world.step(3)
    job = at_work.submit(4, elastic="1-4")
    at_work.live(60, until=lambda: at_work.world.runs(job))
    assert at_work.world.runs(job)
    assert at_work.job(wide).reason == "Resources"


def test_it_leaves_when_the_wide_job_can_start() -> None:
    at_work = AtWork(policy="ones")
    blocker = at_work.world.submit("bob", wants=gpus(4, required=("n1",)), time_limit=3600.0)
    at_work.world.step(3)
    wide = at_work.world.submit("bob", wants=EVERYWHERE, time_limit=3600.0)
    at_work.world.step(3)
    job = at_work.submit(4, elastic="1-4")
    at_work.live(150)
    assert at_work.world.runs(job)
    at_work.world.by("bob").cancel(blocker)
    at_work.live(150, until=lambda: at_work.world.runs(wide))
    assert at_work.world.runs(wide)


@pytest.mark.parametrize(("slow", "seconds"), [(1, 1.0), (9, 15.0)])
def test_a_slow_answer_of_slurm_holds_up_no_moves_and_a_slow_slurm_no_longer_than_a_round(
    slow: int, seconds: float
) -> None:
    at_work = AtWork()
    at_work.live(20)
    left = iter(range(slow))

    def judge(call: Call) -> Verdict:
        if call.name == "snapshot" and next(left, None) is not None:
            at_work.world.step(10.0)
        return PASS

    at_work.door.judge = judge
    for _ in range(slow):
        at_work.onesd.rounds.round()
    assert at_work.onesd.rounds.tick_interval() == seconds


def test_the_priority_that_it_was_given_is_gone_when_it_is_held_again() -> None:
    at_work = AtWork(policy="ones")
    busy(at_work, "n1")
    at_work.world.step(3)
    at_work.world.submit("bob", wants=EVERYWHERE, time_limit=3600.0)
    at_work.world.step(3)
    job = at_work.submit(4, elastic="1-4")
    at_work.live(60, until=lambda: at_work.world.runs(job))
    assert at_work.job(job).rank == FIRST
    at_work.cluster.requeue_hold(job)
    at_work.world.step(3)
    at_work.cluster.release(job)
    assert at_work.job(job).rank == at_work.job(job).weight


def overtaken() -> tuple[AtWork, list[int], int, int]:
    """All GPUs are taken; an elastic job waits, and behind it a plain one."""
    at_work = AtWork(policy="ones")
    blockers = [
        at_work.world.submit("bob", wants=gpus(4, required=(node,)), time_limit=3600.0)
        for node in at_work.world.state.nodes
    ]
    at_work.world.step(3)
    job = at_work.submit(4, elastic="4-8", priority=900)
    at_work.live(30)
    behind = at_work.world.submit("bob", wants=gpus(4), time_limit=3600.0, priority=100)
    at_work.live(60)
    return at_work, blockers, job, behind


def test_a_waiting_job_is_not_overtaken_by_a_plain_one_behind_it() -> None:
    """Held, it has no place in Slurm's queue, which starts somebody as soon as GPUs are free."""
    at_work, blockers, job, behind = overtaken()
    assert not at_work.job(job).held
    at_work.world.by("bob").cancel(blockers[0])
    at_work.live(60)
    assert at_work.world.runs(job)
    assert at_work.job(behind).state == "PENDING"
    at_work.world.by("bob").cancel(blockers[1])
    at_work.live(60)
    assert at_work.world.runs(behind)
    assert at_work.failures == []


def test_a_job_in_slurms_queue_is_started_sooner_where_it_accepts_less() -> None:
    at_work = AtWork(policy="ones")
    for node in ("n2", "n3", "n4"):
        at_work.world.submit("bob", wants=gpus(4, required=(node,)), time_limit=3600.0)
    halves = [
        at_work.world.submit("bob", wants=gpus(2, required=("n1",)), time_limit=3600.0)
        for _ in range(2)
    ]
    at_work.world.step(3)
    job = at_work.submit(4, elastic="1-8", priority=900)
    at_work.live(30)
    at_work.world.submit("bob", wants=gpus(4), time_limit=3600.0, priority=100)
    at_work.live(60)
    assert not at_work.job(job).held
    at_work.world.by("bob").cancel(halves[0])
    at_work.live(90)
    assert at_work.world.runs(job)
    assert at_work.job(job).gpus == 2
    assert at_work.failures == []


def test_a_user_who_holds_his_job_in_slurms_queue_keeps_it_held() -> None:
    at_work, blockers, job, _ = overtaken()
    at_work.world.by("alice").hold(job)
    at_work.world.by("bob").cancel(blockers[0])
    at_work.live(90)
    assert at_work.job(job).held
    assert at_work.job(job).reason == "JobHeldUser"
