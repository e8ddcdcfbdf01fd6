"""A job that the signal for a checkpoint ends is put back into the queue, and not asked again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from fake_slurm import a_record
from simulated_onesd import AtWork

from ones.policies.guard import Move
from ones.policies.model import JobId, Placement
from ones.slurm_ext.actions import Hold, Revive
from ones.slurm_ext.moves import KILLED, Evidence, MoveLimits, MoveRecord, advance
from ones.slurm_ext.snapshot import JobRecord

ASKED = MoveRecord(
    id=7,
    job=1,
    kind="resize",
    restarts=0,
    target=Placement.of({"n2": 4}),
    begun_at=2000.0,
    step="asked",
    asked_at=2000.4,
    deadline=2300.0,
)
FREE = Evidence(now=2002.0, free={"n2": 4})
LIMITS = MoveLimits()


def failed(**changes: object) -> JobRecord:
    job = a_record(state="FAILED", held=False, nodes="n1", started=1500.0, ended=2000.0)
    return replace(job, **({"exit_signal": 10} | changes))


@pytest.mark.parametrize("ending", [{}, {"exit_signal": 0, "exit_code": 138}])
def test_the_job_waits_again_held_and_the_move_is_over(ending: Mapping[str, int]) -> None:
    leaving = advance(
        ASKED, replace(failed(**ending), flags=frozenset({"COMPLETING"})), FREE, LIMITS
    )
    assert (leaving.action, leaving.move.step, leaving.move.holds) == (None, "stopping", True)
    following = advance(leaving.move, failed(**ending), FREE, LIMITS)
    assert following.action == Revive(1, 0)
    again = advance(following.move, failed(**ending), FREE, LIMITS)
    assert again.action == Revive(1, 0)
    back = a_record(restarts=1, submitted=2003.0)
    ended = advance(again.move, back, FREE, LIMITS)
    assert (ended.action, ended.done.outcome) == (Hold(1, 1), KILLED)
    assert ended.done.holds


@pytest.mark.parametrize(
    ("job", "step"),
    [
        (failed(exit_code=1, exit_signal=0), "asked"),
        (failed(exit_signal=9), "asked"),
        (failed(exit_code=10, exit_signal=0), "asked"),
        (replace(failed(), state="TIMEOUT"), "asked"),
        (replace(failed(), ended=1990.0), "asked"),
        (replace(failed(), restarts=1), "asked"),
        (failed(), "begun"),
    ],
)
def test_who_ended_otherwise_has_ended(job: JobRecord, step: str) -> None:
    move = replace(ASKED, step=step, asked_at=None if step == "begun" else ASKED.asked_at)
    following = advance(move, job, FREE, LIMITS)
    assert following.action is None
    assert following.move.outcome == f"abandoned: the job has ended ({job.state})"


def test_a_job_that_slurm_does_not_put_back_is_left_alone() -> None:
    stopping = advance(ASKED, failed(), FREE, LIMITS).move
    late = replace(FREE, now=2002.0 + LIMITS.requeue_timeout)
    following = advance(stopping, failed(), late, LIMITS)
    assert following.action is None
    assert following.move.outcome == "failed: Slurm does not requeue the job any more"


def test_it_goes_on_and_is_not_asked_again() -> None:
    at_work = AtWork(policy="fifo")
    at_work.again, at_work.confirms = True, False
    job = at_work.running(count=2)
    elsewhere = Move(job=JobId(job), kind="resize", target=Placement.of({"n1": 4}), reason="a test")
    at_work.move(elsewhere)
    at_work.live(30, until=lambda: bool(at_work.world.state.signals))
    at_work.world.finish(job, -10)
    at_work.live(60, until=lambda: at_work.job(job).state == "RUNNING" and at_work.job(job).run > 1)
    at_work.live(30)
    assert at_work.outcomes(job) == ["done", KILLED, "done"]
    assert (at_work.job(job).state, at_work.job(job).restarts) == ("RUNNING", 1)
    (planned,) = at_work.onesd.rounds.published.jobs
    assert planned.fixed == f"not resizable; {KILLED}"


def test_one_that_failed_otherwise_while_it_was_asked_stays_failed() -> None:
    at_work = AtWork(policy="fifo")
    at_work.again, at_work.confirms = True, False
    job = at_work.running(count=2)
    at_work.preempt(job)
    at_work.live(30, until=lambda: bool(at_work.world.state.signals))
    at_work.world.finish(job, 1)
    at_work.live(60)
    assert at_work.outcomes(job)[-1] == "abandoned: the job has ended (FAILED)"
    assert at_work.job(job).state == "FAILED"
