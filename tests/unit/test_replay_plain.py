"""Plain jobs in a replay: started as they ask, and never moved."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_builders import PlainApplication, a_trace_job, a_world

from ones.daemon.replay.faults import ReplayError
from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.simulation import Run, World, replay
from ones.daemon.replay.workload import TraceJob, Workload
from ones.policies.fifo import Fifo
from ones.policies.registry import make
from ones.policies.sizes import Sizes


def a_record(name: str, submitted: float, gpus: int, seconds: float, **changes: object) -> TraceJob:
    """As `sacct` has it; it opted in with the sizes that are given."""
    sizes = changes.pop("sizes", None)
    most = Sizes((gpus,)) if sizes is None else sizes
    return a_trace_job(
        name,
        submitted,
        requested=gpus,
        batch=None,
        sizes=most,
        application=Recorded(name=name, gpus=gpus, seconds=seconds, sizes=most),  # type: ignore[arg-type]
        declared=False,
        opted_in=sizes is not None,
        **changes,
    )


def run(*jobs: TraceJob, policy: str = "ones", world: World | None = None) -> Run:
    return replay(
        Workload(jobs), make(policy), world or a_world(), clock=lambda: 0.0, scheduler=Fifo()
    )


def a_month(jobs: int = 40) -> list[TraceJob]:
    rng = np.random.default_rng(7)
    return [
        a_record(
            f"j{number}",
            float(rng.uniform(0, 4000)),
            int(rng.choice([1, 2, 4, 8])),
            float(rng.integers(30, 3000)),
        )
        for number in range(jobs)
    ]


@pytest.mark.parametrize("policy", ["ones", "srtf", "tiresias", "pollux"])
def test_where_nobody_opted_in_every_policy_is_the_plain_scheduler(policy: str) -> None:
    plain, other = run(*a_month(), policy="fifo"), run(*a_month(), policy=policy)
    assert [job.sizes for job in other.jobs] == [job.sizes for job in plain.jobs]
    assert all(job.resizes == 0 for job in other.jobs)


def test_a_plain_job_starts_at_once_and_takes_what_was_recorded() -> None:
    (job,) = run(a_record("a", 61.5, 4, 100.0)).jobs
    assert job.sizes == [(61.5, 4), (161.5, 0)]
    assert (job.started, job.finished, job.waited) == (61.5, 161.5, 0.0)
    assert job.gpu_seconds == 400.0


def test_a_plain_job_that_waits_starts_the_moment_that_another_ends() -> None:
    first, second = run(a_record("a", 0.0, 16, 100.0), a_record("b", 10.0, 16, 5.0)).jobs
    assert (second.started, second.finished) == (100.0, 105.0)
    assert second.waited == 90.0
    assert first.resizes == second.resizes == 0


def test_an_elastic_job_grows_around_plain_jobs_and_makes_way_for_them() -> None:
    elastic, plain = run(
        a_record("grows", 0.0, 4, 20000.0, sizes=Sizes(tuple(range(1, 17)))),
        a_record("wide", 3000.0, 12, 1000.0),
    ).jobs
    assert max(gpus for _, gpus in elastic.sizes) > 4
    assert plain.started is not None
    assert plain.started - 3000.0 <= 60.0
    assert elastic.resizes >= 2
    assert plain.sizes == [(plain.started, 12), (plain.started + 1000.0, 0)]


def test_an_elastic_job_is_seen_to_as_soon_as_it_is_submitted() -> None:
    (job,) = run(a_record("a", 61.5, 4, 100.0, sizes=Sizes((4,)))).jobs
    assert job.started == 61.5
    assert job.finished == pytest.approx(161.5, abs=2.0)  # whose start is in its record


def test_a_job_of_a_profile_takes_as_long_as_a_job_of_onesd_that_nobody_moves() -> None:
    job = a_trace_job("p", requested=4, application=PlainApplication(), opted_in=False)
    (plain,) = run(job).jobs
    (ours,) = replay(Workload((job,)), Fifo(), a_world(), clock=lambda: 0.0).jobs
    assert plain.finished == ours.finished
    assert plain.gpu_seconds == ours.gpu_seconds


def test_a_plain_job_runs_on_what_it_asks_for_whatever_it_could_run_on() -> None:
    job = a_trace_job("p", requested=2, application=PlainApplication(), opted_in=False)
    (plain,) = run(job).jobs
    assert {gpus for _, gpus in plain.sizes} == {2, 0}


def test_a_policy_that_moves_nobody_starts_everybody_in_one_queue() -> None:
    jobs = [
        a_record("wide", 0.0, 16, 100.0),
        a_record("elastic", 1.0, 16, 50.0, sizes=Sizes((1, 2, 4, 8, 16))),
        a_record("plain", 2.0, 4, 50.0),
    ]
    _, elastic, plain = run(*jobs, policy="fifo").jobs
    assert elastic.sizes == [(100.0, 16), (150.0, 0)]
    assert plain.started == 150.0


def test_a_plain_job_that_no_node_holds_ends_the_replay_with_its_name() -> None:
    with pytest.raises(ReplayError, match=r"job 2 \('wide'\) accepts 17 GPUs"):
        run(a_record("a", 0.0, 4, 9.0), a_record("wide", 0.0, 17, 9.0))


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    number = draw(st.integers(2, 14))
    return [
        a_record(
            f"j{k}",
            float(draw(st.integers(0, 600))),
            draw(st.sampled_from([1, 2, 4, 8])),
            float(draw(st.integers(1, 900))),
            **({"sizes": Sizes((1, 2, 4, 8))} if draw(st.booleans()) else {}),
        )
        for k in range(number)
    ]


@settings(max_examples=25, deadline=None)
@given(traces())
def test_plain_jobs_run_once_to_their_end_and_no_gpu_is_given_twice(jobs: list[TraceJob]) -> None:
    done = run(*jobs)
    held = Counter[float]()
    for job in done.jobs:
        assert job.started is not None
        assert job.finished is not None
        before = 0
        for at, gpus in job.sizes:
            held[at] += gpus - before
            before = gpus
        if not job.trace.opted_in:
            asked = job.trace.requested
            assert [gpus for _, gpus in job.sizes] == [asked, 0]
            assert job.resizes == 0
            assert job.waited == job.started - job.trace.submitted >= 0
    assert np.cumsum([change for _, change in sorted(held.items())]).max() <= 16
