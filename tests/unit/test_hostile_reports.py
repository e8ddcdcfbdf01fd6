"""Whatever one job reports of its progress and speed, the others are estimated and planned."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, a_job, on

from ones.estimator import assess as estimates
from ones.estimator.assess import assess, family_of
from ones.estimator.experience import Experience, GradientReport
from ones.estimator.progress import Finished, Progress
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.guard import History, Limits
from ones.policies.model import Batch, Job, JobId, Problem
from ones.policies.registry import make, names
from ones.policies.round import decide

NODES = a_cluster(2, 4, types=("v100", "k80"))
HOSTILE, HONEST = JobId(1), JobId(2)
FAMILY = family_of("ada", "job1")

# As far as the door lets them in.
counts = st.one_of(st.integers(0, 10**15), st.sampled_from([0, 1, 2, 64, 10**9, 10**15]))
seconds = st.one_of(
    st.floats(0, 86400, exclude_min=True), st.sampled_from([5e-324, 1e-300, 1e-9, 0.1, 86400.0])
)
measures = st.one_of(st.floats(0, 1e30), st.sampled_from([0.0, 5e-324, 1e-300, 1e30]))
any_number = st.none() | st.floats(allow_nan=True, allow_infinity=True)

observations = st.builds(
    Observation,
    job=st.just(HOSTILE),
    family=st.just(FAMILY),
    gpu_type=st.sampled_from(["v100", "k80", ""]),
    nodes=st.integers(1, 2),
    gpus=st.sampled_from([1, 2, 3, 8, 65536]),
    batch=counts,
    step_seconds=seconds,
    passes=st.sampled_from([1, 2, 10**6]),
    sync_seconds=st.none() | st.floats(0, 86400),
)
gradients = st.builds(
    GradientReport,
    job=st.just(HOSTILE),
    family=st.just(FAMILY),
    epochs=st.sampled_from([0, 1, 5, 4095, 10**9]),
    batch=counts,
    sqr=measures,
    var=measures,
)
ends = st.builds(Finished, family=st.just(FAMILY), total_samples=counts.map(float), job=st.none())
restarts = st.builds(
    RestartCost,
    job=st.just(HOSTILE),
    family=st.just(FAMILY),
    seconds=st.floats(0, 1e12),
    live=st.booleans(),
)
histories = st.lists(st.one_of(observations, gradients, ends, restarts), max_size=12)
told = st.builds(
    Progress,
    job=st.just(HOSTILE),
    samples=counts.map(float),
    total_samples=st.none() | counts.map(float),
    epoch_samples=st.none() | counts.map(float),
    loss=any_number,
    initial_loss=any_number,
    accuracy=any_number,
)
terms = st.none() | st.builds(
    Batch,
    submitted=st.sampled_from([1, 64, 10**15]),
    most=st.just(10**15),
    most_per_gpu=st.sampled_from([1, 64, 10**15]),
    tunes=st.booleans(),
)


def taught(history: list[Observation | GradientReport | Finished | RestartCost]) -> Experience:
    experience = Experience()
    for one in history:
        match one:
            case Observation():
                experience.observe(one)
            case GradientReport():
                experience.gradient(one)
            case Finished():
                experience.finish(one)
            case RestartCost():
                experience.restart(one)
    return experience


def two_jobs(batches: Batch | None, *, running: bool, batch: int | None = None) -> list[Job]:
    held = {"placement": on(n1=2), "started": 0.0} if running else {}
    hostile = a_job(1, nodes=NODES, batches=batches, batch=batch, **held)
    return [hostile, a_job(2, nodes=NODES)]


def ask(jobs: list[Job], experience: Experience, progress: Progress | None = None) -> Problem:
    honest = Progress(job=HONEST, samples=100.0, total_samples=1000.0)
    words = {HONEST: honest} | ({} if progress is None else {HOSTILE: progress})
    return assess(now=1000.0, nodes=NODES, jobs=jobs, experience=experience, progress=words)


def planned(name: str, problem: Problem) -> None:
    decided = decide(
        problem,
        make(name),
        None,
        np.random.default_rng(0),
        history=History(),
        limits=Limits(min_gain=None),
    )
    assert decided.fault == ""
    assert HONEST not in decided.left_out


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories,
    progress=told,
    batches=terms,
    running=st.booleans(),
    name=st.sampled_from([name for name in names() if ":" not in name]),
)
def test_whatever_one_job_reports_the_others_are_estimated_and_planned(
    history: list[Observation | GradientReport | Finished | RestartCost],
    progress: Progress,
    batches: Batch | None,
    running: bool,
    name: str,
) -> None:
    last = next((one.batch for one in history[::-1] if isinstance(one, Observation)), None)
    jobs = two_jobs(batches, running=running, batch=int(last) if last else None)
    problem = ask(jobs, taught(history), progress)
    assert {job.id for job in problem.jobs} == set(problem.outlooks) == {HOSTILE, HONEST}
    assert HONEST not in problem.unestimated
    for outlook in problem.outlooks.values():
        numbers = (outlook.remaining, outlook.alpha, outlook.beta, outlook.restart_cost)
        assert all(isfinite(number) and number >= 0 for number in numbers)
    planned(name, problem)


def failing(job: JobId) -> object:
    """An estimate that fails over one job."""
    honest = estimates._outlook

    def estimate(one: estimates._Known, *others: object) -> object:
        if one.job.id == job:
            raise OverflowError("math range error")
        return honest(one, *others)  # type: ignore[arg-type]

    return estimate


@pytest.mark.parametrize("running", [True, False])
def test_a_job_of_which_no_estimate_can_be_made_is_named_and_the_others_have_theirs(
    running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = two_jobs(None, running=running)
    plain = ask(jobs, Experience())
    monkeypatch.setattr(estimates, "_outlook", failing(HOSTILE))
    found = ask(jobs, Experience())
    assert found.unestimated == {
        HOSTILE: "no estimate can be made of it: OverflowError: math range error"
    }
    assert found.outlooks[HONEST] == plain.outlooks[HONEST]
    hostile, honest = found.jobs
    assert honest == jobs[1]
    # A running one stays as it is; one that waits is started as if nothing were known of it.
    assert (hostile.fixed == found.unestimated[HOSTILE]) is running
    for name in ("ones", "srtf", "pollux"):
        planned(name, found)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0])
def test_an_estimate_that_is_no_number_is_none(
    number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = estimates._outlook
    monkeypatch.setattr(
        estimates, "_outlook", lambda *given_: replace(honest(*given_), remaining=number)
    )
    found = ask(two_jobs(None, running=True), Experience())
    assert set(found.unestimated) == {HOSTILE, HONEST}
    assert all(isfinite(one.remaining) and one.remaining > 0 for one in found.outlooks.values())
