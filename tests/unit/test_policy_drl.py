"""The reinforcement learner: its network's file, the steps it may take, what plans come of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, a_problem, an_outlook, on

from ones.daemon.ctl.main import main
from ones.policies.drl import STOP, Drl
from ones.policies.drl_network import FEATURES, Network, untrained
from ones.policies.invariants import validate
from ones.policies.model import Floats, JobId, Plan, Problem
from ones.policies.registry import Site, make, settings_of

CSV = "submitted,name,user,gpus,duration_s,sizes\n0,a,ada,2,600,1-4\n30,b,bob,4,900,2-8\n"


def a_network(seed: int = 0, **line: float) -> Network:
    """Untrained, with other weights of some features on the line past its layers."""
    network = untrained((8,), np.random.default_rng(seed))
    past = network.line.copy()
    for name, weight in line.items():
        past[FEATURES.index(name)] = weight
    return replace(network, line=past)


def problem_of(*jobs: object, gpus: int = 8) -> Problem:
    problem = a_problem(list(jobs), a_cluster(nodes=gpus // 4))  # type: ignore[arg-type]
    return replace(problem, outlooks={job.id: an_outlook(1e5) for job in problem.jobs})


def planned(network: Network, problem: Problem, seed: int = 0) -> Plan:
    plan, _ = Drl(network=network).plan(problem, None, np.random.default_rng(seed))
    validate(problem, plan)
    return plan


def sizes(plan: Plan) -> dict[int, int]:
    return {int(job): given.placement.gpus for job, given in plan.assignments.items()}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(["1-8", "2-4", "4,8"]), max_size=6))
def test_whatever_the_network_says_the_plan_can_be_carried_out(seed: int, asked: list[str]) -> None:
    jobs = [a_job(number, one) for number, one in enumerate(asked, 1)]
    network = a_network(seed, stop=-5.0, leaves=0.0)
    plan = planned(network, problem_of(*jobs), seed)
    assert sum(sizes(plan).values()) <= 8


def test_a_network_that_stops_at_once_changes_nothing() -> None:
    runs = a_job(1, "1-8", placement=on(n1=2))
    plan = planned(a_network(stop=1e6), problem_of(runs, a_job(2, "1-8")))
    assert sizes(plan) == {1: 2}
    assert plan.assignments[JobId(1)].placement == on(n1=2)


def test_a_network_that_starts_whoever_waits_does_so() -> None:
    plan = planned(a_network(starts=1e6), problem_of(a_job(1, "1-8"), a_job(2, "2-4")))
    assert sizes(plan).keys() == {1, 2}


def test_a_teacher_is_asked_about_the_very_steps_that_there_are() -> None:
    asked: list[list[tuple[JobId, int]]] = []

    def choose(_: Problem, steps: Sequence[tuple[JobId, int]], features: Floats) -> int:
        assert features.shape == (1 + len(steps), len(FEATURES))
        assert np.isfinite(features).all()
        asked.append(list(steps))
        return 1 if len(asked) == 1 else STOP

    problem = problem_of(a_job(1, "2,4", placement=on(n1=4)), a_job(2, "4,8"))
    policy = Drl(network=a_network(), choose=choose)
    plan, _ = policy.plan(problem, None, np.random.default_rng(0))
    assert asked[0] == [(1, 2), (2, 4)]
    assert asked[1] == [(1, 4), (1, 0), (2, 4)]
    assert sizes(plan) == {1: 2}


def test_a_network_comes_out_of_its_file_as_it_went_in(tmp_path: Path) -> None:
    network = a_network(3)
    again = Network.read(json.loads(json.dumps(network.written())))
    features = np.random.default_rng(1).normal(size=(5, len(FEATURES)))
    assert again.scores(features).tolist() == network.scores(features).tolist()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"features": ["stop"]}, "train one with scripts/train-drl"),
        ({"layers": []}, "layers: 1 to 4 are expected"),
        ({"layers": [{"weights": [[1.0]], "biases": [0.0]}]}, "layer 1: weights for 18 inputs"),
        ({"line": [float("nan")] * len(FEATURES)}, "line: 18 finite numbers"),
        ({"line": "x"}, "line: 18 finite numbers"),
        ({"line": [10**400] * len(FEATURES)}, "line: 18 finite numbers"),
        (
            {
                "layers": [
                    {"weights": [[]] * len(FEATURES), "biases": []},
                    {"weights": [], "biases": [0.0]},
                ]
            },
            "layer 1: weights for 18 inputs",
        ),
        ({"layers": [{"weights": None, "biases": [0.0]}]}, "layer 1: weights for 18 inputs"),
    ],
)
def test_a_file_that_is_no_network_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, object], fault: str
) -> None:
    said = replayed(tmp_path, {**a_network().written(), **change})
    assert said.exit_code == 1
    assert fault in said.stderr
    assert said.stderr.count("\n") == 1


def test_a_replay_takes_the_network_of_a_file(tmp_path: Path) -> None:
    said = replayed(tmp_path, a_network().written())
    assert said.exit_code == 0, said.stderr
    assert json.loads(said.stdout)["runs"][0]["policy"] == "drl"


def test_without_a_network_there_is_no_such_policy() -> None:
    with pytest.raises(ValueError, match="it has no network; train one with scripts/train-drl"):
        make("drl")
    policy = make("drl:actions=5", site=Site(network=a_network()))
    assert settings_of(policy) == {"actions": 5}


def replayed(folder: Path, network: dict[str, object]):  # type: ignore[no-untyped-def]
    (folder / "network.json").write_text(json.dumps(network))
    (folder / "jobs.csv").write_text(CSV)
    asked = [str(folder / "jobs.csv"), "--nodes", "2", "--network", str(folder / "network.json")]
    return CliRunner().invoke(main, ["replay", *asked, "--policy", "drl", "--json"])
