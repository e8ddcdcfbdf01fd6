"""Moves on a Slurm, real and simulated: every form of request ends on exactly the planned GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulated_jobs import SimulatedSlurm
from slurm_jobs import Slurm, slurm_with_a_heartbeat

AnySlurm = Slurm | SimulatedSlurm
__all__ = ["slurm_with_a_heartbeat"]  # the fixture `slurm`


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.cluster), "simulated"])
def quiet(request: pytest.FixtureRequest) -> Iterator[AnySlurm]:
    """A Slurm with no job on it."""
    if request.param == "simulated":
        yield SimulatedSlurm()
        return
    slurm: Slurm = request.getfixturevalue("slurm")
    slurm.clean()
    yield slurm
    slurm.clean()


FORMS = {
    "per job": (("--gpus=4",), 1, 1),
    "per job, typed, one task per GPU": (("--gpus=v100:4", "-n4"), 2, 1),
    "per node": (("--gres=gpu:v100:4", "-c2"), 1, 2),
    "per node, one task per GPU": (("--gpus-per-node=4", "-n4"), 2, 1),
    "CPUs and memory per GPU": (("--gpus=4", "--cpus-per-gpu=2", "--mem-per-gpu=100"), 1, 4),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_job_has_the_shape_the_nodes_and_the_tasks_of_its_move(
    quiet: AnySlurm, form: str
) -> None:
    options, tasks, cpus_per_task = FORMS[form]
    number = quiet.submit("--elastic=1-8", *options)
    assert quiet.move(number, "start@n1:4", "resize@n1:2,n2:2") == ["done", "done"]
    job = quiet.facts(number)
    assert (job.state, job.nodes, job.restarts) == ("RUNNING", "n[1-2]", 1)
    assert job.gres == ["gpu:v100:2", "gpu:v100:2"]
    first, *steps = quiet.printed(number, run=1)
    cpus = tasks * cpus_per_task
    assert first == f"run 1 n[1-2] tasks={tasks}(x2) cpus={cpus}(x2)"
    assert [line.split()[1:] for line in steps] == [["n1", "0,1"]] * tasks + [["n2", "0,1"]] * tasks


def test_gpus_per_task_keep_one_gpu_to_each_task(quiet: AnySlurm) -> None:
    number = quiet.submit("--elastic=1-8", "--gpus-per-task=1", "-n4", "-c2")
    assert quiet.move(number, "start@n1:4", "resize@n3:3") == ["done", "done"]
    assert quiet.printed(number, run=1)[1:] == ["0 n3 0", "1 n3 1", "2 n3 2"]
    assert quiet.move(number, "resize@n1:4,n2:4") == ["done"]
    assert quiet.facts(number).gres == ["gpu:v100:4", "gpu:v100:4"]
    assert len(quiet.printed(number, run=2)) == 9


SHARING = {
    **{name: options for name, (options, *_) in FORMS.items() if not name.startswith("CPUs")},
    "per task": ("--gpus-per-task=1", "-n4"),
    "per task, typed": ("--gpus-per-task=v100:1", "-n4", "-c2"),
}


@pytest.mark.parametrize("form", SHARING)
def test_every_form_can_share_a_gpu_and_have_its_own_again(quiet: AnySlurm, form: str) -> None:
    numbers = [quiet.submit("--elastic=1-8", *SHARING[form]) for _ in range(2)]
    first, second = numbers
    assert quiet.move(first, "start@n1:4", "resize@n1:1/1") == ["done", "done"]
    assert quiet.move(second, f"start@n1:1/1+{first}") == ["done"]
    halves = [quiet.facts(number).gres for number in numbers]
    assert halves == [["shard:1(1/2,0/2,0/2,0/2)"]] * 2
    assert quiet.printed(first, run=1)[1:] == quiet.printed(second, run=0)[1:] == ["0 n1 0"]
    assert quiet.move(second, "resize@n2:2") == ["done"]
    assert quiet.facts(second).gres == ["gpu:v100:2"]
    asked = quiet.facts(second)
    assert ("gpu:v100:" in asked.tres_per_node) == ("v100" in str(SHARING[form]))
    tasks = 2 if "-n4" in SHARING[form] else 1
    assert len(quiet.printed(second, run=1)) == 1 + tasks
    assert quiet.move(first, "resize@n1:1") == ["done"]
    assert quiet.facts(first).gres == ["gpu:v100:1"]


def test_a_job_that_asks_for_cpus_per_gpu_is_not_asked_to_share(quiet: AnySlurm) -> None:
    number = quiet.submit("--elastic=1-8", "--gpus=4", "--cpus-per-gpu=2", "--mem-per-gpu=100")
    (outcome,) = quiet.move(number, "start@n1:1/1", start_timeout=2)
    assert outcome.startswith("failed: Slurm does not take")
    assert quiet.move(number, "start@n1:1") == ["done"]


def test_a_job_does_not_meet_another_than_the_one_it_is_meant_for(quiet: AnySlurm) -> None:
    plain = quiet.submit("--gres=shard:1", "-w", "n1", user="bob")
    quiet.wait(plain, "RUNNING")
    number = quiet.submit("--elastic=1-4", "--gpus=1")
    (outcome,) = quiet.move(number, "start@n1:1/1", start_timeout=2)
    assert outcome == "expired: 1 GPUs on n1 did not become free; held"
    assert quiet.move(number, "start@n2:1/1") == ["done"]


def test_fixed_tasks_per_node_keep_their_gpus_per_node(quiet: AnySlurm) -> None:
    number = quiet.submit("--elastic=4,8", "-N1", "--ntasks-per-node=4", "--gpus-per-node=4")
    assert quiet.move(number, "start@n3:4", "resize@n1:4,n2:4") == ["done", "done"]
    assert quiet.printed(number, run=1)[0] == "run 1 n[1-2] tasks=4(x2) cpus=4(x2)"


def test_a_preempted_job_waits_for_us_and_not_for_its_owner(quiet: AnySlurm) -> None:
    number = quiet.submit("--elastic=1-4", "--gpus=2")
    assert quiet.move(number, "start@n4:2", "preempt") == ["done", "done"]
    assert "denied" in quiet.by("alice", "scontrol", "release", str(number))
    job = quiet.facts(number)
    assert (job.state, job.held, job.required) == ("PENDING", True, "")
    assert quiet.move(number, "start@n2:1") == ["done"]
    assert quiet.facts(number).nodes == "n2"


def test_a_job_that_is_moved_at_once_again_and_again_never_fails(quiet: AnySlurm) -> None:
    """A start in the second of the last stop fails the job: "Job credential revoked"."""
    number = quiet.submit("--elastic=1-4", "--gpus=2")
    back_and_forth = ["resize@n1:4", "resize@n1:1"] * 4
    assert quiet.move(number, "start@n1:2", *back_and_forth) == ["done"] * 9
    quiet.wait(number, "RUNNING")


def test_a_job_that_did_not_opt_in_is_never_touched(quiet: AnySlurm) -> None:
    number = quiet.submit("--gpus=2")
    quiet.wait(number, "RUNNING")
    (outcome,) = quiet.move(number, "resize@n1:4")
    assert outcome == "abandoned: the job is no longer marked elastic"
    assert (quiet.state(number), quiet.facts(number).restarts) == ("RUNNING", 0)


def test_a_start_that_does_not_find_room_leaves_the_job_held(quiet: AnySlurm) -> None:
    plain = quiet.submit("--gpus-per-node=4", "-w", "n1", user="bob")
    quiet.wait(plain, "RUNNING")
    number = quiet.submit("--elastic=1-4", "--gpus=2")
    (outcome,) = quiet.move(number, "start@n1:2", start_timeout=2)
    assert outcome == "expired: 2 GPUs on n1 did not become free; held"
    assert quiet.facts(number).held


def test_a_job_that_its_user_cancelled_is_not_brought_back(quiet: AnySlurm) -> None:
    number = quiet.submit("--elastic=1-4", "--gpus=2")
    quiet.by("root", "scancel", str(number))
    (outcome,) = quiet.move(number, "start@n1:2")
    assert outcome == "abandoned: the job has ended (CANCELLED)"
    assert quiet.state(number) == "CANCELLED"


def test_accounting_has_every_run_of_a_moved_job(quiet: AnySlurm) -> None:
    number = quiet.submit("--elastic=1-8", "--gpus=2")
    assert quiet.move(number, "start@n1:2", "resize@n3:3,n4:3") == ["done", "done"]
    quiet.eventually(lambda: len(quiet.runs(number)) > 1, within=15, what="two runs in sacct")
    first, second = quiet.runs(number)
    assert (first.gpus, first.nodes, first.state) == (2, "n1", "REQUEUED")
    assert (second.gpus, second.nodes, second.ended) == (6, "n[3-4]", None)
