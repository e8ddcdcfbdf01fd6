from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, on

from ones.estimator.assess import assess
from ones.estimator.completion import Completion, learn
from ones.estimator.experience import Experience
from ones.estimator.speed import DOUBT, Observation
from ones.policies.model import JobId, Node

TYPES = ("v100", "p100", "k80")


def a_matrix(rows: int, *, noise: float = 0.02, seed: int = 0) -> list[dict[str, float]]:
    """ln of step times: each row as slow as it likes, and with one trait that types reward."""
    rng = np.random.default_rng(seed)
    own, trait = rng.normal(0.0, 2.0, rows), rng.normal(0.0, 1.0, rows)
    means, weights = np.array([0.0, 0.4, 1.5]), np.array([0.0, 0.2, 0.6])
    y = own[:, None] + means + trait[:, None] * weights + rng.normal(0.0, noise, (rows, 3))
    return [dict(zip(TYPES, row.tolist(), strict=True)) for row in y]


def shown(row: Mapping[str, float], *kinds: str) -> dict[str, float]:
    return {kind: row[kind] for kind in kinds}


def test_a_hidden_type_is_completed_from_the_others() -> None:
    *references, row = a_matrix(60)
    found = learn(references).complete(shown(row, "v100", "p100"))["k80"]
    assert found.value == pytest.approx(row["k80"], abs=3 * found.error)
    assert found.error < 0.2  # the trait shows between the two that are known


def test_one_known_type_leaves_the_spread_of_the_references_as_error() -> None:
    references = a_matrix(200)
    found = learn(references).complete({"v100": 1.0})["k80"]
    ratios = [row["k80"] - row["v100"] for row in references]
    assert found.value - 1.0 == pytest.approx(np.mean(ratios), abs=0.1)
    assert found.error == pytest.approx(np.std(ratios), rel=0.25)


def test_the_more_is_known_the_smaller_the_error() -> None:
    *references, row = a_matrix(60)
    completion = learn(references)
    errors = [completion.complete(shown(row, *TYPES[:known]))["k80"].error for known in range(4)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1.0  # nothing is known of how slow the job is


def test_a_real_report_outweighs_what_was_completed() -> None:
    *references, row = a_matrix(60)
    completion = learn(references)
    strange = row["v100"] + 4.0  # no reference is like that
    found = completion.complete({"v100": row["v100"], "k80": strange})["k80"]
    expected = completion.complete(shown(row, "v100"))["k80"]
    assert abs(found.value - strange) < 0.1 * abs(expected.value - strange)
    assert found.error < 0.5 * expected.error


def test_intervals_hold_as_often_as_they_promise() -> None:
    rows = a_matrix(400, noise=0.1)
    completion = learn(rows[:200])
    inside = {0.6745: 0, 1.6449: 0}
    for row in rows[200:]:
        found = completion.complete(shown(row, "p100"))["k80"]
        for width in inside:
            inside[width] += abs(row["k80"] - found.value) < width * found.error
    assert 80 <= inside[0.6745] <= 120
    assert 165 <= inside[1.6449] <= 195


def test_traits_that_explain_nothing_vanish() -> None:
    rng = np.random.default_rng(1)
    rows = [dict(enumerate(rng.normal(0.0, 1.0) + rng.normal(0.0, 0.1, 8))) for _ in range(40)]
    few, many = learn(rows, traits=0), learn(rows, traits=4)
    seen = {column: rows[0][column] for column in (0, 1)}
    assert many.complete(seen)[5].error == pytest.approx(few.complete(seen)[5].error, rel=0.25)


def test_columns_can_be_types_with_partners() -> None:
    rows = [{("v100", k): 0.1 * r + 0.2 * k for k in range(5) if (r + k) % 3} for r in range(9)]
    found = learn(rows).complete({("v100", 0): 0.5})
    assert found["v100", 4].value == pytest.approx(1.3, abs=0.15)


def test_columns_that_no_reference_knows_are_ignored() -> None:
    *references, row = a_matrix(20)
    completion = learn(references)
    plain = completion.complete(shown(row, "v100"))
    assert completion.complete({**shown(row, "v100"), "h100": 3.0}) == plain


def test_the_order_of_rows_is_of_no_matter() -> None:
    rows = a_matrix(30)
    one, other = learn(rows), learn(rows[::-1])
    asked = shown(rows[0], "p100")
    assert one.complete(asked)["k80"].value == pytest.approx(
        other.complete(asked)["k80"].value, rel=1e-6
    )


def test_without_entries_nothing_can_be_learnt() -> None:
    with pytest.raises(ValueError, match="teaches nothing"):
        learn([])


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.floats(-20, 20), min_size=1),
        min_size=1,
        max_size=12,
    )
)
def test_any_matrix_is_completed_with_finite_numbers(rows: list[dict[str, float]]) -> None:
    completion: Completion[str] = learn(rows)
    for row in rows:
        for found in completion.complete(row).values():
            assert np.isfinite(found.value)
            assert 0 < found.error < 1e3


def report(family: int, kind: str, seconds: float, *, gpus: int = 1) -> Observation:
    return Observation(
        job=JobId(family),
        family=f"ada/job{family}",
        gpu_type=kind,
        nodes=1,
        gpus=gpus,
        batch=64.0,
        step_seconds=seconds,
    )


def experienced(families: int, *, kinds: tuple[str, ...] = TYPES, first: int = 100) -> Experience:
    """Many families that ran on all types; those fast on p100 are slow on k80."""
    experience = Experience()
    for family, row in enumerate(a_matrix(families), start=first):
        for kind in kinds:
            experience.observe(report(family, kind, exp(row[kind])))
    return experience


MIXED = (
    Node(name="n1", gpu_type="v100", gpus=4),
    Node(name="n2", gpu_type="p100", gpus=4),
    Node(name="n3", gpu_type="k80", gpus=4),
)


def outlook(experience: Experience):  # type: ignore[no-untyped-def]
    job = a_job(1, placement=on(n1=1), batch=64, nodes=MIXED)
    return assess(now=0.0, nodes=MIXED, jobs=[job], experience=experience).outlooks[JobId(1)]


def seconds(experience: Experience, kind: str) -> float:
    one = np.array([1])
    return float(outlook(experience).speed.step_seconds(kind, one, one, np.array([64.0]))[0])


def test_few_references_leave_one_factor_for_all_jobs() -> None:
    experience = experienced(2)
    experience.observe(report(1, "v100", 1.0))
    assert experience.completion() is None
    assert seconds(experience, "k80") == pytest.approx(experience.type_factors()["k80"])


def test_a_job_that_gains_much_from_one_type_is_expected_to_from_the_next() -> None:
    def on_k80(on_p100: float) -> float:
        experience = experienced(30)
        experience.observe(report(1, "v100", 1.0))
        experience.observe(report(1, "p100", on_p100))
        return seconds(experience, "k80")

    assert on_k80(1.2) < 0.6 * on_k80(2.0)


def test_the_error_is_larger_where_the_job_has_not_run() -> None:
    experience = experienced(30)
    experience.observe(report(1, "v100", 1.0))
    found = outlook(experience)
    assert found.error_on("v100") == found.speed_error < 0.1
    assert found.error_on("p100") > 0.15
    assert found.error_on("k80") > 1.5 * found.error_on("p100")
    experience.observe(report(1, "k80", 7.0))
    assert outlook(experience).error_on("k80") < 0.1
    assert seconds(experience, "k80") == pytest.approx(7.0, rel=0.05)


def test_on_one_type_of_gpu_there_is_one_error() -> None:
    experience = Experience()
    experience.observe(report(1, "v100", 1.0))
    job = a_job(1, placement=on(n1=2), batch=64)
    found = assess(now=0.0, nodes=a_cluster(), jobs=[job], experience=experience).outlooks[JobId(1)]
    assert found.type_errors == {}
    assert found.error_on("v100") == found.speed_error


def test_a_job_of_which_nothing_was_seen_is_no_better_known_on_any_type() -> None:
    found = outlook(experienced(30))
    assert found.error_on("k80") == found.speed_error == 2 * DOUBT


def test_misses_widen_the_errors_of_what_comes_after() -> None:
    calm, surprised = experienced(30), experienced(30)
    for family, row in enumerate(a_matrix(20, seed=5), start=500):
        for experience, off in ((calm, 0.0), (surprised, (-1) ** family * 2.0)):
            experience.observe(report(family, "v100", exp(row["v100"])))
            experience.observe(report(family, "k80", exp(row["k80"] + off)))
    for experience in (calm, surprised):
        experience.observe(report(1, "v100", 1.0))
    before = outlook(calm).error_on("p100")
    assert outlook(surprised).error_on("p100") > 1.3 * before


def test_no_family_speaks_for_all() -> None:
    experience = experienced(10)
    for gpus in range(2, 60):
        for kind, times in zip(TYPES, (1.0, 50.0, 90.0), strict=True):
            experience.observe(report(1000, kind, times, gpus=gpus))
    experience.observe(report(1, "v100", 1.0))
    assert seconds(experience, "p100") < 10.0
    assert log(seconds(experience, "p100")) < outlook(experience).error_on("p100") + 1.0
