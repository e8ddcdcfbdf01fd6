"""A job on half of its GPUs, live, on a node that is reserved soon, and its time limit comes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation import play
from simulation.people import queue
from simulation.scenario import Scenario

LIMIT = 600.0
STORY = (
    "seed 1007: srtf, 4 nodes, 4 jobs, 400 rounds, faults"
    " empty,kill,late,limits,refused,reports,reservations,second,slurmctld,stale"
)
NUMBER = 3  # of carol's job, which has asked for four GPUs and gets two


def test_it_goes_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        play,
        "queue",
        lambda scenario: [
            (at, replace(request, time_limit=LIMIT), *rest)
            for at, request, *rest in queue(scenario)
        ],
    )
    story = play.Play(Scenario.read(STORY))
    assert story.run().broken is None
    state = story.world.state
    runs = state.accounting.runs([NUMBER], state.now)
    # At last onesd is gone for a while, and ones-release lets it go at its owner's own request.
    assert [run.gpus for run in runs] == [2] * (len(runs) - 1) + [4]
    assert [run.state for run in runs] == ["REQUEUED"] * (len(runs) - 1) + ["COMPLETED"]
    assert len({run.nodes for run in runs}) > 1
    assert all(run.ended - run.started < LIMIT for run in runs if run.ended is not None)
    assert sum(run.ended - run.started for run in runs if run.ended is not None) > LIMIT
