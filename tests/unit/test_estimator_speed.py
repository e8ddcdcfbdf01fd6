from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.estimator.speed import AssumedSpeed, LearntSpeed, Observation, learn, type_factors
from ones.policies.model import JobId


def seen(gpus: int, seconds: float, *, nodes: int = 1, kind: str = "v100", batch: float = 64.0,
         family: str = "ada/net") -> Observation:  # fmt: skip
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


def learnt(*observations: Observation, requested: int = 4, **factors: float) -> LearntSpeed:
    speed = learn(observations, requested=requested, factors=factors)
    assert speed is not None
    return speed


def test_nothing_is_learnt_from_nothing() -> None:
    assert learn([], requested=4, factors={}) is None


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
    factors = type_factors(
        [
            seen(4, 1.0),
            seen(4, 2.0, kind="k80"),
            seen(1, 9.0, kind="k80"),
            seen(4, 3.0, family="bob/net"),
            seen(4, 6.0, family="bob/net", kind="k80"),
            seen(2, 5.0, family="bob/net"),
        ]
    )
    assert factors["k80"] / factors["v100"] == pytest.approx(2.0, rel=0.03)


def test_without_measurements_time_falls_up_to_the_requested_size() -> None:
    speed = AssumedSpeed(1.0, 4)
    assert at(speed, 4, batch=1.0) == 1.0
    assert at(speed, 8, batch=1.0) == 1.0
    assert at(speed, 1, batch=1.0) == pytest.approx(4**0.8)


def test_a_fit_is_reused_while_reports_jitter() -> None:
    one, other = learnt(seen(2, 1.0)), learnt(seen(2, 1.004))
    assert one.curve is other.curve


configurations = st.builds(
    seen,
    st.integers(1, 16),
    st.floats(1e-3, 100.0),
    nodes=st.integers(1, 4),
    kind=st.sampled_from(["v100", "k80"]),
    batch=st.sampled_from([1.0, 32.0, 4096.0]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(configurations, min_size=1, max_size=12))
def test_whatever_is_reported_times_are_positive_and_finite(reports: list[Observation]) -> None:
    speed = learn(reports, requested=4, factors=type_factors(reports))
    assert speed is not None
    sizes = np.array([1, 2, 7, 64])
    for kind in ("v100", "k80", "other"):
        seconds = speed.step_seconds(kind, np.minimum(sizes, 8), sizes, np.array(64.0))
        assert seconds.shape == (4,)
        assert np.all(np.isfinite(seconds))
        assert np.all(seconds > 0)
