"""Elastic job arrays: each task is a job of its own size once it has started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_slurm import FakeSlurm, a_record, as_json
from simulated_onesd import AtWork
from simulated_world import a_world

from ones.slurm_ext.accounting import runs_of
from ones.slurm_ext.actions import Hold
from ones.slurm_ext.actuator import Actuator, JobChanged
from ones.slurm_ext.command_reader import read_jobs
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.elastic import elastic_jobs
from ones.slurm_ext.job_json import job_record
from ones.slurm_ext.simulated.world import gpus
from ones.slurm_ext.snapshot import NodeRecord, Snapshot

TASK = a_record(7, array_job=7, array_task="3")


def test_a_task_and_those_that_wait_together_are_read() -> None:
    index: dict[str, Any] = {"set": True, "infinite": False, "number": 3}
    read = as_json(TASK) | {"array_task_id": index, "array_task_string": ""}
    assert (job_record(read).array_task, job_record(read).several) == ("3", False)
    unset = {"set": False, "infinite": False, "number": 0}
    read |= {"array_task_id": unset, "array_task_string": "0-2,7"}
    assert (job_record(read).array_task, job_record(read).several) == ("0-2,7", True)
    assert not job_record(as_json(a_record())).several


def test_slurm_is_told_of_the_task_and_not_of_the_whole_array() -> None:
    """By its number alone, Slurm would do it to all tasks of which the array's first job is."""
    slurm = FakeSlurm(TASK)
    cluster = slurm.cluster
    cluster.job(7)
    cluster.hold(7)
    cluster.release(7)
    cluster.update(7, {"NumNodes": "1-1"})
    assert slurm.written == [
        "scontrol hold 7_3",
        "scontrol release 7_3",
        "scontrol update JobId=7_3 NumNodes=1-1",
    ]


def test_tasks_that_are_no_jobs_of_their_own_yet_are_neither_planned_nor_touched() -> None:
    together = a_record(7, array_job=7, array_task="0-3")
    node = NodeRecord(
        name="n1",
        states=frozenset({"IDLE"}),
        gpu_type="v100",
        gpus=4,
        partitions=frozenset({"gpu"}),
    )
    snapshot = Snapshot(taken=0.0, jobs={7: together}, nodes={"n1": node}, switches={})
    assert elastic_jobs(snapshot) == ([], {})
    slurm = FakeSlurm(together)
    with pytest.raises(JobChanged, match="stands for the tasks 0-3 of an array"):
        Actuator(slurm.cluster).perform(Hold(job=7, restarts=0))
    assert slurm.written == []


def test_all_tasks_of_one_array_are_read_at_once() -> None:
    slurm = FakeSlurm(TASK)
    found = read_jobs(slurm, [7])
    assert [job_record(each).array_task for each in found] == ["3"]


def test_of_the_accounting_only_the_task_itself_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "\n".join(
        f"{number}|0|1000|2000|COMPLETED|gres/gpu={gpus}|n1" for number, gpus in ((7, 1), (8, 2))
    )
    commands = Commands()
    monkeypatch.setattr(commands, "run", lambda *_words, **_more: said)
    assert [(run.job, run.gpus) for run in runs_of(commands, [7])] == [(7, 1)]


@pytest.mark.parametrize("policy", ["fifo", "ones"])
def test_each_task_gets_a_size_of_its_own_and_all_come_to_their_end(policy: str) -> None:
    at_work = AtWork(a_world(), policy=policy)
    first = at_work.world.submit("alice", wants=gpus(2), elastic="1-8", array=4, seconds=900.0)
    tasks = [number for number in at_work.world.state.jobs if number >= first]
    assert len(tasks) == 4
    at_work.live(300)
    planned = {int(job.id) for job in at_work.onesd.rounds.published.jobs}
    assert planned == set(tasks)
    assert all(at_work.job(task).state == "RUNNING" for task in tasks)
    at_work.preempt(tasks[0])
    at_work.live(60)
    assert at_work.job(tasks[1]).state == "RUNNING"
    at_work.live(3600, until=lambda: not list(at_work.world.state.alive()))
    assert not list(at_work.world.state.alive())


def test_a_task_keeps_its_index_through_a_move() -> None:
    at_work = AtWork(a_world())
    first = at_work.world.submit("alice", wants=gpus(2), elastic="1-8", array=2)
    at_work.live(60)
    at_work.preempt(first)
    at_work.live(120)
    record = at_work.job(first).record()
    assert replace(record).array_task == "0"
