from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.estimator.experience import Experience
from ones.estimator.noise import GradientReport, Noise, segments
from ones.policies.model import JobId, Segment

B0 = 32.0


def report(epochs: float, noise: float, *, batch: float = 64.0) -> GradientReport:
    return GradientReport(
        job=JobId(1), family="f", epochs=epochs, batch=batch, sqr=1.0, var=noise / B0
    )


def told(*reports: GradientReport) -> Noise:
    noise = Noise()
    for one in reports:
        noise.add(one)
    return noise


def cut(
    family: Noise, *, own: Noise | None = None, epochs: float = 0.0, to_go: float = 10.0,
    epoch_samples: float | None = 100.0,
) -> tuple[Segment, ...]:  # fmt: skip
    return segments(
        remaining=100.0 * to_go, epochs=epochs, epoch_samples=epoch_samples,
        own=own or Noise(), family=family, batch=64.0, reference=B0,
    )  # fmt: skip


def test_where_nobody_measured_the_noise_nothing_is_said_of_it() -> None:
    assert cut(Noise()) == ()


def test_without_epochs_the_last_word_holds_to_the_end() -> None:
    known = told(report(0, 50.0), report(3, 80.0))
    (one,) = cut(known, own=known, epoch_samples=None)
    assert one.samples == 1000.0
    assert one.noise == pytest.approx(80.0)


def test_epochs_where_the_family_has_been_are_as_they_were() -> None:
    family = told(*(report(epoch, 10.0 * (epoch + 1)) for epoch in range(10)))
    noise = [one.noise or 0.0 for one in cut(family, epochs=1.0, to_go=9.0)]
    assert noise[0] == pytest.approx(20.0)
    assert noise == sorted(noise)
    assert 90.0 < noise[-1] < 100.0


def test_where_nobody_has_been_noise_goes_on_to_grow_as_the_epochs_do() -> None:
    """An epoch's noise is that of its middle: 10 after 2.5 epochs is 4 for each epoch."""
    known = told(*(report(epoch, 4.0 * (epoch + 0.5)) for epoch in range(3)))
    parts = cut(known, own=known, epochs=2.0, to_go=5.0)
    assert parts[0].noise == pytest.approx(10.0)  # the rest of the present epoch
    assert [one.noise for one in parts[1:]] == pytest.approx([14.0, 18.0, 22.0, 26.0], rel=0.01)


def test_a_job_of_one_report_expects_larger_batches_to_be_worth_more_later() -> None:
    known = told(report(0, 50.0))
    noise = [one.noise or 0.0 for one in cut(known, own=known, to_go=100.0)]
    assert noise[0] == pytest.approx(50.0)
    assert all(later > earlier for earlier, later in pairwise(noise))
    assert noise[-1] == pytest.approx(100.0 * 90.0, rel=0.01)


@pytest.mark.parametrize("var", [0.0, 1e-30, 1e30])
def test_noise_of_nothing_and_beyond_all_bounds_goes_on_as_it_is(var: float) -> None:
    odd = GradientReport(job=JobId(1), family="f", epochs=0, batch=64.0, sqr=1.0, var=var)
    for one in cut(told(odd), own=told(odd), to_go=1000.0):
        assert one.noise is None or 0.0 <= one.noise < float("inf")


def test_a_segment_costs_what_its_epochs_cost_together() -> None:
    family = told(*(report(epoch, 10.0 * 3.0**epoch) for epoch in range(8)))
    parts = cut(family, epochs=0.0, to_go=8.0)

    def cost(noise: float, batch: float = 256.0) -> float:
        return (noise + batch) / (noise + B0)

    together = sum(one.samples * cost(one.noise or 0.0) for one in parts)
    assert together == pytest.approx(sum(100.0 * cost(10.0 * 3.0**epoch) for epoch in range(8)))


def test_the_noise_at_the_nearest_batch_counts() -> None:
    family = told(report(0, 10.0, batch=32.0), report(0, 90.0, batch=512.0))
    assert cut(family)[0].noise == pytest.approx(10.0)


def test_a_gradient_that_is_all_noise_lets_every_sample_count() -> None:
    pure = GradientReport(job=JobId(1), family="f", epochs=0, batch=64.0, sqr=0.0, var=1.0)
    assert cut(told(pure), own=told(pure))[0].noise is None


ODD = (0.0, 1e-320, 1e30)


@pytest.mark.parametrize(("sqr", "var"), [pair for pair in product(ODD, ODD) if any(pair)])
def test_one_odd_report_does_not_keep_out_the_next_of_the_same_batch(
    sqr: float, var: float
) -> None:
    odd = GradientReport(job=JobId(1), family="f", epochs=0, batch=64.0, sqr=sqr, var=var)
    known = told(odd, report(0, 5.0), odd, report(0, 7.0))
    assert cut(known)[0].noise == pytest.approx(7.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
def test_reports_that_can_not_be_true_are_left_out(value: float) -> None:
    experience = Experience()
    for field in ("epochs", "batch", "sqr", "var"):
        values = {"epochs": 1.0, "batch": 64.0, "sqr": 1.0, "var": 1.0} | {field: value}
        experience.gradient(GradientReport(job=JobId(1), family="f", **values))
    assert experience.of_family("f").noise.last is None


def test_an_absurd_epoch_costs_no_memory() -> None:
    noise = told(report(1e12, 5.0))
    assert noise.paths(B0) is None
    assert cut(noise, own=noise)[0].noise == pytest.approx(5.0)


reports = st.builds(
    report,
    st.floats(0.0, 50.0),
    st.floats(0.0, 1e9),
    batch=st.floats(1.0, 1e6),
)


@given(st.lists(reports, min_size=1, max_size=30), st.floats(0.0, 60.0), st.floats(1e-3, 300.0))
def test_whatever_is_reported_the_segments_hold_all_the_work(
    seen: list[GradientReport], epochs: float, to_go: float
) -> None:
    known = told(*seen)
    parts = cut(known, own=known, epochs=epochs, to_go=to_go)
    assert 1 <= len(parts) <= 6
    assert sum(one.samples for one in parts) == pytest.approx(100.0 * to_go)
    for one in parts:
        assert one.noise is None or (np.isfinite(one.noise) and one.noise >= 0)
        assert np.all(one.noise_of(np.array([1.0, 64.0, 1e6])) >= 0)
