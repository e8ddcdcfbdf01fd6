"""onesd killed between any two statements of its moves, one after the other."""

from __future__ import annotations

import pytest

from simulation.faults import Killed
from simulation.play import Play
from simulation.scenario import Scenario

pytestmark = pytest.mark.usefixtures("quiet")

LIVES = 60  # a move, and what is written beside it, passes fewer points


class Mortal(Play):
    """Dies at its first point with a move under way, in its next life at the second, and so on.

    Each write into the database, and each call of Slurm, has one point before it and one after.
    """

    lives = points = 0

    def kinds(self, *, under_way: bool = False) -> set[str]:
        """Of the moves that were, or are, made."""
        rows = self._store.rows(
            "SELECT json_extract(record, '$.kind') AS kind FROM moves WHERE open >= ?", under_way
        )
        return {row["kind"] for row in rows}

    def _start(self) -> None:
        self.points = 0
        super()._start()

    def _point(self) -> None:
        living = self.alive is not None and self.lives < LIVES
        if not living or not self.kinds(under_way=True):
            return
        self.points += 1
        if self.points > self.lives:
            self.lives += 1
            raise Killed


@pytest.mark.parametrize("seed", [3, 4])
def test_killed_at_every_step_of_its_moves_it_loses_no_job(seed: int) -> None:
    scenario = Scenario(seed=seed, policy="ones", faults=frozenset(), jobs=12, rounds=240)
    play = Mortal(scenario)
    broken = play.run().broken
    assert broken is None, "\n".join((broken.invariant, broken.what, *broken.story))
    assert play.lives == LIVES
    assert play.kinds() >= {"start", "resize", "live"}
