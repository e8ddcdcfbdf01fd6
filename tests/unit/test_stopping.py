"""When a job is stopped: for somewhere to go, and on a checkpoint of this moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_slurm import a_record
from simulated_onesd import AtWork

from ones.daemon.onesd.books.outages import AFTERMATH, Outages
from ones.daemon.onesd.books.store import Store
from ones.policies.guard import Move
from ones.policies.model import JobId, Placement
from ones.slurm_ext.moves import (
    FRESH,
    HEARING,
    Evidence,
    MoveLimits,
    MoveRecord,
    Step,
    advance,
)
from ones.slurm_ext.snapshot import NodeRecord

LIMITS = MoveLimits(checkpoint_timeout=300, requeue_timeout=120, start_timeout=60)
RUNNING = a_record(state="RUNNING", held=False, nodes="n1", gpus_on={"n1": 4}, started=1500.0)
FREE = {"n1": 0, "n2": 4, "n3": 4}


def a_move(step: Step = "asked", **changes: Any) -> MoveRecord:
    values: dict[str, Any] = {
        "id": 7,
        "job": 1,
        "kind": "resize",
        "restarts": 0,
        "target": Placement.of({"n2": 4}),
        "begun_at": 2000.0,
        "step": step,
    }
    if step == "asked":
        values |= {"asked_at": 2000.0, "deadline": 2300.0}
    return MoveRecord(**(values | changes))


def evidence(now: float, **more: Any) -> Evidence:
    return Evidence(**({"now": now, "ready": True, "free": FREE, "listening": 1000.0} | more))


def test_a_fresh_confirmation_stops_the_job() -> None:
    following = advance(a_move(), RUNNING, evidence(2010, checkpoint_at=2005.0), LIMITS)
    assert following.move.step == "stopping"


def test_a_job_is_not_stopped_on_a_checkpoint_minutes_old_but_asked_again() -> None:
    late = evidence(2005.0 + FRESH + 1, checkpoint_at=2005.0)
    following = advance(a_move(), RUNNING, late, LIMITS)
    assert str(following.action).startswith("Signal")
    assert following.done.step == "asked"
    assert following.done.asked_at == late.now
    assert following.done.deadline == late.now + 300


def test_a_stop_that_the_last_answer_of_slurm_does_not_show_yet_stays_ours() -> None:
    stopping = a_move("stopping", asked_at=2000.0, deadline=2125.0, holds=True)
    late = evidence(2005.0 + FRESH + 1, checkpoint_at=2005.0)
    following = advance(stopping, RUNNING, late, LIMITS)
    assert str(following.action).startswith("Signal")
    assert (following.done.step, following.done.holds) == ("stopping", True)
    requeued = replace(
        RUNNING, state="PENDING", held=True, restarts=1, reason="job requeued in held state"
    )
    assert advance(following.done, requeued, late, LIMITS).move.holds
    waiting = advance(following.done, RUNNING, evidence(late.now + 70), LIMITS)
    assert waiting.action is None
    over = advance(following.done, RUNNING, evidence(late.now + 301), LIMITS)
    assert over.move.outcome.startswith("failed")


def test_a_job_asked_in_an_earlier_life_of_onesd_is_asked_again_not_called_refusing() -> None:
    back = 2400.0
    first = advance(a_move(), RUNNING, evidence(back + 1, listening=back), LIMITS)
    assert (first.action, first.move.outcome) == (None, ""), "the agents have not spoken yet"
    heard = evidence(back + HEARING, listening=back)
    again = advance(a_move(), RUNNING, heard, LIMITS)
    assert str(again.action).startswith("Signal")
    late = evidence(back + HEARING + 301, listening=back)
    assert advance(again.done, RUNNING, late, LIMITS).move.outcome.startswith("refused")


def test_a_confirmation_heard_only_after_an_outage_is_asked_for_again() -> None:
    at_work = AtWork()
    job = at_work.submit()
    at_work.live(90)
    (node,) = at_work.job(job).nodes
    elsewhere = Placement.of({"n3" if node != "n3" else "n4": 4})
    at_work.move(Move(job=JobId(job), kind="resize", target=elsewhere, reason="a test"))
    at_work.onesd.rounds.tick()
    assert at_work.step_of(job) == "asked"
    at_work.alone(900)
    at_work.reborn()
    at_work.live(60, until=lambda: at_work.job(job).restarts == 1)
    asked = [sent.at for sent in at_work.world.state.signals if sent.job == job]
    assert len(asked) == 2
    assert at_work.job(job).restarts == 1
    assert at_work.world.now - asked[-1] < FRESH
    assert not any("refused" in outcome for outcome in at_work.outcomes(job))


@pytest.mark.parametrize("target", [{"n2": 4}, {"n1": 2, "n2": 2}])
@pytest.mark.parametrize("out", ["n2", "n1"])
def test_no_job_is_stopped_for_a_node_that_is_out_of_service(
    target: dict[str, int], out: str
) -> None:
    placed = Placement.of(target)
    if out not in placed.nodes:
        return
    away = evidence(2001, out_of_service=frozenset({out}))
    begun = a_move("begun", target=placed)
    assert advance(begun, RUNNING, away, LIMITS).move.step == "begun"
    confirmed = replace(away, checkpoint_at=2001.0)
    outcome = advance(a_move(target=placed), RUNNING, confirmed, LIMITS).move.outcome
    assert outcome.startswith("expired")


def test_a_running_job_is_not_stopped_for_a_node_that_goes_down() -> None:
    at_work = AtWork()
    job = at_work.submit()
    at_work.live(90)
    at_work.move(Move(job=JobId(job), kind="resize", target=Placement.of({"n4": 4}), reason="test"))
    at_work.world.take_down("n4")
    at_work.live(120)
    assert (at_work.job(job).state, at_work.job(job).restarts) == ("RUNNING", 0)
    assert at_work.outcomes(job)[-1].startswith("expired")


STEPS: dict[Step, dict[str, Any]] = {
    "begun": {"deadline": None},
    "asking": {},
    "asked": {},
    "stopping": {"holds": True},
    "stopped": {"holds": True},
    "shaping": {"holds": True},
    "shaped": {"holds": True},
    "releasing": {"holds": True},
    "starting": {},
    "withdrawing": {"holds": True},
}
BUSY = {"n1": 0, "n2": 0, "n3": 0}


def the_job_in(step: Step) -> Any:
    if step in ("begun", "asking", "asked", "stopping"):
        return RUNNING
    held = step not in ("starting", "withdrawing")
    return a_record(
        restarts=1,
        held=held,
        reason="JobHeldAdmin" if held else "Resources",
        required_nodes="n2",
        submitted=1990.0,
    )


@pytest.mark.parametrize("step", STEPS)
def test_every_step_ends_though_slurm_and_the_job_do_nothing_for_it(step: Step) -> None:
    """What is to be done is never done, and nobody confirms: no step waits for ever."""
    move = a_move(step, **({"deadline": 2060.0} | STEPS[step]))
    job = the_job_in(step)
    for now in range(2000, 4000, 10):
        free = FREE if step in ("shaping", "shaped") else BUSY
        following = advance(move, job, evidence(float(now), free=free), LIMITS)
        move = following.move  # the action fails
        if move.outcome:
            return
    raise AssertionError(f"still {move.step}")


@pytest.mark.parametrize("step", STEPS)
def test_a_clock_set_back_makes_no_step_wait_for_it(step: Step) -> None:
    """The deadline was written a day ahead of what the clock says now."""
    move = a_move(
        step,
        begun_at=90_000.0,
        **({"deadline": 90_060.0, "asked_at": 90_000.0} | STEPS[step]),
    )
    job = replace(the_job_in(step), submitted=90_000.0)
    for now in range(2000, 4000, 10):
        free = FREE if step in ("shaping", "shaped") else BUSY
        following = advance(move, job, evidence(float(now), free=free), LIMITS)
        move = following.move
        if move.outcome:
            return
    raise AssertionError(f"still {move.step}")


def test_a_node_that_was_down_is_used_again_though_the_clock_was_set_back() -> None:
    outages = Outages(Store(":memory:"))
    node = NodeRecord(name="n1", states=frozenset({"DOWN"}), gpus=4)
    outages.take([node], now=90_000.0)
    outages.take([replace(node, states=frozenset({"IDLE"}))], now=90_010.0)
    outages.take([replace(node, states=frozenset({"IDLE"}))], now=1000.0)
    assert outages.note("n1", now=1000.0)
    assert not outages.note("n1", now=1000.0 + AFTERMATH)
