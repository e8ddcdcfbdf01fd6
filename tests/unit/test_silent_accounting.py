"""slurmdbd is away while slurmctld answers: moves go on, and history is caught up with."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from simulated_onesd import AtWork

from ones.slurm_ext.simulated.gate import PASS, Call, Hang, Refuse, Verdict

QUESTIONS = ("runs", "usage")  # that sacct answers


@dataclass
class Away:
    """What becomes of questions to the accounting while it is away."""

    verdict: Verdict
    on: bool = True
    asked: list[str] = field(default_factory=list)

    def __call__(self, call: Call) -> Verdict:
        if call.name not in QUESTIONS or not self.on:
            return PASS
        self.asked.append(call.name)
        return self.verdict


def restarted(away: Away) -> tuple[AtWork, int, float]:
    """A job that was stopped and started again, and how long that took."""
    work = AtWork()
    work.running(count=2)
    job = work.running()
    work.door.judge = away
    began = work.world.now
    work.preempt(job)
    work.live(120, until=lambda: work.job(job).restarts == 1)
    work.live(600, until=lambda: work.world.runs(job))
    return work, job, work.world.now - began


@pytest.mark.parametrize("verdict", [Refuse("no slurmdbd"), Hang(20.0)])
def test_it_is_asked_seldom_and_holds_up_no_move(verdict: Verdict) -> None:
    away = Away(verdict)
    work, job, took = restarted(away)
    assert work.world.runs(job)
    assert took < 60.0
    work.live(1800)
    assert len(away.asked) <= 8


def test_what_it_could_not_tell_is_asked_again_when_it_is_back() -> None:
    away = Away(Refuse("no slurmdbd"))
    work, job, _ = restarted(away)
    ended = "SELECT ordinal FROM runs WHERE job = ? AND ended IS NOT NULL"
    assert work.store.rows(ended, job) == []
    away.on = False
    work.live(700)
    assert work.world.runs(job)
    assert [row["ordinal"] for row in work.store.rows(ended, job)] == [0]
