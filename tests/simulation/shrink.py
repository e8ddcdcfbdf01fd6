"""A story that breaks an invariant, told as shortly as it still does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulation.play import Outcome, play
from simulation.scenario import Scenario

PLAYS = 60  # that a story may cost


def shrink(found: Outcome, *, of: Callable[[Scenario], Outcome] = play) -> Outcome:
    """The same invariant broken with fewer faults, jobs and rounds."""
    assert found.broken is not None, "only what is broken can be shrunk"
    invariant, left = found.broken.invariant, PLAYS

    def still(scenario: Scenario) -> bool:
        nonlocal found, left
        if left == 0:
            return False
        left -= 1
        outcome = of(scenario)
        if outcome.broken is None or outcome.broken.invariant != invariant:
            return False
        found = outcome
        return True

    still(replace(found.scenario, rounds=min(found.scenario.rounds, found.rounds + 1)))
    for fault in sorted(found.scenario.faults):
        still(found.scenario.less(fault))
    for place in range(found.scenario.jobs):
        still(replace(found.scenario, without=found.scenario.without | {place}))
    rounds = found.scenario.rounds
    while rounds > 8 and still(replace(found.scenario, rounds=rounds // 2)):
        rounds //= 2
    return found
