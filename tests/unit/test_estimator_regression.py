from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.optimize import check_grad  # type: ignore[import-untyped]
from scipy.stats import beta as beta_distribution  # type: ignore[import-untyped]

from ones.estimator.experience import Experience
from ones.estimator.progress import Finished, Prediction, Progress, believable, unknown
from ones.estimator.regression import FEATURES, likelihood
from ones.policies.model import JobId


class Trainings:
    """Jobs that end when their loss has fallen far enough; larger data sets take fewer epochs."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.number = 0

    def job(self, *, spread: float = 0.25) -> tuple[float, Iterator[Progress]]:
        """Its length in samples, and what it reports on its way."""
        self.number += 1
        size = float(np.exp(self.rng.uniform(8.0, 12.0)))
        epochs = float(np.exp(5.5 - 0.3 * np.log(size) / np.log(10) + spread * self.rng.normal()))
        length, first = epochs * size, float(self.rng.uniform(1.0, 9.0))
        return length, self._reports(JobId(self.number), size, length, first)

    def _reports(self, job: JobId, size: float, length: float, first: float) -> Iterator[Progress]:
        fall, best = self.rng.uniform(0.5, 0.9), self.rng.uniform(0.6, 0.95)
        bend = self.rng.uniform(0.3, 0.9)
        for share in np.linspace(0.01, 0.99, 60):
            now = first * (1.0 - fall * share**bend) * float(np.exp(0.02 * self.rng.normal()))
            yield Progress(
                job=job, samples=share * length, epoch_samples=size, loss=now, initial_loss=first,
                accuracy=best * share ** (0.5 * bend),
            )  # fmt: skip


def teach(experience: Experience, trainings: Trainings, jobs: int, *, families: int) -> None:
    for number in range(jobs):
        length, reports = trainings.job()
        job = None
        for told in reports:
            experience.progress(believable(told))
            job = told.job
        family = f"ada/net{number % families}"
        experience.finish(Finished(family=family, total_samples=length, job=job))


def covered(found: Prediction, rho: float, share: float) -> bool:
    low, high = beta_distribution.ppf([(1 - share) / 2, (1 + share) / 2], found.alpha, found.beta)
    return bool(low <= rho <= high)


def test_without_finished_jobs_a_job_is_half_way_and_may_be_anywhere() -> None:
    found = Experience().predict(Progress(job=JobId(1), samples=900.0, epoch_samples=100.0), "new")
    assert found is not None
    assert (found.total, found.alpha, found.beta) == (1800.0, 1.0, 1.0)


def test_jobs_of_new_families_are_foretold_better_than_by_guessing() -> None:
    trainings, experience = Trainings(1), Experience()
    teach(experience, trainings, 60, families=60)
    learnt, guessed = [], []
    for _ in range(40):
        length, reports = trainings.job()
        for told in reports:
            for foretold, errors in (
                (experience.predict(told, "new"), learnt),
                (unknown(told), guessed),
            ):
                assert foretold is not None
                errors.append(abs(np.log(foretold.total / length)))
    assert np.median(learnt) < 0.5 * np.median(guessed)


def test_intervals_hold_as_often_as_they_say_on_jobs_not_learnt_from() -> None:
    trainings, experience = Trainings(2), Experience()
    teach(experience, trainings, 80, families=80)
    inside: dict[float, list[bool]] = {0.5: [], 0.9: []}
    for _ in range(60):
        length, reports = trainings.job()
        for told in reports:
            found = experience.predict(told, "new")
            assert found is not None
            for share, hits in inside.items():
                hits.append(covered(found, told.samples / length, share))
    assert np.mean(inside[0.5]) == pytest.approx(0.5, abs=0.12)
    assert np.mean(inside[0.9]) == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_a_familys_intervals_are_as_wide_as_its_jobs_differ(spread: float) -> None:
    rng, experience = np.random.default_rng(3), Experience()
    inside: dict[float, list[bool]] = {0.5: [], 0.9: []}
    for number in range(300):
        length = 1e6 * float(np.exp(spread * rng.normal()))
        if number > 100:
            done = float(rng.uniform(0.05, 0.8)) * length
            found = experience.predict(Progress(job=JobId(1), samples=done), "f")
            assert found is not None
            for share, hits in inside.items():
                hits.append(covered(found, done / length, share))
        experience.finish(Finished(family="f", total_samples=length))
    assert np.mean(inside[0.5]) == pytest.approx(0.5, abs=0.12)
    assert np.mean(inside[0.9]) == pytest.approx(0.9, abs=0.08)


def test_where_it_foretells_newcomers_worse_than_guessing_it_is_silent() -> None:
    experience = Experience()

    def finish(number: int, epochs: float) -> float | None:
        length = 1e4 * epochs
        for share in (0.1, 0.3, 0.9):
            told = Progress(job=JobId(number), samples=share * length, epoch_samples=1e4)
            experience.progress(told)
        experience.finish(Finished(family=f"f{number}", total_samples=length, job=JobId(number)))
        return experience.regression.certainty()

    spoke = [finish(number, 10.0) for number in range(20)]
    assert spoke[0] is None
    assert spoke[-1] is not None
    assert [finish(number, 3000.0) for number in range(20, 24)][-1] is None
    told = Progress(job=JobId(99), samples=50.0, epoch_samples=10.0)
    assert experience.predict(told, "new") == unknown(told)


def test_a_family_that_has_finished_jobs_is_believed_before_the_regression() -> None:
    trainings, experience = Trainings(5), Experience()
    teach(experience, trainings, 30, families=30)
    for _ in range(5):
        experience.finish(Finished(family="mine", total_samples=4e6))
    told = Progress(job=JobId(999), samples=1e6, epoch_samples=1e5)
    found = experience.predict(told, "mine")
    assert found is not None
    assert found.total == pytest.approx(4e6, rel=0.05)
    assert not found.guessed


def test_the_slope_of_the_likelihood_is_its_derivative() -> None:
    rng = np.random.default_rng(6)
    x = np.column_stack([np.ones(40), rng.normal(size=(40, FEATURES - 1))])
    epochs, rho = np.exp(rng.normal(size=40)), rng.uniform(0.01, 0.99, 40)
    weight = rng.uniform(0.1, 1.0, 40)
    for _ in range(5):
        at = 0.5 * rng.normal(size=2 * FEATURES)
        away = check_grad(
            lambda w: likelihood(w, x, epochs, rho, weight)[0],
            lambda w: likelihood(w, x, epochs, rho, weight)[1],
            at,
        )
        assert away < 1e-4 * max(
            1.0, float(np.linalg.norm(likelihood(at, x, epochs, rho, weight)[1]))
        )


def test_garbage_in_reports_leaves_predictions_finite() -> None:
    rng, experience = np.random.default_rng(7), Experience()
    odd = [float("nan"), float("inf"), -1.0, 0.0, 1e300, 1e-300, None, 5.0]

    def garbage(job: int) -> Progress:
        pick = [odd[k] for k in rng.integers(0, len(odd), 5)]
        return Progress(
            job=JobId(job), samples=float(rng.uniform(0, 1e6)), total_samples=pick[0],
            epoch_samples=pick[1] if rng.random() < 0.5 else 1e4, loss=pick[2],
            initial_loss=pick[3], accuracy=pick[4],
        )  # fmt: skip

    for job in range(1, 80):
        for _ in range(20):
            experience.progress(believable(garbage(job)))
        length = odd[job % len(odd)] if job % 3 else float(rng.uniform(1e3, 1e7))
        if length is not None:
            experience.finish(Finished(family=f"f{job}", total_samples=length, job=JobId(job)))
    for job in range(100, 150):
        found = experience.predict(believable(garbage(job)), f"f{job}")
        if found is not None:
            values = (found.total, found.remaining, found.alpha, found.beta)
            assert all(np.isfinite(value) and value > 0 for value in values)
