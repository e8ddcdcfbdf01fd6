"""The guard's `max_slowdown`: nobody falls behind his rigid run, as far as it can be foreseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from policy_builders import a_job, a_problem, on
from replay_builders import a_trace_job, a_world

from ones.daemon.config import ConfigError, load_config
from ones.daemon.replay.fairness import Fairness
from ones.daemon.replay.opting import Opting
from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.side_by_side import Task, perform
from ones.daemon.replay.workload import Workload
from ones.daemon.site import guard_limits
from ones.estimator.assess import Knowledge
from ones.policies.forecast import seconds_left_on
from ones.policies.guard import History, Limits, check
from ones.policies.model import Job, Problem
from ones.policies.moves import Move
from ones.policies.pace import in_time, with_dues
from ones.policies.rigid import Claim, Rigid, step
from ones.policies.sizes import Sizes

NOW = 1000.0
FAIR = Limits(grace=0, exempt=0, min_gain=None, max_slowdown=1.1)


def a_question(*jobs: Job) -> Problem:
    found = a_problem(list(jobs), left={job.id: 1000.0 for job in jobs})
    return replace(found, now=NOW)


def running(due: float | None, **more: object) -> Job:
    return a_job(1, "1-8", requested=4, placement=on(n1=4), submitted=0.0, due=due, **more)


def left(problem: Problem, gpus: int) -> float:
    return seconds_left_on(problem, problem.jobs[0], on(n1=gpus))


def refused(problem: Problem, move: Move, limits: Limits = FAIR) -> str:
    verdict = check([move], problem, History(), limits)
    return verdict.refused[0].reason if verdict.refused else ""


def shrink(gpus: int) -> Move:
    return Move(job=a_job(1).id, kind="resize", target=on(n1=gpus), gain=1.0)


STOP = Move(job=a_job(1).id, kind="preempt")


def test_a_job_that_would_fall_behind_is_not_shrunk() -> None:
    due = NOW + left(a_question(running(None)), 4)
    assert "rigid it would have taken" in refused(a_question(running(due)), shrink(1))
    assert refused(a_question(running(due + 1e6)), shrink(1)) == ""
    assert refused(a_question(running(due)), shrink(1), replace(FAIR, max_slowdown=None)) == ""


def test_a_job_with_no_time_to_lose_is_not_preempted() -> None:
    due = NOW + left(a_question(running(None)), 4)
    assert "it would end" in refused(a_question(running(0.9 * due)), STOP)
    assert refused(a_question(running(2 * due)), STOP) == ""


def test_a_job_of_which_nothing_is_known_may_be_moved() -> None:
    assert refused(a_question(running(None)), STOP) == ""


def test_policies_do_not_see_sizes_at_which_a_running_job_would_fall_behind() -> None:
    due = NOW + left(a_question(running(None)), 4)
    (job,) = in_time(a_question(running(due)), 1.1, max_wait=1e9).jobs
    # With 3 GPUs it would still be in time.
    assert {shape.gpus for shape in job.shapes} == {3, 4, 6, 8}
    assert job.sizes.least == 3
    (free,) = in_time(a_question(running(due + 1e6)), 1.1, max_wait=1e9).jobs
    assert free.sizes == running(None).sizes


def test_who_has_no_time_to_lose_counts_as_having_waited_too_long() -> None:
    waits = a_job(1, "1-8", requested=4, submitted=0.0, due=NOW)
    (job,) = in_time(a_question(waits), 1.1, max_wait=3600.0).jobs
    assert job.waited > 3600.0
    (early,) = in_time(a_question(replace(waits, due=1e6)), 1.1, max_wait=3600.0).jobs
    assert early.waited == waits.waited


def test_without_a_bound_nothing_is_changed() -> None:
    problem = a_question(running(NOW))
    assert in_time(problem, None, max_wait=1.0) is problem
    assert with_dues(problem, None) is problem


def test_a_job_is_due_when_its_rigid_run_would_end() -> None:
    problem = a_question(running(None, started=NOW - 100.0))
    rigid = step(None, problem, ())
    (job,) = with_dues(problem, rigid).jobs
    assert job.due is not None
    assert job.due > NOW
    claims = {job.id: Claim(NOW + 500.0, on(n2=4))}
    (later,) = with_dues(problem, replace(rigid, claims=claims)).jobs
    assert later.due is not None
    assert later.due == pytest.approx(job.due + 600.0)
    (over,) = with_dues(problem, Rigid(through=frozenset({job.id}))).jobs
    assert over.due == NOW


def test_the_bound_is_the_operators(tmp_path: Path) -> None:
    file = tmp_path / "ones.toml"
    file.write_text("[guard]\nmax_slowdown = 1.1\n")
    assert guard_limits(load_config(file).guard).max_slowdown == 1.1
    file.write_text("")
    assert guard_limits(load_config(file).guard).max_slowdown is None
    file.write_text("[guard]\nmax_slowdown = 0.5\n")
    with pytest.raises(ConfigError, match="max_slowdown"):
        load_config(file)
    with pytest.raises(ValueError, match="max_slowdown must be at least 1"):
        Limits(max_slowdown=0.9)


def a_trace() -> Workload:
    """A short job, a long one and plain ones, for 16 GPUs that are too few now and then."""
    rng = np.random.default_rng(5)
    jobs = []
    for number in range(24):
        gpus, seconds = int(rng.choice([2, 4, 8])), float(rng.integers(600, 6000))
        sizes = Sizes((gpus,))
        jobs.append(
            a_trace_job(
                f"j{number}",
                submitted=float(rng.integers(0, 9000)),
                family=f"f{number % 8}",
                requested=gpus,
                batch=None,
                sizes=sizes,
                application=Recorded(name="r", gpus=gpus, seconds=seconds, sizes=sizes),
                declared=False,
                opted_in=False,
                time_limit=2 * seconds,
            )
        )
    return Workload(tuple(sorted(jobs, key=lambda job: job.submitted)))


def test_in_a_replay_nobody_falls_as_far_behind_with_the_bound() -> None:
    workload = Opting(share=0.5).of(a_trace(), 16)

    def fairness(limits: Limits) -> Fairness:
        rigid, run = (
            perform(
                Task(
                    name=name,
                    workload=workload,
                    world=a_world(limits=limits),
                    knowledge=Knowledge(),
                    scheduler="slurm",
                )
            )
            for name in ("slurm", "ones")
        )
        return Fairness.of(run, rigid)

    free, bound = fairness(Limits()), fairness(Limits(max_slowdown=1.1))
    assert bound.classes["elastic"].worst < 1.5 < free.classes["elastic"].worst
