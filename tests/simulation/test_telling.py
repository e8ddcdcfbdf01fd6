"""What scripts/simulate promises of its stories: each can be told again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulation.scenario import Scenario

PROGRAM = Path(__file__).with_name("run.py")


def simulate(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, *options],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def found(*options: str) -> dict[str, Any]:
    done = simulate("--json", *options)
    assert done.returncode == 0, done.stdout
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("seed", ["3", "9"])
def test_a_seed_tells_the_same_story_each_time(seed: str) -> None:
    """In whatever order this Python goes through a set."""
    first, again = (
        simulate("--seed", seed, "--only", PYTHONHASHSEED=order).stdout for order in "12"
    )
    assert len(first.splitlines()) > 50
    assert first == again


def test_one_round_is_one_seed_and_many_are_the_same_seeds_each_time() -> None:
    options = ("--seed", "11", "--policy", "quick", "--faults", "lost,late")
    assert found("--rounds", "1", *options)["seeds"] == 1
    first, again = (found("--rounds", "300", "--workers", "2", *options) for _ in "12")
    speeds = {"rounds_per_cpu_second", "cluster_days_per_cpu_minute"}
    assert {key for key in first if first[key] != again[key]} <= speeds
    assert first["rounds"] >= 300


@pytest.mark.parametrize("seed", range(1, 8))
def test_a_scenario_is_known_by_its_words(seed: int) -> None:
    scenario = Scenario.of(seed)
    assert Scenario.read(scenario.words) == scenario
    shorter = replace(scenario, without=frozenset({0, 2}), faults=frozenset(), rounds=17)
    assert Scenario.read(shorter.words) == shorter


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="not a scenario"):
        Scenario.read("seed 5")
