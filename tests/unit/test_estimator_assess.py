from __future__ import annotations

from dataclasses import replace

import pytest
from policy_builders import a_cluster, a_job, on

from ones.estimator.assess import Knowledge, Priors, assess, family_of
from ones.estimator.experience import Experience, GradientReport
from ones.estimator.progress import Finished, Progress
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.forecast import seconds_left_on
from ones.policies.model import Batch, JobId, Outlook, Problem

ONE = JobId(1)
FAMILY = family_of("ada", "job1")


def seen(seconds: float = 0.5, *, gpus: int = 2, batch: float = 64.0) -> Observation:
    return Observation(
        job=ONE, family=FAMILY, gpu_type="v100", nodes=1, gpus=gpus, batch=batch,
        step_seconds=seconds,
    )  # fmt: skip


def taught(*reports: Observation | GradientReport | Finished | RestartCost) -> Experience:
    experience = Experience()
    for report in reports:
        match report:
            case Observation():
                experience.observe(report)
            case GradientReport():
                experience.gradient(report)
            case Finished():
                experience.finish(report)
            case RestartCost():
                experience.restart(report)
    return experience


def length(samples: float, *, family: str = FAMILY, job: JobId | None = None) -> Finished:
    return Finished(family=family, total_samples=samples, job=job)


def ask(*reports: Observation | GradientReport | Finished | RestartCost, **more: object) -> Problem:
    job = a_job(1, placement=on(n1=2), batch=64)
    asked = {"jobs": [job], "experience": taught(*reports)} | more
    return assess(now=5000.0, nodes=a_cluster(), **asked)  # type: ignore[arg-type]


def outlook(
    *reports: Observation | GradientReport | Finished | RestartCost, **more: object
) -> Outlook:
    return ask(*reports, **more).outlooks[ONE]


def left(problem: Problem) -> float:
    return seconds_left_on(problem, problem.jobs[0], on(n1=2))


def test_a_declared_length_is_believed() -> None:
    told = Progress(job=ONE, samples=1600.0, total_samples=6400.0, epoch_samples=640.0)
    problem = ask(seen(), progress={ONE: told})
    found = problem.outlooks[ONE]
    assert (found.processed, found.remaining, found.epochs) == (1600.0, 4800.0, 2.5)
    assert found.alpha / (found.alpha + found.beta) == pytest.approx(0.25, abs=0.01)
    assert left(problem) == pytest.approx(4800 / 64 * 0.5, rel=0.05)


def test_undeclared_jobs_are_as_long_as_the_last_few_of_their_family() -> None:
    told = Progress(job=ONE, samples=100.0)
    lengths = [length(n) for n in (100.0, 100.0, 100.0, 5000.0, 4000.0, 9000.0, 200.0, 4100.0)]
    assert outlook(*lengths, progress={ONE: told}).remaining == pytest.approx(4000.0, rel=0.15)


def test_families_that_are_heard_of_outlive_any_number_of_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ones.estimator.experience.FAMILIES", 3)
    experience = taught(seen(), seen(gpus=4))
    for number in range(20):
        experience.observe(replace(seen(), family=f"mallory/{number}", job=JobId(100 + number)))
        experience.observe(seen())
    assert len(experience.of_family(FAMILY).points) == 2
    assert len(experience.of_family("mallory/0").points) == 0


def test_a_job_longer_than_its_family_is_near_its_end_and_goes_on_with_it() -> None:
    def remaining(done: float) -> float:
        told = Progress(job=ONE, samples=done)
        return outlook(*[length(500.0)] * 5, progress={ONE: told}).remaining

    assert 0 < remaining(520.0) < 60.0
    assert 0 < remaining(5000.0) < 500.0


def test_what_a_job_declares_can_be_left_out() -> None:
    told = Progress(job=ONE, samples=1000.0, total_samples=90000.0)
    asked = outlook(progress={ONE: told}, knowledge=Knowledge(declared=False))
    assert asked.remaining == 1000.0


def test_what_other_jobs_told_can_be_left_out() -> None:
    others = Observation(
        job=JobId(7), family=FAMILY, gpu_type="v100", nodes=1, gpus=2, batch=64.0, step_seconds=9.0
    )
    reports = [others, length(64000.0), RestartCost(job=JobId(7), family=FAMILY, seconds=99.0)]
    told = Progress(job=ONE, samples=1000.0)
    alone = Knowledge(families=False)
    asked = outlook(*reports, seen(), progress={ONE: told}, knowledge=alone)
    assert (asked.points, asked.remaining, asked.restart_cost) == (1, 1000.0, 30.0)
    assert outlook(*reports, progress={ONE: told}).points == 1


def test_what_a_job_told_ends_with_it() -> None:
    experience = taught(seen(), length(500.0, job=ONE))
    asked = outlook(experience=experience, knowledge=Knowledge(families=False))
    assert asked.points == 0


def test_an_unknown_job_is_half_way() -> None:
    assert outlook(progress={ONE: Progress(job=ONE, samples=700.0)}).remaining == 700.0


def test_a_job_that_is_still_there_has_something_left() -> None:
    done = Progress(job=ONE, samples=1200.0, total_samples=1000.0)
    assert outlook(progress={ONE: done}).remaining > 0


def test_surer_knowledge_makes_a_narrower_beta() -> None:
    half = {ONE: Progress(job=ONE, samples=500.0)}
    declared = {ONE: Progress(job=ONE, samples=500.0, total_samples=1000.0)}
    found = [outlook(progress=half), outlook(length(1000.0), progress=half)]
    found += [outlook(*[length(1000.0)] * 9, progress=half), outlook(progress=declared)]
    strengths = [one.alpha + one.beta for one in found]
    assert strengths == sorted(strengths)
    assert len(set(strengths)) == 4


def test_declarations_that_were_wrong_are_trusted_less() -> None:
    told = Progress(job=ONE, samples=500.0, total_samples=1000.0)

    def strength(ended_at: float) -> float:
        experience = Experience()
        for number in range(2, 8):
            job = JobId(number)
            experience.progress(Progress(job=job, samples=400.0, total_samples=1000.0))
            experience.finish(length(ended_at, job=job))
        found = outlook(experience=experience, progress={ONE: told})
        return found.alpha + found.beta

    assert strength(450.0) < strength(1000.0) / 4


def test_reports_of_progress_that_can_not_be_true_do_no_harm() -> None:
    for value in (float("nan"), float("inf"), -5.0, 1e300):
        told = Progress(
            job=ONE, samples=value, total_samples=value, epoch_samples=value,
            loss=value, initial_loss=value, accuracy=value,
        )  # fmt: skip
        found = outlook(seen(), length(value), length(1000.0), progress={ONE: told})
        assert found.remaining == pytest.approx(1000.0)
        assert 0 < found.alpha < 1e9
        assert 0 < found.beta < 1e9


def test_a_silent_job_lasts_the_prior_time_at_its_requested_size() -> None:
    assert left(ask(priors=Priors(job_seconds=200.0))) == pytest.approx(200.0, rel=1e-4)
    learnt = ask(seen(), priors=Priors(job_seconds=200.0))
    assert left(learnt) == pytest.approx(200.0, rel=0.01)


def test_an_unknown_job_is_as_long_as_the_others_once_there_are_enough() -> None:
    others = [a_job(i, name="job1", placement=on(n1=1), requested=2) for i in (1, 2, 3)]
    problem = assess(
        now=0.0,
        nodes=a_cluster(),
        jobs=[*others, a_job(9, name="new")],
        experience=taught(seen()),
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
    assert left(problem) == pytest.approx(200.0, rel=1e-4)


def test_a_waiting_job_is_foretold_by_its_family() -> None:
    job = a_job(2, name="job1")
    problem = assess(
        now=0.0,
        nodes=a_cluster(),
        jobs=[job],
        experience=taught(seen(), length(6400.0)),
    )
    assert seconds_left_on(problem, job, on(n1=2)) == pytest.approx(50.0, rel=0.05)


def siblings(told: Progress, experience: Experience) -> Problem:
    """One job that runs, and two of its user and name that wait: one came before it."""
    jobs = [a_job(n, name="job1", placement=on(n1=2) if n == 1 else None) for n in (0, 1, 2)]
    return assess(
        now=5000.0, nodes=a_cluster(), jobs=jobs, experience=experience, progress={ONE: told}
    )


def test_a_running_job_tells_at_once_how_long_those_like_it_are() -> None:
    told = Progress(job=ONE, samples=64.0, total_samples=6400.0, epoch_samples=640.0)
    outlooks = siblings(told, taught(seen())).outlooks
    assert [outlooks[JobId(n)].remaining for n in (0, 1, 2)] == [6400.0, 6336.0, 6400.0]
    assert not any(one.guessed for one in outlooks.values())


def test_a_running_job_that_declares_nothing_tells_of_its_epochs_and_how_far_it_got() -> None:
    told = Progress(job=ONE, samples=64.0, epoch_samples=640.0)
    outlooks = siblings(told, taught(seen())).outlooks
    assert [outlooks[JobId(n)].remaining for n in (0, 1, 2)] == [1920.0, 1856.0, 1920.0]
    assert all(one.guessed for one in outlooks.values())


def test_what_ended_jobs_took_counts_for_more_than_what_others_declare() -> None:
    told = Progress(job=ONE, samples=64.0, total_samples=6400.0)
    outlooks = siblings(told, taught(seen(), length(1000.0))).outlooks
    assert outlooks[JobId(2)].remaining == 1000.0


def test_restarts_cost_what_they_cost_this_job_else_its_family_else_all() -> None:
    def cost(*rows: tuple[int, str, float]) -> float:
        costs = [RestartCost(job=JobId(j), family=f, seconds=s) for j, f, s in rows]
        return outlook(*costs).restart_cost

    assert cost() == 30.0
    assert cost((7, "other", 5.0)) == 5.0
    assert cost((7, "other", 5.0), (8, FAMILY, 9.0)) == 9.0
    assert cost((1, FAMILY, 12.0), (8, FAMILY, 9.0), (1, FAMILY, 14.0)) == 13.0
    assert cost((1, FAMILY, float("nan")), (1, FAMILY, -3.0)) == 30.0


def test_the_work_to_come_is_parted_where_the_noise_changes() -> None:
    batches = Batch(submitted=64, most_per_gpu=64, most=512, tunes=True)
    job = a_job(1, placement=on(n1=2), batch=64, batches=batches)
    earlier = [
        GradientReport(
            job=JobId(7), family=FAMILY, epochs=float(epoch), batch=64.0, sqr=1.0, var=1.0 + epoch
        )
        for epoch in range(10)
    ]
    told = Progress(job=ONE, samples=200.0, total_samples=1000.0, epoch_samples=100.0)
    found = outlook(seen(), *earlier, jobs=[job], progress={ONE: told})
    assert sum(one.samples for one in found.segments) == pytest.approx(found.remaining)
    noise = [one.noise for one in found.segments if one.noise is not None]
    assert 1 < len(noise) == len(found.segments) <= 6
    assert noise == sorted(noise)
    assert noise[0] == pytest.approx(64.0 * 3.0)


def test_the_arrival_rate_counts_the_recent_window_only() -> None:
    assert ask(arrivals=[10.0, 4000.0, 4900.0, 6000.0]).arrival_rate == pytest.approx(2 / 1200)


def test_senseless_priors_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Priors(job_seconds=0.0)
