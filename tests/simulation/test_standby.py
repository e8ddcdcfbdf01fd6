"""onesd stopped just before a command to Slurm, replaced, and woken up again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ones.daemon.onesd.terms import Term
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from simulation.play import Play
from simulation.scenario import Scenario

pytestmark = pytest.mark.usefixtures("quiet")

MOST = 20  # stops
LEAST = 5  # how many there are depends on what is moved when
SCENARIO = Scenario(seed=3, policy="ones", faults=frozenset({"standby"}), jobs=12, rounds=160)


class Stopped(Play):
    """Stopped just before every second command to Slurm with a move under way."""

    stops = commands = 0

    def _new_cluster(self, fence: Callable[[], None] = lambda: None) -> SimulatedCluster:
        def stopped_before() -> None:
            at_work = self._working is not None and self._working is self.alive
            if at_work and not self._stopped and self.stops < MOST and self.open_moves():
                self.commands += 1
                if self.commands % 2:
                    self.stops += 1
                    self._stop_and_wake(1)
            fence()

        return super()._new_cluster(stopped_before)


def test_stopped_before_the_commands_of_its_moves_it_wakes_up_and_gives_none() -> None:
    play = Stopped(SCENARIO)
    broken = play.run().broken
    assert broken is None, "\n".join((broken.invariant, broken.what, *broken.story))
    assert play.stops >= LEAST


def test_without_the_look_at_its_term_it_would_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Term, "check", lambda _self: None)
    broken = Stopped(SCENARIO).run().broken
    assert broken is not None
    assert broken.invariant == "one onesd acts"
