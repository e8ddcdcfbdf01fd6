from __future__ import annotations

import gc
import pickle
from copy import deepcopy
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.estimator.experience import Experience
from ones.estimator.progress import Finished, Progress
from ones.estimator.records import Records
from ones.estimator.speed import DOUBT, AssumedSpeed, LearntSpeed, Observation
from ones.policies.model import Batch, JobId

FAMILY = "ada/net"


def seen(gpus: int, seconds: float, *, nodes: int = 1, kind: str = "v100", batch: float = 64.0,
         family: str = FAMILY) -> Observation:  # fmt: skip
    return Observation(
        job=JobId(1),
        family=family,
        gpu_type=kind,
        nodes=nodes,
        gpus=gpus,
        batch=batch,
        step_seconds=seconds,
    )


def truth(nodes: int, gpus: int, batch: float = 64.0) -> float:
    sync = (0.05 if gpus > 1 else 0.0) + (0.1 if nodes > 1 else 0.0)
    return 0.02 + 0.01 * batch / gpus + sync


def at(speed: LearntSpeed | AssumedSpeed, gpus: int, *, nodes: int = 1, kind: str = "v100",
       batch: float = 64.0) -> float:  # fmt: skip
    found = speed.step_seconds(kind, np.array([nodes]), np.array([gpus]), np.array([batch]))
    return float(found[0])


def taught(*observations: Observation) -> Records:
    records = Records()
    for one in observations:
        records.observe(one)
    return records


def learnt(
    *observations: Observation, requested: int = 4, batches: Batch | None = None, **factors: float
) -> LearntSpeed:
    speed = taught(*observations).speed(requested=requested, batches=batches, factors=factors)
    assert speed is not None
    return speed


def test_nothing_is_learnt_from_nothing() -> None:
    assert Records().speed(requested=4, batches=None, factors={}) is None


def test_a_speed_is_kept_for_as_long_as_a_job_has_it_and_its_answers_no_longer() -> None:
    records = taught(seen(1, truth(1, 1)))
    speed = records.speed(requested=4, batches=None, factors=(factors := {}))
    assert records.speed(requested=4, batches=None, factors=factors) is speed
    copies = deepcopy(records), pickle.loads(pickle.dumps(records))
    assert speed is not None
    kept = ref(speed)
    del speed
    gc.collect()
    assert kept() is None
    for each in copies:
        again = each.speed(requested=4, batches=None, factors={})
        assert again is not None
        assert at(again, 1) == pytest.approx(truth(1, 1), rel=0.05)


def test_a_measured_configuration_is_reproduced() -> None:
    speed = learnt(seen(1, truth(1, 1)), seen(4, truth(1, 4)), seen(8, truth(2, 8), nodes=2))
    for nodes, gpus in ((1, 1), (1, 4), (2, 8)):
        assert at(speed, gpus, nodes=nodes) == pytest.approx(truth(nodes, gpus), rel=0.05)


def test_sizes_between_measured_ones_are_foretold() -> None:
    points = [(1, 1), (1, 4), (2, 6), (2, 8)]
    speed = learnt(*(seen(g, truth(n, g), nodes=n) for n, g in points))
    assert at(speed, 2) == pytest.approx(truth(1, 2), rel=0.15)
    assert at(speed, 4, nodes=2) == pytest.approx(truth(2, 4), rel=0.15)


def test_after_one_size_more_gpus_are_expected_to_help_but_not_without_end() -> None:
    speed = learnt(seen(2, 1.0), requested=2)
    assert at(speed, 4) < 0.75
    assert at(speed, 8) == pytest.approx(at(speed, 4))


def test_one_slow_step_changes_nothing() -> None:
    calm = learnt(*[seen(2, 1.0)] * 5)
    shaken = learnt(*[seen(2, 1.0)] * 4, seen(2, 60.0))
    assert at(shaken, 4) == at(calm, 4)


def test_a_bigger_batch_takes_longer_a_step_and_less_a_sample() -> None:
    speed = learnt(seen(1, truth(1, 1)), seen(1, truth(1, 1, 128.0), batch=128.0))
    assert truth(1, 1) < at(speed, 1, batch=100.0) < truth(1, 1, 128.0)
    assert at(speed, 1, batch=128.0) / 128 < at(speed, 1) / 64


def test_a_type_never_run_on_is_as_much_slower_as_for_others() -> None:
    speed = learnt(seen(4, 1.0), v100=1.0, k80=2.5)
    assert at(speed, 4, kind="k80") == pytest.approx(2.5 * at(speed, 4))
    assert at(speed, 4, kind="h100") == pytest.approx(at(speed, 4))


def test_type_factors_compare_like_with_like() -> None:
    experience = Experience()
    for one in (
        seen(4, 1.0),
        seen(4, 2.0, kind="k80"),
        seen(1, 9.0, kind="k80"),
        seen(4, 3.0, family="bob/net"),
        seen(4, 6.0, family="bob/net", kind="k80"),
        seen(2, 5.0, family="bob/net"),
    ):
        experience.observe(one)
    factors = experience.type_factors()
    assert factors["k80"] / factors["v100"] == pytest.approx(2.0, rel=0.03)


def test_without_measurements_time_falls_up_to_the_requested_size_and_a_little_to_twice_that() -> (
    None
):
    speed = AssumedSpeed(1.0, 4)
    assert at(speed, 1, batch=1.0) == pytest.approx(4**0.8)
    assert at(speed, 4, batch=1.0) == 1.0
    assert 0.9 < at(speed, 8, batch=1.0) < 0.95
    assert at(speed, 16, batch=1.0) == at(speed, 8, batch=1.0)
    assert at(speed, 8, nodes=2, batch=1.0) == 1.0


def test_of_batches_that_are_as_fast_the_smallest_is_best_where_nothing_was_measured() -> None:
    batches = np.geomspace(32.0, 4096.0, 50)
    each = AssumedSpeed(1.0, 4).step_seconds("", np.array(1), np.array(4), batches) / batches
    assert int(each.argmin()) == 0


def test_a_fit_is_kept_while_reports_jitter_or_say_what_was_expected() -> None:
    records = taught(seen(1, 1.9), seen(2, 1.0), seen(4, 0.6))
    terms = records.terms()
    records.observe(seen(2, 1.004))
    assert records.terms() is terms
    local = 64.0
    expected = terms["v100"].seconds(
        np.array(1.0), np.array(4.0), np.array(local / 4 * 1.1), np.array(1.0)
    )
    records.observe(seen(4, float(expected), batch=local * 1.1))
    assert records.terms() is terms


@pytest.mark.parametrize(
    "news", [seen(8, 0.4, nodes=2), seen(4, 0.9, batch=65.0)], ids=["a new size", "a large error"]
)
def test_a_fit_is_renewed_when_it_is_taught_something(news: Observation) -> None:
    records = taught(seen(2, 1.0), seen(4, 0.6))
    terms = records.terms()
    records.observe(news)
    assert records.terms() is not terms


BATCHES = Batch(submitted=64, most_per_gpu=32, most=1024, accumulates=True)


def test_a_batch_that_memory_does_not_hold_is_done_in_several_passes() -> None:
    gradient, sync = 0.02 + 0.01 * 32, 0.3
    reports = [
        seen(1, 0.02 + 0.01 * 16, batch=16.0),
        seen(1, gradient, batch=32.0),
        seen(4, gradient + sync, batch=128.0),
    ]
    speed = learnt(*reports, batches=BATCHES)
    once, thrice = at(speed, 4, batch=128.0), at(speed, 4, batch=384.0)
    assert once == pytest.approx(gradient + sync, rel=0.03)
    assert thrice == pytest.approx(3 * gradient + sync, rel=0.05)


def test_steps_of_several_passes_teach_what_one_pass_takes() -> None:
    gradient, sync = 0.02 + 0.01 * 32, 0.3
    report = Observation(
        job=JobId(1), family=FAMILY, gpu_type="v100", nodes=1, gpus=4, batch=384.0, passes=3,
        step_seconds=3 * gradient + sync, sync_seconds=sync,
    )  # fmt: skip
    speed = learnt(report, batches=BATCHES)
    assert at(speed, 4, batch=384.0) == pytest.approx(3 * gradient + sync, rel=0.02)
    assert at(speed, 4, batch=128.0) == pytest.approx(gradient + sync, rel=0.05)


def test_the_error_is_small_where_it_was_measured_and_grows_with_surprises() -> None:
    speed = learnt(seen(4, truth(1, 4)))
    here, far = speed.error("v100", 1, 4, 64.0), speed.error("v100", 2, 8, 64.0)
    assert here < 0.05 < far == pytest.approx(DOUBT, rel=0.01)
    assert speed.error("k80", 1, 4, 64.0) > far
    records = taught(seen(1, truth(1, 1)), seen(2, truth(1, 2)))
    records.terms()
    records.observe(seen(4, 3.0))
    assert records.doubt(DOUBT) > DOUBT


def test_what_nobody_has_told_for_long_is_forgotten() -> None:
    """As it is after a restart of onesd, whose database has forgotten it."""
    experience = Experience()
    for at, gpus in ((10.0, 1), (20.0, 2), (30.0, 4)):
        experience.observe(seen(gpus, 1.0 / gpus), at=at)
    experience.forget(before=15.0)
    family = experience.of_family(FAMILY)
    assert [point.gpus for point in family.points] == [2, 4]
    experience.observe(seen(2, 0.5), at=40.0)  # seen again
    experience.forget(before=35.0)
    assert [point.gpus for point in family.points] == [2]
    assert set(family.terms()) == {"v100"}
    assert len(experience.of_job(JobId(1))) == 3  # its own are those of a job that is there


def test_a_family_of_which_nobody_tells_any_more_is_forgotten_with_all_it_has_taught() -> None:
    experience = Experience()
    experience.observe(seen(1, 1.0), at=10.0)
    experience.finish(Finished(family=FAMILY, total_samples=1000.0))
    experience.observe(seen(1, 1.0, family="other"), at=90.0)
    experience.forget(before=50.0)
    assert len(experience.of_family(FAMILY)) == 0
    assert experience.of_family(FAMILY).lengths == ()
    assert len(experience.of_family("other")) == 1


def test_a_family_with_a_living_job_is_not_forgotten_however_little_it_tells() -> None:
    experience = Experience()
    experience.observe(seen(1, 1.0), at=10.0)
    experience.observe(seen(1, 1.0, family="other"), at=90.0)
    experience.progress(Progress(job=JobId(1), samples=70.0), FAMILY)
    experience.forget(before=50.0)
    assert experience.of_family(FAMILY).furthest == 70.0


def test_many_configurations_are_kept_within_bounds() -> None:
    records = taught(*(seen(1, 1.0, batch=float(batch)) for batch in range(1, 1000)))
    assert len(records) <= 256


HOSTILE = [float("nan"), float("inf"), -1.0, 0.0, 1e300, 1e-300]


@pytest.mark.parametrize("value", HOSTILE)
def test_reports_that_can_not_be_true_teach_nothing(value: float) -> None:
    experience = Experience()
    experience.observe(seen(2, value))
    experience.observe(seen(2, 1.0, batch=value))
    experience.observe(seen(0, 1.0))
    experience.observe(seen(2, 1.0, nodes=3))
    assert len(experience.of_family("ada/net")) == 0


@pytest.mark.parametrize("sync", [*HOSTILE[:3], 1.0, 2.0])
def test_a_sync_time_that_can_not_be_true_is_not_used(sync: float) -> None:
    report = Observation(
        job=JobId(1), family=FAMILY, gpu_type="v100", nodes=1, gpus=2, batch=64.0,
        step_seconds=1.0, sync_seconds=sync,
    )  # fmt: skip
    assert report.gradient_seconds is None


configurations = st.builds(
    seen,
    st.integers(4, 16),
    st.floats(1e-3, 100.0),
    nodes=st.integers(1, 4),
    kind=st.sampled_from(["v100", "k80"]),
    batch=st.sampled_from([1.0, 32.0, 4096.0]),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(configurations, min_size=1, max_size=12), st.sampled_from([None, BATCHES]))
def test_whatever_is_reported_times_are_positive_and_finite(
    reports: list[Observation], batches: Batch | None
) -> None:
    speed = learnt(*reports, batches=batches)
    sizes = np.array([1, 2, 7, 64])
    for kind in ("v100", "k80", "other"):
        seconds = speed.step_seconds(kind, np.minimum(sizes, 8), sizes, np.array(64.0))
        assert seconds.shape == (4,)
        assert np.all(np.isfinite(seconds))
        assert np.all(seconds > 0)
        assert np.isfinite(speed.error(kind, 1, 2, 64.0))
