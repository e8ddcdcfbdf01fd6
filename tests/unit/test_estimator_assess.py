from __future__ import annotations

import pytest
from policy_builders import a_cluster, a_job, on

from ones.estimator.assess import Priors, assess, family_of
from ones.estimator.progress import Finished, Progress, predict
from ones.estimator.restart import RestartCost, restart_cost
from ones.estimator.speed import Observation
from ones.policies.forecast import seconds_left_on
from ones.policies.model import JobId, Outlook, Problem

ONE = JobId(1)
FAMILY = family_of("ada", "job1")


def seen(seconds: float = 0.5, *, gpus: int = 2, batch: float = 64.0) -> Observation:
    return Observation(
        job=ONE, family=FAMILY, gpu_type="v100", nodes=1, gpus=gpus, batch=batch,
        step_seconds=seconds,
    )  # fmt: skip


def ask(**more: object) -> Problem:
    job = a_job(1, placement=on(n1=2), batch=64)
    return assess(now=5000.0, nodes=a_cluster(), jobs=[job], **more)  # type: ignore[arg-type]


def outlook(**more: object) -> Outlook:
    return ask(**more).outlooks[ONE]


def left(problem: Problem) -> float:
    return seconds_left_on(problem, problem.jobs[0], on(n1=2))


def test_a_declared_length_is_believed() -> None:
    told = Progress(job=ONE, samples=1600.0, total_samples=6400.0, epoch_samples=640.0)
    problem = ask(progress={ONE: told}, observations=[seen()])
    found = problem.outlooks[ONE]
    assert (found.processed, found.remaining, found.epochs) == (1600.0, 4800.0, 2.5)
    assert found.alpha / (found.alpha + found.beta) == pytest.approx(0.25, abs=0.01)
    assert left(problem) == pytest.approx(4800 / 64 * 0.5, rel=0.05)


def test_undeclared_jobs_are_as_long_as_their_family() -> None:
    told = Progress(job=ONE, samples=1000.0)
    finished = [Finished(family=FAMILY, total_samples=n) for n in (5000.0, 4000.0, 9000.0)]
    assert outlook(progress={ONE: told}, finished=finished).remaining == 4000.0


def test_a_job_longer_than_its_family_is_near_its_end() -> None:
    told = Progress(job=ONE, samples=1000.0)
    finished = [Finished(family=FAMILY, total_samples=500.0)]
    assert outlook(progress={ONE: told}, finished=finished).remaining == pytest.approx(100.0)


def test_an_unknown_job_is_half_way() -> None:
    assert outlook(progress={ONE: Progress(job=ONE, samples=700.0)}).remaining == 700.0


def test_a_job_that_is_still_there_has_something_left() -> None:
    done = Progress(job=ONE, samples=1200.0, total_samples=1000.0)
    assert outlook(progress={ONE: done}).remaining > 0


def test_surer_knowledge_makes_a_narrower_beta() -> None:
    half = Progress(job=ONE, samples=500.0)
    declared = Progress(job=ONE, samples=500.0, total_samples=1000.0)
    widths = [
        predict(told, family) for told, family in ((half, []), (half, [900.0]), (declared, []))
    ]
    strengths = [found.alpha + found.beta for found in widths if found]
    assert strengths == sorted(strengths)
    assert predict(None, []) is None


def test_a_silent_job_lasts_the_prior_time_at_its_requested_size() -> None:
    assert left(ask(priors=Priors(job_seconds=200.0))) == pytest.approx(200.0)
    learnt = ask(observations=[seen()], priors=Priors(job_seconds=200.0))
    assert left(learnt) == pytest.approx(200.0, rel=0.01)


def test_an_unknown_job_is_as_long_as_the_others_once_there_are_enough() -> None:
    others = [a_job(i, name="job1", placement=on(n1=1), requested=2) for i in (1, 2, 3)]
    problem = assess(
        now=0.0,
        nodes=a_cluster(),
        jobs=[*others, a_job(9, name="new")],
        observations=[seen()],
        progress={
            job.id: Progress(job=job.id, samples=64.0, total_samples=6400.0 * i)
            for i, job in enumerate(others, start=1)
        },
        priors=Priors(job_seconds=9999.0),
    )
    assert seconds_left_on(problem, problem.jobs[3], on(n1=2)) == pytest.approx(100.0, rel=0.05)


def test_a_job_that_told_its_length_but_no_step_time_lasts_the_prior_time() -> None:
    told = Progress(job=ONE, samples=0.0, total_samples=6400.0)
    problem = ask(progress={ONE: told}, priors=Priors(job_seconds=200.0))
    assert left(problem) == pytest.approx(200.0)


def test_a_waiting_job_is_foretold_by_its_family() -> None:
    job = a_job(2, name="job1")
    problem = assess(
        now=0.0,
        nodes=a_cluster(),
        jobs=[job],
        observations=[seen()],
        finished=[Finished(family=FAMILY, total_samples=6400.0)],
    )
    assert seconds_left_on(problem, job, on(n1=2)) == pytest.approx(50.0, rel=0.05)


def test_restarts_cost_what_they_cost_this_job_else_its_family_else_all() -> None:
    def cost(*rows: tuple[int, str, float]) -> float:
        measured = [RestartCost(job=JobId(j), family=f, seconds=s) for j, f, s in rows]
        return restart_cost(ONE, "mine", measured, prior=30.0)

    assert cost() == 30.0
    assert cost((7, "other", 5.0)) == 5.0
    assert cost((7, "other", 5.0), (8, "mine", 9.0)) == 9.0
    assert cost((1, "mine", 12.0), (8, "mine", 9.0), (1, "mine", 14.0)) == 13.0


def test_the_arrival_rate_counts_the_recent_window_only() -> None:
    assert ask(arrivals=[10.0, 4000.0, 4900.0, 6000.0]).arrival_rate == pytest.approx(2 / 1200)


def test_senseless_priors_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Priors(job_seconds=0.0)
