"""A job's word is held against Slurm's before it teaches anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ones.daemon.inbox import Inbox
from ones.daemon.learning import Learning
from ones.daemon.metrics import Metrics
from ones.daemon.store import Store
from ones.daemon.wire import NodeReport, Received, Report
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Snapshot

JOB = JobRecord(
    id=7,
    name="train",
    user="alice",
    account="vision",
    partition="gpu",
    qos="normal",
    state="RUNNING",
    restarts=1,
    gpus_on={"n1": 2},
    admin_comment="ONES1:sizes=1-4;request=2;held=1",
)
REPORT = Report(job=7, restarts=1, samples=640, step_seconds=0.2, batch=64, gpus=2)


class World:
    """A store and an inbox, and a Slurm that lists one job on one node."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "db")
        self.inbox = Inbox()
        self.learning = Learning(self.store, self.inbox, Metrics())

    def tell(self, report: Report, *, node: str = "n1", at: float = 1.0) -> None:
        received = Received(at=at, evidence="cgroup", message=report)
        word = NodeReport(node=node, taken=at, interval=2.0, version="0", received=(received,))
        self.inbox.accept(word, now=at)

    def take(self, job: JobRecord = JOB) -> None:
        node = NodeRecord(name="n1", states=frozenset({"MIXED"}), gpu_type="v100", gpus=4)
        self.learning.take(Snapshot(taken=0.0, jobs={7: job}, nodes={"n1": node}, switches={}))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_report_that_fits_makes_the_job_ready_and_teaches_its_speed(world: World) -> None:
    world.tell(REPORT)
    world.take()
    assert world.learning.ready(JOB)
    (seen,) = world.learning.observations()
    assert (seen.gpu_type, seen.nodes, seen.gpus, seen.step_seconds) == ("v100", 1, 2, 0.2)


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, admin_comment=""),
        replace(JOB, state="PENDING"),
        replace(JOB, restarts=2),
        replace(JOB, gpus_on={"n2": 2}),
    ],
    ids=["not opted in", "not running", "another run", "another node"],
)
def test_a_report_that_slurm_contradicts_is_not_used(world: World, job: JobRecord) -> None:
    world.tell(REPORT)
    world.take(job)
    assert not world.learning.ready(job)
    assert world.learning.observations() == []


def test_a_size_that_slurm_did_not_give_teaches_no_speed(world: World) -> None:
    world.tell(Report(job=7, restarts=1, step_seconds=0.001, batch=64, gpus=64))
    world.take()
    assert world.learning.ready(JOB)
    assert world.learning.observations() == []


def test_a_report_from_before_slurm_lists_the_run_is_used_once_it_does(world: World) -> None:
    world.tell(REPORT)
    world.take(replace(JOB, state="PENDING"))
    world.take(JOB)
    assert world.learning.ready(JOB)


def test_a_restarts_cost_is_learnt_once_from_the_report_that_first_has_it(world: World) -> None:
    move = '{"kind": "resize", "restarts": 0}'
    world.store.write("INSERT INTO moves(job, at, open, record) VALUES(7, 0, 0, ?)", move)
    runs = ((0, 10.0, 50.0), (1, 53.0, None))
    for ordinal, started, ended in runs:
        row = {"job": 7, "ordinal": ordinal, "started": started, "ended": ended}
        world.store.put("runs", [{**row, "nodes": "n1", "gpus": 2, "state": "X"}])
    world.tell(Report(job=7, restarts=1), at=54.0)
    world.take()
    for at in (58.0, 60.0):
        world.tell(Report(job=7, restarts=1, samples=64, resumed_seconds=4.0), at=at)
        world.take()
    assert [cost.seconds for cost in world.learning.restart_costs()] == [7.0]


def test_a_new_run_is_not_ready_by_the_word_of_the_last_one(world: World) -> None:
    world.tell(REPORT)
    world.take()
    assert not world.learning.ready(replace(JOB, restarts=2))
