"""Moves on a real Slurm: every form of request ends on exactly the planned GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from slurm_jobs import Slurm, slurm_with_a_heartbeat

__all__ = ["slurm_with_a_heartbeat"]  # the fixture `slurm`
pytestmark = pytest.mark.cluster


@pytest.fixture
def quiet(slurm: Slurm) -> Iterator[Slurm]:
    slurm.clean()
    yield slurm
    slurm.clean()


def gpus_on(job: dict[str, Any]) -> list[str]:
    return [detail.split("(")[0] for detail in job["gres_detail"]]


FORMS = {
    "per job": (("--gpus=4",), 1, 1),
    "per job, typed, one task per GPU": (("--gpus=v100:4", "-n4"), 2, 1),
    "per node": (("--gres=gpu:v100:4", "-c2"), 1, 2),
    "per node, one task per GPU": (("--gpus-per-node=4", "-n4"), 2, 1),
    "CPUs and memory per GPU": (("--gpus=4", "--cpus-per-gpu=2", "--mem-per-gpu=100"), 1, 4),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_job_has_the_shape_the_nodes_and_the_tasks_of_its_move(quiet: Slurm, form: str) -> None:
    options, tasks, cpus_per_task = FORMS[form]
    number = quiet.submit("--elastic=1-8", *options)
    assert quiet.move(number, "start@n1:4", "resize@n1:2,n2:2") == ["done", "done"]
    job = quiet.job(number)
    assert (job["job_state"], job["nodes"], job["restart_cnt"]) == (["RUNNING"], "n[1-2]", 1)
    assert gpus_on(job) == ["gpu:v100:2", "gpu:v100:2"]
    first, *steps = quiet.printed(number, run=1)
    cpus = tasks * cpus_per_task
    assert first == f"run 1 n[1-2] tasks={tasks}(x2) cpus={cpus}(x2)"
    assert [line.split()[1:] for line in steps] == [["n1", "0,1"]] * tasks + [["n2", "0,1"]] * tasks


def test_gpus_per_task_keep_one_gpu_to_each_task(quiet: Slurm) -> None:
    number = quiet.submit("--elastic=1-8", "--gpus-per-task=1", "-n4", "-c2")
    assert quiet.move(number, "start@n1:4", "resize@n3:3") == ["done", "done"]
    assert quiet.printed(number, run=1)[1:] == ["0 n3 0", "1 n3 1", "2 n3 2"]
    assert quiet.move(number, "resize@n1:4,n2:4") == ["done"]
    assert gpus_on(quiet.job(number)) == ["gpu:v100:4", "gpu:v100:4"]
    assert len(quiet.printed(number, run=2)) == 9


SHARING = {
    **{name: options for name, (options, *_) in FORMS.items() if not name.startswith("CPUs")},
    "per task": ("--gpus-per-task=1", "-n4"),
    "per task, typed": ("--gpus-per-task=v100:1", "-n4", "-c2"),
}


@pytest.mark.parametrize("form", SHARING)
def test_every_form_can_share_a_gpu_and_have_its_own_again(quiet: Slurm, form: str) -> None:
    numbers = [quiet.submit("--elastic=1-8", *SHARING[form]) for _ in range(2)]
    first, second = numbers
    assert quiet.move(first, "start@n1:4", "resize@n1:1/1") == ["done", "done"]
    assert quiet.move(second, f"start@n1:1/1+{first}") == ["done"]
    halves = [quiet.job(number)["gres_detail"] for number in numbers]
    assert halves == [["shard:1(1/2,0/2,0/2,0/2)"]] * 2
    assert quiet.printed(first, run=1)[1:] == quiet.printed(second, run=0)[1:] == ["0 n1 0"]
    assert quiet.move(second, "resize@n2:2") == ["done"]
    assert gpus_on(quiet.job(second)) == ["gpu:v100:2"]
    asked = quiet.job(second)
    assert ("gpu:v100:" in asked["tres_per_node"]) == ("v100" in str(SHARING[form]))
    tasks = 2 if "-n4" in SHARING[form] else 1
    assert len(quiet.printed(second, run=1)) == 1 + tasks
    assert quiet.move(first, "resize@n1:1") == ["done"]
    assert gpus_on(quiet.job(first)) == ["gpu:v100:1"]


def test_a_job_that_asks_for_cpus_per_gpu_is_not_asked_to_share(quiet: Slurm) -> None:
    number = quiet.submit("--elastic=1-8", "--gpus=4", "--cpus-per-gpu=2", "--mem-per-gpu=100")
    (outcome,) = quiet.move(number, "start@n1:1/1", start_timeout=2)
    assert outcome.startswith("failed: Slurm does not take")
    assert quiet.move(number, "start@n1:1") == ["done"]


def test_a_job_does_not_meet_another_than_the_one_it_is_meant_for(quiet: Slurm) -> None:
    plain = quiet.submit("--gres=shard:1", "-w", "n1", user="bob")
    quiet.wait(plain, "RUNNING")
    number = quiet.submit("--elastic=1-4", "--gpus=1")
    (outcome,) = quiet.move(number, "start@n1:1/1", start_timeout=2)
    assert outcome == "expired: 1 GPUs on n1 did not become free; held"
    assert quiet.move(number, "start@n2:1/1") == ["done"]


def test_fixed_tasks_per_node_keep_their_gpus_per_node(quiet: Slurm) -> None:
    number = quiet.submit("--elastic=4,8", "-N1", "--ntasks-per-node=4", "--gpus-per-node=4")
    assert quiet.move(number, "start@n3:4", "resize@n1:4,n2:4") == ["done", "done"]
    assert quiet.printed(number, run=1)[0] == "run 1 n[1-2] tasks=4(x2) cpus=4(x2)"


def test_a_preempted_job_waits_for_us_and_not_for_its_owner(quiet: Slurm) -> None:
    number = quiet.submit("--elastic=1-4", "--gpus=2")
    assert quiet.move(number, "start@n4:2", "preempt") == ["done", "done"]
    release = quiet.cluster.run("ctl", f"scontrol release {number}", "alice", check=False)
    assert release.returncode != 0
    job = quiet.job(number)
    assert (job["job_state"], job["hold"], job["required_nodes"]) == (["PENDING"], True, "")
    assert quiet.move(number, "start@n2:1") == ["done"]
    assert quiet.job(number)["nodes"] == "n2"


def test_a_job_that_is_moved_at_once_again_and_again_never_fails(quiet: Slurm) -> None:
    """A start in the second of the last stop fails the job: "Job credential revoked"."""
    number = quiet.submit("--elastic=1-4", "--gpus=2")
    back_and_forth = ["resize@n1:4", "resize@n1:1"] * 4
    assert quiet.move(number, "start@n1:2", *back_and_forth) == ["done"] * 9
    assert quiet.state(number) == "RUNNING"


def test_a_job_that_did_not_opt_in_is_never_touched(quiet: Slurm) -> None:
    number = quiet.submit("--gpus=2")
    quiet.wait(number, "RUNNING")
    before = quiet.job(number)
    (outcome,) = quiet.move(number, "resize@n1:4")
    assert outcome == "abandoned: the job is no longer marked elastic"
    assert quiet.job(number)["job_state"] == before["job_state"]
    assert quiet.job(number)["restart_cnt"] == 0


def test_a_start_that_does_not_find_room_leaves_the_job_held(quiet: Slurm) -> None:
    plain = quiet.submit("--gpus-per-node=4", "-w", "n1", user="bob")
    quiet.wait(plain, "RUNNING")
    number = quiet.submit("--elastic=1-4", "--gpus=2")
    (outcome,) = quiet.move(number, "start@n1:2", start_timeout=2)
    assert outcome == "expired: 2 GPUs on n1 did not become free; held"
    assert quiet.job(number)["hold"]


def test_a_job_that_its_user_cancelled_is_not_brought_back(quiet: Slurm) -> None:
    number = quiet.submit("--elastic=1-4", "--gpus=2")
    quiet.root("scancel", str(number))
    (outcome,) = quiet.move(number, "start@n1:2")
    assert outcome == "abandoned: the job has ended (CANCELLED)"
    assert quiet.state(number) == "CANCELLED"


def test_accounting_has_every_run_of_a_moved_job(quiet: Slurm) -> None:
    number = quiet.submit("--elastic=1-8", "--gpus=2")
    assert quiet.move(number, "start@n1:2", "resize@n3:3,n4:3") == ["done", "done"]
    script = (
        "import msgspec; from ones.slurm_ext.accounting import runs_of;"
        "from ones.slurm_ext.commands import Commands;"
        f"print(msgspec.json.encode(runs_of(Commands(), [{number}])).decode())"
    )

    def runs() -> Any:
        return quiet.root("/opt/ones/bin/python", "-c", script)

    quiet.cluster.eventually(lambda: '"ordinal":1' in runs(), within=15, what="two runs in sacct")
    first, second = json.loads(runs())
    assert (first["gpus"], first["nodes"], first["state"]) == (2, "n1", "REQUEUED")
    assert (second["gpus"], second["nodes"], second["ended"]) == (6, "n[3-4]", None)
