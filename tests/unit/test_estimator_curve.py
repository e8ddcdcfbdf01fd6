from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad  # type: ignore[import-untyped]

from ones.estimator.curve import (
    FIXED_SHARE,
    GROWTH_PENALTY,
    OVERLAP_PENALTY,
    SHARE_PENALTY,
    SMOOTHING,
    Point,
    Terms,
    _Fit,
    fit,
)
from ones.estimator.records import Records
from ones.estimator.speed import Observation
from ones.policies.model import JobId

PROFILES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pollux" / "profiles"
TRUTH = Terms(0.05, 0.002, 0.03, 0.004, 0.08, 0.006, 1.8)
SETTINGS = [
    (nodes, gpus, local)
    for nodes, gpus in ((1, 1), (1, 2), (1, 4), (2, 8), (3, 12), (4, 16))
    for local in (16.0, 64.0, 128.0)
]


def seconds(terms: Terms, nodes: int, gpus: int, local: float, passes: int = 1) -> float:
    found = terms.seconds(
        np.array(float(nodes)), np.array(float(gpus)), np.array(local), np.array(float(passes))
    )
    return float(found)


def point(
    nodes: int, gpus: int, local: float, *, passes: int = 1, kind: str = "v100",
    terms: Terms = TRUTH, apart: bool = True,
) -> Point:  # fmt: skip
    gradient = terms.alpha_c + terms.beta_c * local
    step = seconds(terms, nodes, gpus, local, passes)
    return Point(kind, nodes, gpus, local, passes, step, gradient if apart else None)


@pytest.mark.parametrize("apart", [True, False], ids=["sync reported", "step time alone"])
def test_the_curve_that_made_the_step_times_is_found_again(apart: bool) -> None:
    seen = [point(*setting, apart=apart) for setting in SETTINGS]
    seen += [point(2, 8, 128.0, passes=3, apart=apart)]
    terms = fit(seen)["v100"]
    for nodes, gpus in ((1, 3), (2, 5), (4, 14)):
        expected = seconds(TRUTH, nodes, gpus, 90.0, 2)
        assert seconds(terms, nodes, gpus, 90.0, 2) == pytest.approx(expected, rel=0.03)


def test_synchronisation_overlaps_with_the_gradient_as_far_as_gamma_says() -> None:
    apart, together = Terms(0.3, 0.0, 0.2), Terms(0.3, 0.0, 0.2, gamma=10.0)
    assert seconds(apart, 1, 2, 1.0) == pytest.approx(0.5)
    assert 0.3 < seconds(together, 1, 2, 1.0) < 0.305


def test_only_the_last_pass_synchronises() -> None:
    more = seconds(TRUTH, 2, 8, 64.0, 3) - seconds(TRUTH, 2, 8, 64.0, 1)
    assert more == pytest.approx(2 * seconds(TRUTH, 1, 1, 64.0))


def test_what_was_never_seen_costs_nothing_but_nodes_are_never_closer_than_gpus() -> None:
    alone = fit([point(1, 1, 64.0), point(1, 1, 128.0)])["v100"]
    assert (alone.alpha_r, alone.alpha_n) == (0.0, 0.0)
    inside = fit([point(*setting) for setting in SETTINGS if setting[0] == 1])["v100"]
    assert inside.alpha_n == inside.alpha_r > 0.01


def test_a_type_takes_from_the_best_known_one_what_it_has_not_seen_itself() -> None:
    seen = [point(*setting) for setting in SETTINGS]
    slow = Terms(0.1, 0.004)
    found = fit([*seen, point(1, 1, 64.0, kind="k80", terms=slow)])
    assert list(found) == ["v100", "k80"]
    assert seconds(found["k80"], 1, 1, 64.0) == pytest.approx(seconds(slow, 1, 1, 64.0), rel=0.02)
    assert found["k80"].alpha_n == found["v100"].alpha_n


def test_a_type_that_has_seen_a_network_has_its_own() -> None:
    slow = Terms(0.1, 0.004, 0.3, 0.0, 0.9, 0.0, 1.0)
    seen = [point(*setting) for setting in SETTINGS]
    seen += [point(*setting, kind="k80", terms=slow) for setting in SETTINGS[3:]]
    found = fit(seen)
    assert seconds(found["k80"], 4, 16, 64.0) == pytest.approx(seconds(slow, 4, 16, 64.0), rel=0.05)
    assert seconds(found["v100"], 4, 16, 64.0) == pytest.approx(
        seconds(TRUTH, 4, 16, 64.0), rel=0.05
    )


def of_all_sorts() -> list[Point]:
    """One, two and three passes, with and without the gradient's own time."""
    return [
        point(*setting, passes=1 + k % 3, apart=k % 2 > 0) for k, setting in enumerate(SETTINGS)
    ]


vectors = st.tuples(*[st.floats(-6.0, 1.0)] * 6, st.floats(1.0, 9.0)).map(np.array)


@settings(max_examples=30, deadline=None)
@given(vectors)
def test_the_loss_is_how_far_the_formula_is_from_the_points(vector: np.ndarray) -> None:
    points = of_all_sorts()
    problem = _Fit(points, None)
    terms = Terms(*(problem.unit * np.exp(vector[:6])), vector[6])
    steps = [seconds(terms, one.nodes, one.gpus, one.local, one.passes) for one in points]
    errors = np.log(steps) - np.log([one.step_seconds for one in points])
    told = [one for one in points if one.gradient_seconds is not None]
    alone = [terms.alpha_c + terms.beta_c * one.local for one in told]
    apart = np.log(alone) - np.log([one.gradient_seconds or 0.0 for one in told])
    loss = sum(float(np.sqrt(np.mean(each**2) + SMOOTHING**2)) for each in (errors, apart))
    share = terms.alpha_c / (terms.alpha_c + terms.beta_c * problem.typical_local)
    loss += OVERLAP_PENALTY * (terms.gamma - 1.0) ** 2
    loss += SHARE_PENALTY * (share - FIXED_SHARE) ** 2
    loss += GROWTH_PENALTY * (terms.beta_r / terms.alpha_r) ** 2
    loss += GROWTH_PENALTY * (terms.beta_n / terms.alpha_n) ** 2
    assert problem.loss(vector)[0] == pytest.approx(loss, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(vectors)
def test_the_slope_of_the_loss_is_its_derivative(vector: np.ndarray) -> None:
    points = of_all_sorts()
    problem = _Fit(points, None)
    away = check_grad(lambda v: problem.loss(v)[0], lambda v: problem.loss(v)[1], vector)
    assert away < 1e-4 * max(1.0, float(np.linalg.norm(problem.loss(vector)[1])))


@pytest.mark.shared
@pytest.mark.skipif(not PROFILES.is_dir(), reason="the published profiles are not beside the tree")
@pytest.mark.parametrize("name", ["bert", "cifar10", "deepspeech2", "imagenet", "yolov3"])
def test_measured_profiles_are_foretold_from_a_few_of_their_points(name: str) -> None:
    with (PROFILES / name / "placements.csv").open() as file:
        rows = list(csv.DictReader(file))
    order = np.random.default_rng(1).permutation(len(rows))
    records, misses = Records(), []
    for rank, row in enumerate(rows[k] for k in order):
        counts, local = [int(digit) for digit in row["placement"]], float(row["local_bsz"])
        gpus, step = sum(counts), float(row["step_time"])
        if rank < 20:
            records.observe(
                Observation(
                    job=JobId(1), family="f", gpu_type="t4", nodes=len(counts), gpus=gpus,
                    batch=gpus * local, step_seconds=step, sync_seconds=float(row["sync_time"]),
                )
            )  # fmt: skip
            continue
        speed = records.speed(requested=64, batches=None, factors={})
        assert speed is not None
        found = speed.step_seconds(
            "t4", np.array(len(counts)), np.array(gpus), np.array(gpus * local)
        )
        misses.append(abs(float(found) / step - 1.0))
    assert np.median(misses) < 0.08
