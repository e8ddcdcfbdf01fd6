"""Stories in which something broke once: it may not break in them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.play import play
from simulation.scenario import Scenario

LINES = Path(__file__).with_name("seeds.txt").read_text().splitlines()
STORIES = [line for line in LINES if line and not line.startswith("#")]


@pytest.mark.parametrize("words", STORIES, ids=[words.partition(":")[0] for words in STORIES])
def test_what_broke_once_holds(words: str) -> None:
    broken = play(Scenario.read(words)).broken
    assert broken is None, "\n".join((broken.invariant, broken.what, *broken.story))
