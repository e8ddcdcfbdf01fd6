"""One move that makes no sense never stops the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_onesd import AtWork

from ones.slurm_ext import moves
from ones.slurm_ext.live_moves import LiveMove
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.simulated.gate import PASS, Altered
from ones.slurm_ext.snapshot import Snapshot


@pytest.mark.parametrize("kind", ["start", "live"])
@pytest.mark.parametrize("record", ["{}", "[]", "no JSON", '{"kind": "start", "target": 7}'])
def test_a_move_of_another_version_is_ended_and_its_job_planned_for_anew(
    kind: str, record: str
) -> None:
    at_work = AtWork()
    job = at_work.submit()
    at_work.store.write(
        "INSERT INTO moves(job, at, open, kind, record) VALUES(?, 0, 1, ?, ?)", job, kind, record
    )
    at_work.live(30)
    assert at_work.job(job).state == "RUNNING"
    assert at_work.outcomes(job)[0].startswith("abandoned: its record can't be read")


@pytest.mark.parametrize("fault", [KeyError("n9"), TypeError("None"), ZeroDivisionError()])
def test_a_move_whose_step_makes_no_sense_stops_no_other(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work = AtWork()
    odd, sound = at_work.submit(), at_work.submit()
    begun = moves.advance

    def advance(move: MoveRecord, *rest: Any) -> moves.Next:
        if move.job == odd:
            raise fault
        return begun(move, *rest)

    monkeypatch.setattr("ones.daemon.onesd.moves.restart.advance", advance)
    at_work.live(30)
    assert at_work.job(sound).state == "RUNNING"
    assert at_work.job(odd).state == "PENDING"
    counted = at_work.onesd.service.metrics.registry.get_sample_value("ones_odd_moves_total")
    assert counted


def test_a_live_move_whose_step_makes_no_sense_stops_no_other_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_work = AtWork()
    odd = at_work.submit()
    at_work.live(30)
    target = at_work.onesd.rounds.published.jobs[0].placement
    assert target is not None
    wrong = LiveMove(id=99, job=odd, restarts=0, target=target, begun_at=at_work.world.now)
    with at_work.store.transaction():
        at_work.store.write(
            "INSERT INTO moves(id, job, at, open, record) VALUES(99, ?, 0, 1, '{}')", odd
        )
        at_work.onesd.service.books.journal.keep(wrong, now=at_work.world.now)

    def advance(*_: Any) -> LiveMove:
        raise LookupError("no such node")

    monkeypatch.setattr("ones.daemon.onesd.moves.live.advance", advance)
    sound = at_work.submit()
    at_work.live(30)
    assert at_work.job(sound).state == "RUNNING"


def test_a_move_that_makes_no_sense_for_minutes_is_ended_with_the_job_still_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_work = AtWork()
    odd = at_work.submit()
    begun = moves.advance

    def advance(move: MoveRecord, *rest: Any) -> moves.Next:
        if move.id == 1 and move.step == "shaped":
            raise KeyError("n9")
        return begun(move, *rest)

    monkeypatch.setattr("ones.daemon.onesd.moves.restart.advance", advance)
    at_work.live(180)
    assert at_work.outcomes(odd) == ["abandoned: its steps make no sense (KeyError('n9'))", "done"]
    assert at_work.job(odd).state == "RUNNING"


def test_nothing_is_concluded_of_a_job_whose_record_makes_no_sense() -> None:
    at_work = AtWork()
    odd = at_work.submit()
    at_work.live(2, until=lambda: at_work.step_of(odd) == "starting")

    def unread(snapshot: Snapshot) -> Snapshot:
        jobs = {number: job for number, job in snapshot.jobs.items() if number != odd}
        return replace(snapshot, jobs=jobs, unread={f"job {odd}": "makes no sense"})

    at_work.door.judge = lambda call: Altered(unread) if call.name == "snapshot" else PASS
    at_work.live(30)
    at_work.door.judge = lambda _call: PASS
    assert at_work.failures == []
    at_work.live(30)
    assert at_work.job(odd).state == "RUNNING"
    assert at_work.outcomes(odd) == ["done"]
