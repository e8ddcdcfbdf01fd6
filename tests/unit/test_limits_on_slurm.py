"""onesd on the simulated Slurm with limits of its site: known beforehand, and never run into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from simulated_onesd import AtWork
from simulated_world import a_world

from ones.daemon.config import EstimatorConfig
from ones.daemon.onesd.doors import views
from ones.slurm_ext.simulated.gate import PASS, Call, Refuse, Verdict
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.settings import Account, PartitionSpec, Qos
from ones.slurm_ext.simulated.world import gpus

POLICIES = ("ones", "fifo", "srtf")


def eager(**site: Any) -> AtWork:
    """Jobs have much to do and restarts cost next to nothing, so that each grows as it may."""
    cheap = EstimatorConfig(restart_seconds=1.0)
    at_work = AtWork(a_world(site), policy="ones", estimator=cheap)
    at_work.says = {"samples": 1000, "total_samples": 10**7, "gpus": 2}
    at_work.says |= {"step_seconds": 0.5, "batch": 64}
    return at_work


def refused(at_work: AtWork) -> list[str]:
    """Outcomes of starts that Slurm did not let come."""
    rows = at_work.store.rows("SELECT outcome FROM moves WHERE outcome LIKE '%does not start%'")
    return [row["outcome"] for row in rows]


def running(at_work: AtWork, *jobs: int) -> int:
    found = (at_work.world.state.jobs.get(job) for job in jobs)
    return sum(job.gpus for job in found if job is not None and job.state == "RUNNING")


def most_held(at_work: AtWork, job: int) -> int:
    """The most GPUs that the job has within ten minutes."""
    most = 0
    for _ in range(20):
        at_work.live(30)
        most = max(most, running(at_work, job))
    return most


def test_a_job_grows_to_its_users_limit_and_no_further() -> None:
    """MaxTRESPerUser=gres/gpu=4, one job of 1 to 8."""
    at_work = eager(qos=(Qos(gpus_per_user=4),))
    job = at_work.submit(2, seconds=4000.0)
    assert most_held(at_work, job) == 4
    assert refused(at_work) == []
    lines = views.explain(at_work.onesd.service, job, None)["lines"]
    assert any("QOS normal allows 4 GPUs a user; alice has" in line for line in lines)


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_of_one_user_stay_within_his_limit_and_others_use_the_rest(policy: str) -> None:
    at_work = AtWork(a_world({"qos": (Qos(gpus_per_user=4),)}), policy=policy)
    alices = [at_work.submit(2, seconds=3000.0) for _ in range(4)]
    bobs = [at_work.submit(4, user="bob", seconds=3000.0) for _ in range(2)]
    for _ in range(12):
        at_work.live(20)
        assert running(at_work, *alices) <= 4
        assert running(at_work, *bobs) <= 4
    assert running(at_work, *alices) == 4
    assert running(at_work, *bobs) == 4
    assert refused(at_work) == []


def test_a_plain_job_counts_too() -> None:
    at_work = AtWork(a_world({"qos": (Qos(gpus_per_user=4),)}), policy="ones")
    at_work.world.submit("alice", wants=gpus(3), seconds=600.0)
    at_work.world.step(5)
    job = at_work.submit(4, seconds=4000.0)
    at_work.live(120)
    assert running(at_work, job) == 1
    at_work.live(700)
    assert running(at_work, job) == 4
    assert refused(at_work) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_limit_of_an_account_above_holds_for_all_below(policy: str) -> None:
    accounts = (
        Account(name="science", gpus=6),
        Account(name="vision", parent="science"),
        Account(name="language", parent="science"),
    )
    at_work = AtWork(a_world({"accounts": accounts}), policy=policy)
    users = ("alice", "carol", "bob")
    jobs = [at_work.submit(2, user=user, seconds=3000.0) for user in users * 2]
    for _ in range(12):
        at_work.live(20)
        assert running(at_work, *jobs) <= 6
    assert running(at_work, *jobs) == 6
    assert refused(at_work) == []


@pytest.mark.parametrize(
    "limit", [Qos(jobs_per_user=2), Qos(jobs=2), Account(name="vision", jobs_per_user=2)]
)
def test_the_number_of_running_jobs_is_limited(limit: Qos | Account) -> None:
    at_work = AtWork(policy="ones")
    at_work.world.limit(limit)
    jobs = [at_work.submit(1, seconds=3000.0, elastic="1-2") for _ in range(5)]
    at_work.live(120)
    states = [at_work.job(job).state for job in jobs]
    assert states.count("RUNNING") == 2
    assert refused(at_work) == []


def test_a_partition_allows_so_many_nodes_a_job() -> None:
    partition = PartitionSpec(max_nodes=1)
    at_work = eager(partitions=(partition,))
    job = at_work.submit(2, seconds=3000.0)
    at_work.live(300)
    assert running(at_work, job) == 4
    assert len(at_work.job(job).nodes) == 1
    lines = views.explain(at_work.onesd.service, job, None)["lines"]
    assert any("partition gpu allows 1 node a job" in line for line in lines)


def test_a_limit_lowered_under_a_job_stops_nobody() -> None:
    at_work = eager(qos=(Qos(gpus_per_user=8),))
    at_work.says["gpus"] = 4
    job = at_work.submit(4, seconds=4000.0)
    at_work.live(200, until=lambda: running(at_work, job) == 8)
    assert running(at_work, job) == 8
    at_work.world.limit(Qos(gpus_per_user=2))
    starts = at_work.job(job).run
    at_work.live(400)
    assert (running(at_work, job), at_work.job(job).run) == (8, starts)


def test_jobs_that_no_limit_lets_start_wait_and_are_told_why() -> None:
    at_work = AtWork(a_world({"qos": (Qos(gpus_per_job=2),)}))
    job = at_work.submit(4, elastic="4-8")
    at_work.live(60)
    assert at_work.job(job).state == "PENDING"
    lines = views.explain(at_work.onesd.service, job, None)["lines"]
    assert any("QOS normal allows 2 GPUs a job" in line for line in lines)
    at_work.world.limit(Qos())
    at_work.live(120)
    assert running(at_work, job) == 4


def limits_answered(answers: Callable[[], bool]) -> Callable[[Call], Verdict]:
    def judge(call: Call) -> Verdict:
        return Refuse("nobody there") if call.name == "limits" and not answers() else PASS

    return judge


def test_the_last_answer_counts_while_slurm_gives_none_and_status_says_so() -> None:
    answers = [True]
    at_work = eager(qos=(Qos(gpus_per_user=4),))
    at_work.door.judge = limits_answered(lambda: answers[0])
    at_work.live(20)
    answers[0] = False
    at_work.live(70)
    job = at_work.submit(2, seconds=3000.0)
    at_work.live(200)
    assert running(at_work, job) == 4
    assert refused(at_work) == []
    problems = views.status(at_work.onesd.service, None)["problems"]
    assert any("limits could not be read" in problem for problem in problems)
    answers[0] = True
    at_work.live(700)
    problems = views.status(at_work.onesd.service, None)["problems"]
    assert not any("limits could not be read" in problem for problem in problems)


def test_a_qos_that_was_removed_under_a_job_is_named_and_stops_nobody() -> None:
    at_work = AtWork(policy="ones")
    job = at_work.submit(2, seconds=3000.0)
    at_work.live(60)
    at_work.world.state.qos.clear()
    at_work.live(90)
    assert running(at_work, job) >= 2
    problems = views.status(at_work.onesd.service, None)["problems"]
    assert f"QOS normal of job {job} is not there: planned without its limits" in problems


def asking(gpus_asked: int, **more: Any) -> Wants:
    return replace(gpus(gpus_asked), **more)


def test_a_job_grows_to_the_memory_that_its_user_may_have_and_no_further() -> None:
    """MaxTRESPerUser=mem=4000, 1000 MiB for each GPU; one job of 1 to 8."""
    at_work = eager(qos=(Qos(memory_per_user=4000),))
    job = at_work.world.submit(
        "alice", wants=asking(2, memory_per_gpu=1000), elastic="1-8", seconds=4000.0
    )
    assert most_held(at_work, job) == 4
    assert refused(at_work) == []
    lines = views.explain(at_work.onesd.service, job, None)["lines"]
    words = "QOS normal allows 4000M of memory a user; alice has"
    assert any(words in line for line in lines)


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_that_plain_jobs_hold_counts_by_cpu_and_by_node_too(policy: str) -> None:
    """500 MiB a CPU by default, one task for each node; a plain job has half of what there is."""
    at_work = AtWork(a_world({"qos": (Qos(memory=4000),)}), policy=policy)
    at_work.world.submit("bob", wants=asking(1, memory=2000), seconds=3000.0)
    at_work.world.step(5)
    jobs = [at_work.submit(1, elastic="1-2", seconds=3000.0) for _ in range(6)]
    for _ in range(12):
        at_work.live(20)
        assert len([job for job in jobs if running(at_work, job)]) <= 4
    assert len([job for job in jobs if running(at_work, job)]) == 4
    assert refused(at_work) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_start_as_long_as_the_cluster_has_licences(policy: str) -> None:
    at_work = AtWork(a_world({"licenses": {"matlab": 3}}), policy=policy)
    at_work.world.submit("bob", wants=asking(1, licenses=(("matlab", 1),)), seconds=3000.0)
    at_work.world.step(5)
    wants = asking(1, licenses=(("matlab", 1),))
    jobs = [
        at_work.world.submit("alice", wants=wants, elastic="1-4", seconds=3000.0) for _ in range(4)
    ]
    for _ in range(12):
        at_work.live(20)
        assert len([job for job in jobs if running(at_work, job)]) <= 2
    assert len([job for job in jobs if running(at_work, job)]) == 2
    assert refused(at_work) == []
    waiting = next(job for job in jobs if not running(at_work, job))
    lines = views.explain(at_work.onesd.service, waiting, None)["lines"]
    assert any("the cluster has 3 matlab licences; jobs have 3" in line for line in lines)


def test_a_job_with_a_licence_that_a_plain_one_waits_for_keeps_it() -> None:
    """Once stopped for a restart, it would have to wait for that one."""
    at_work = eager(licenses={"matlab": 1})
    licensed: Any = {"licenses": (("matlab", 1),)}
    job = at_work.world.submit("alice", wants=asking(2, **licensed), elastic="1-8", seconds=4000.0)
    at_work.live(30, until=lambda: running(at_work, job) > 0)
    plain = at_work.world.submit("bob", wants=asking(1, **licensed), seconds=60.0)
    starts = at_work.job(job).run
    at_work.live(400)
    assert at_work.job(job).run == starts
    assert at_work.job(plain).reason == "Licenses"
    assert refused(at_work) == []
