from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np
import pytest
from policy_builders import a_job, an_outlook, on
from replay_builders import PlainApplication, a_trace_job, a_workload, a_world

from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.simulation import ReplayError, Run, World, replay
from ones.daemon.replay.workload import Workload
from ones.policies.forecast import noise_known
from ones.policies.model import (
    Assignment,
    Floats,
    Ints,
    Job,
    Outlook,
    Placement,
    Plan,
    Problem,
    Segment,
    TunesBetweenRounds,
)
from ones.policies.registry import make
from ones.policies.sizes import Sizes

POLICIES = ("fifo", "srtf", "ones", "ones-sc21", "ones-oracle", "srtf-oracle")


def run(workload: Workload, policy: str = "fifo", world: World | None = None) -> Run:
    ticks = count()
    truth = policy.endswith("-oracle")
    return replay(
        workload,
        make(policy),
        world or a_world(),
        clock=lambda: float(next(ticks)),
        truth=truth,
    )


def completion(job: SimulatedJob) -> float:
    assert job.finished is not None
    return job.finished - job.trace.submitted


def a_mix(jobs: int = 12) -> Workload:
    rng = np.random.default_rng(4)
    return a_workload(
        *(
            a_trace_job(
                f"j{i}",
                submitted=float(rng.uniform(0, 2000)),
                requested=int(rng.choice([1, 2, 4, 8])),
                application=PlainApplication(length=int(rng.integers(2, 40))),
            )
            for i in range(jobs)
        )
    )


def test_a_job_alone_takes_its_restart_and_its_steps() -> None:
    """1000 steps at B0 of 16 samples a GPU: 0.16 s and 0.05 s to synchronise on one node."""
    (job,) = run(a_workload(a_trace_job())).jobs
    assert completion(job) == pytest.approx(30.0 + 1000 * (0.16 + 0.05))
    assert job.resizes == 0


def test_a_job_waits_for_the_round_after_its_submission() -> None:
    (job,) = run(a_workload(a_trace_job(submitted=61.0))).jobs
    assert job.started == 120.0


def test_an_application_may_name_its_own_restart() -> None:
    slow = PlainApplication(restart_seconds=250.0)
    (job,) = run(a_workload(a_trace_job(application=slow))).jobs
    assert completion(job) == pytest.approx(250.0 + 1000 * 0.21)


def test_a_larger_batch_makes_less_progress_a_sample() -> None:
    """phi = 640: at 4 times B0 a step is worth (10 + 1) / (10 / 4 + 1) steps at B0."""
    (job,) = run(a_workload(a_trace_job(batch=256))).jobs
    gain = 11 / 3.5
    each = 100 / gain * (0.64 + 0.05)
    assert completion(job) == 30.0 + 10 * round(each)  # epochs take whole seconds


@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_ends_and_no_gpu_is_given_twice(policy: str) -> None:
    done = run(a_mix(), policy)
    held = Counter[float]()
    for job in done.jobs:
        assert job.finished is not None
        assert job.started is not None
        assert job.started >= job.trace.submitted
        before = 0
        for at, gpus in job.sizes:
            held[at] += gpus - before
            before = gpus
    taken = np.cumsum([change for _, change in sorted(held.items())])
    assert taken.max() <= 16
    assert taken[-1] == 0


@pytest.mark.parametrize("policy", ["ones", "ones-sc21"])
def test_the_same_seed_replays_the_same(policy: str) -> None:
    one, other = run(a_mix(), policy), run(a_mix(), policy)
    assert [job.sizes for job in one.jobs] == [job.sizes for job in other.jobs]


def test_elastic_sizes_end_jobs_sooner_than_first_come_first_served() -> None:
    fifo, ones = (
        np.mean([completion(job) for job in run(a_mix(20), policy).jobs])
        for policy in ("fifo", "ones")
    )
    assert ones < 0.9 * fifo


class Tuner:
    """Gives the only job 4 GPUs, and another batch in every round."""

    name = "tuner"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        batch = 64 + 64 * int(problem.now // 60)
        where = Placement.of({"n1": 4})
        return Plan({job.id: Assignment(where, batch, "") for job in problem.jobs}), None


def test_another_batch_is_taken_without_a_restart() -> None:
    (job,) = replay(a_workload(a_trace_job()), Tuner(), a_world(), clock=lambda: 0.0).jobs
    assert job.resizes == 0
    assert completion(job) < 30.0 + 1000 * 0.21 + 30.0
    assert len(job.sizes) == 2


class SyncedSpeed:
    """A step takes 1 ms a sample and GPU, and 50 ms for whatever batch."""

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        return np.asarray(0.001 * global_batch / gpus + 0.05)


class EpochTuner(Tuner):
    """Keeps one batch through its rounds; a job of it takes twice as much after every epoch."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        where = Placement.of({"n1": 4})
        given = {job.id: Assignment(where, job.batch or 64, "") for job in problem.jobs}
        return Plan(given), None

    def batch_after_epoch(self, job: Job, outlook: Outlook, gpu_type: str) -> int | None:
        self.told.append(outlook.epochs)
        assert noise_known(outlook)
        return min(2 * (job.batch or 64), 256)


def test_a_job_tunes_its_batch_after_every_epoch_where_the_policy_has_it_so() -> None:
    policy = EpochTuner()
    (job,) = replay(a_workload(a_trace_job()), policy, a_world(), clock=lambda: 0.0).jobs
    assert policy.told == pytest.approx(list(range(1, 10)))  # not after the last
    first, second = round(100 * 0.21), round(100 * 11 / 6 / 2 * (0.32 + 0.05) * 12 / 11)
    assert job.batch == 256
    assert job.resizes == 0
    assert completion(job) < 30.0 + first + 10 * second


@pytest.mark.parametrize(
    ("policy", "tunes"),
    [
        ("ones", True),
        ("pollux", True),
        ("sia", True),
        ("ones:goodput=false", False),
    ],
)
def test_policies_by_goodput_tune_batches_between_rounds(policy: str, tunes: bool) -> None:
    chosen = make(policy)
    assert isinstance(chosen, TunesBetweenRounds)
    job = a_job(1, placement=on(n1=4), batch=64, batches=PlainApplication().batches)
    outlook = an_outlook(1e6, speed=SyncedSpeed(), segments=(Segment(1e6, 6400.0),))
    batch = chosen.batch_after_epoch(job, outlook, "t4")
    assert (batch is not None and batch > 64) == tunes


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "optimus-oracle", "ones-sc21"])
def test_other_policies_leave_batches_alone_between_rounds(policy: str) -> None:
    assert not isinstance(make(policy), TunesBetweenRounds)


class Idler:
    """Gives nobody anything."""

    name = "idler"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        return Plan({}, {job.id: "not today" for job in problem.jobs}), None


def test_a_replay_in_which_nobody_ever_runs_ends_with_the_job_named() -> None:
    with pytest.raises(ReplayError, match=r"job 1 \('stuck'\) never gets any further under idler"):
        replay(a_workload(a_trace_job("stuck")), Idler(), a_world(), clock=lambda: 0.0)


def test_a_restart_of_many_rounds_is_not_taken_for_standing_still() -> None:
    slow = a_world(round_seconds=1.0, restart_seconds=2500.0)
    (job,) = run(a_workload(a_trace_job(application=PlainApplication(length=1))), world=slow).jobs
    assert completion(job) > 2500.0
    with pytest.raises(ReplayError, match="never gets any further under idler"):
        replay(a_workload(a_trace_job("stuck")), Idler(), slow, clock=lambda: 0.0)


def test_a_job_wider_than_the_cluster_is_refused_at_once() -> None:
    wide = a_trace_job("wide", sizes=Sizes((32,)), requested=32)
    with pytest.raises(ReplayError, match=r"job 1 \('wide'\) accepts 32 GPUs"):
        run(a_workload(wide))


def test_a_cluster_without_gpus_is_refused() -> None:
    with pytest.raises(ReplayError, match="no GPUs"):
        World(nodes=())


def test_what_a_replay_has_learnt_can_be_handed_to_the_next() -> None:
    first = run(a_mix(), "ones")
    again = replay(a_mix(), make("ones"), a_world(), clock=lambda: 0.0, experience=first.experience)
    assert all(job.finished for job in again.jobs)


def test_decisions_are_timed_and_bounded_by_the_best_plan() -> None:
    decisions = run(a_mix(), "ones").decisions
    assert all(one.cpu_seconds > 0 for one in decisions)
    assert all(one.gap is not None and 0 <= one.gap <= 1 for one in decisions)
    assert decisions[0].active >= 1
