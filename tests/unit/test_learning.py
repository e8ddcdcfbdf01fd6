"""A job's word is held against Slurm's before it teaches anything."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_slurm import a_record
from onesd_builders import the_books

from ones.daemon.onesd.books import reports as learning
from ones.daemon.onesd.books.reports import Learning
from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import NodeReport, Received, Report
from ones.policies.model import Batch, JobId
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Snapshot

JOB = a_record(
    7,
    state="RUNNING",
    held=False,
    restarts=1,
    gpus_on={"n1": 2},
    admin_comment="ONES1:sizes=1-4;request=2;held=1",
)
REPORT = Report(job=7, restarts=1, samples=640, step_seconds=0.2, batch=64, gpus=2)

TERMS = {"batch_submitted": 64, "batch_most": 512, "batch_most_per_gpu": 128}
DECLARING = msgspec.structs.replace(REPORT, **TERMS)


A_ROW = {
    "job": 7,
    "name": "train",
    "user": "alice",
    "account": "vision",
    "sizes": "1-4",
    "requested": 2,
    "submitted": 0.0,
    "state": "RUNNING",
    "family": "alice/train",
}


class World:
    """A store and an inbox, and a Slurm that lists one job on one node."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "db")
        books = the_books(self.store)
        self.inbox, self.learning = books.heard, books.reports

    def tell(self, report: Report, *, node: str = "n1", at: float = 1.0) -> None:
        received = Received(at=at, evidence="cgroup", message=report)
        word = NodeReport(node=node, taken=at, interval=2.0, version="0", received=(received,))
        self.inbox.accept(word, now=at)

    def rows(self, table: str) -> list[sqlite3.Row]:
        return self.store.rows(f"SELECT * FROM {table} ORDER BY at")

    def resized(self, outcome: str = "done", *, lacked_at: float | None = None) -> None:
        """The job was stopped once, for another size."""
        self.store.write(
            "INSERT INTO moves(job, at, open, record, kind, outcome)"
            " VALUES(7, 0, 0, ?, 'resize', ?)",
            json.dumps({"lacked_at": lacked_at}),
            outcome,
        )

    def ran_until(self, ended: float | None) -> None:
        """The job's first run, as the accounting has it."""
        row = {"job": 7, "ordinal": 0, "started": 10.0, "ended": ended}
        self.store.put("runs", [{**row, "nodes": "n1", "gpus": 2, "state": "REQUEUED"}])

    def after_a_restart(self) -> Learning:
        return the_books(self.store).reports

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
    (row,) = world.rows("observations")
    seen = {name: row[name] for name in ("gpu_type", "nodes", "gpus", "step_seconds")}
    assert seen == {"gpu_type": "v100", "nodes": 1, "gpus": 2, "step_seconds": 0.2}


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
    assert world.rows("observations") == []


def test_a_size_that_slurm_did_not_give_teaches_no_speed(world: World) -> None:
    world.tell(Report(job=7, restarts=1, step_seconds=0.001, batch=64, gpus=64))
    world.take()
    assert world.learning.ready(JOB)
    assert world.rows("observations") == []


def test_a_report_from_before_slurm_lists_the_run_is_used_once_it_does(world: World) -> None:
    world.tell(REPORT)
    world.take(replace(JOB, state="PENDING"))
    world.take(JOB)
    assert world.learning.ready(JOB)


def test_a_restarts_cost_is_learnt_once_from_the_report_that_first_has_it(world: World) -> None:
    world.resized()
    world.ran_until(50.0)
    job = replace(JOB, started=53.0)  # which the accounting is not asked about while it runs
    world.tell(Report(job=7, restarts=1), at=54.0)
    world.take(job)
    for at in (58.0, 60.0):
        world.tell(Report(job=7, restarts=1, samples=64, resumed_seconds=4.0), at=at)
        world.take(job)
    assert [cost["seconds"] for cost in world.rows("restart_costs")] == [7.0]
    for each in (world.learning, world.after_a_restart()):
        assert each.experience().restart_cost(JobId(8), "alice/train", prior=30.0) == 7.0


def test_a_restart_of_which_the_accounting_says_nothing_yet_teaches_no_cost(world: World) -> None:
    world.resized()
    world.ran_until(None)
    world.tell(Report(job=7, restarts=1, samples=64, resumed_seconds=4.0))
    world.take()
    assert world.rows("restart_costs") == []


def test_waiting_for_others_to_leave_is_no_part_of_a_restarts_cost(world: World) -> None:
    world.resized(lacked_at=170.0)
    world.ran_until(50.0)
    world.tell(Report(job=7, restarts=1, samples=64, resumed_seconds=4.0))
    world.take(replace(JOB, started=173.0))
    assert [cost["seconds"] for cost in world.rows("restart_costs")] == [7.0]


def test_a_resize_that_did_not_start_the_job_again_teaches_no_cost(world: World) -> None:
    world.resized("expired: 4 GPUs on n[2-3] did not become free; held")
    world.ran_until(50.0)
    world.tell(Report(job=7, restarts=1, samples=64, resumed_seconds=4.0))
    world.take(replace(JOB, started=650.0))  # a later plan has
    assert world.rows("restart_costs") == []


def test_a_new_run_is_not_ready_by_the_word_of_the_last_one(world: World) -> None:
    world.tell(REPORT)
    world.take()
    assert not world.learning.ready(replace(JOB, restarts=2))


def test_a_job_that_saves_no_more_is_not_ready_until_a_later_report(world: World) -> None:
    world.tell(REPORT)
    world.tell(msgspec.structs.replace(REPORT, checkpoints=False), at=2.0)
    world.take()
    assert not world.learning.ready(JOB)
    world.tell(REPORT, at=3.0)
    world.take()
    assert world.learning.ready(JOB)


def test_nothing_is_kept_in_memory_of_jobs_that_slurm_has_forgotten(world: World) -> None:
    world.tell(REPORT)
    world.take()
    gone = Snapshot(taken=1.0, jobs={}, nodes={}, switches={})
    world.inbox.forget_jobs(gone.jobs)
    world.learning.take(gone)
    assert not world.learning._seen
    assert not world.learning._crowded
    experience = world.learning.experience()
    assert not experience._jobs, "it was cancelled, say: no end tells of it"
    assert len(experience.of_family("alice/train")) == 1


def test_a_job_that_slurm_lists_in_words_that_cant_be_read_is_not_forgotten(world: World) -> None:
    world.tell(REPORT)
    world.take()
    odd = Snapshot(taken=1.0, jobs={}, nodes={}, switches={}, unread={"job 7": "no state"})
    world.learning.take(odd)
    assert set(world.learning.experience()._jobs) == {7}


NOISY = Report(
    job=7,
    restarts=1,
    samples=640,
    epoch=3.4,
    step_seconds=0.2,
    sync_seconds=0.05,
    passes=2,
    batch=64,
    gpus=2,
    loss=2.5,
    grad_sqr=0.5,
    grad_var=4.0,
)


def test_gradients_and_speed_are_kept_by_epoch_and_batch_and_known_after_a_restart(
    world: World,
) -> None:
    for at, epoch, var in ((1.0, 3.1, 4.0), (2.0, 3.9, 5.0), (3.0, 4.0, 6.0)):
        world.tell(msgspec.structs.replace(NOISY, epoch=epoch, grad_var=var), at=at)
        world.take()
    kept = [(row["epochs"], row["batch"], row["var"]) for row in world.rows("gradients")]
    assert kept == [(3, 64, 5.0), (4, 64, 6.0)]
    (seen,) = world.rows("observations")
    assert (seen["passes"], seen["sync_seconds"]) == (2, 0.05)
    for each in (world.learning, world.after_a_restart()):
        family = each.experience().of_family("alice/train")
        assert family.noise.last is not None
        assert (family.noise.last.epochs, family.noise.last.ratio) == (4, 12.0)
        (point,) = family.points
        assert (point.passes, point.local, point.step_seconds) == (2, 16.0, 0.2)


def test_a_job_that_floods_keeps_its_latest_gradients_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "MOST_GRADIENTS", 3)
    for epoch in range(6):
        world.tell(msgspec.structs.replace(NOISY, epoch=float(epoch)), at=float(epoch + 1))
        world.take()
    assert [row["epochs"] for row in world.rows("gradients")] == [3, 4, 5]


def test_a_job_that_floods_with_batches_keeps_its_latest_observations_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "MOST_OBSERVATIONS", 3)
    for batch in range(10, 16):
        world.tell(msgspec.structs.replace(REPORT, batch=batch), at=float(batch))
        world.take()
    assert [row["batch"] for row in world.rows("observations")] == [13, 14, 15]


def test_gradients_at_a_size_that_slurm_did_not_give_teach_nothing(world: World) -> None:
    world.tell(msgspec.structs.replace(NOISY, gpus=1))
    world.take()
    assert world.rows("gradients") == []


def test_the_first_loss_and_the_last_outlast_reports_that_say_none(world: World) -> None:
    world.store.put("jobs", [A_ROW])
    for at, loss in ((1.0, 2.5), (2.0, 1.5), (3.0, None)):
        world.tell(msgspec.structs.replace(NOISY, loss=loss, accuracy=None), at=at)
        world.take()
    told = world.learning.progress()[JobId(7)]
    assert (told.initial_loss, told.loss, told.accuracy) == (2.5, 1.5, None)


def test_a_job_that_tunes_has_the_batch_of_its_lease_at_once_and_others_what_they_say(
    world: World,
) -> None:
    world.store.put("leases", [{"job": 7, "sizes": "1-4", "gpus": 2, "batch": 256}])
    world.tell(DECLARING, at=1.0)
    world.take()
    batches = Batch(submitted=64, most=512, most_per_gpu=128, initial=64)
    assert world.learning.batches(JOB) == (64, batches)
    world.tell(msgspec.structs.replace(DECLARING, tunes=True), at=2.0)
    world.take()
    assert world.learning.batches(JOB) == (256, replace(batches, tunes=True))
    assert world.learning.batches(replace(JOB, gpus_on={"n1": 4}))[0] == 64


def test_a_job_that_does_not_take_the_batch_it_is_given_keeps_its_own_and_is_named(
    world: World,
) -> None:
    """Else it would be restarted for it again and again."""
    world.store.put("leases", [{"job": 7, "sizes": "1-4", "gpus": 2, "batch": 256}])
    for at in (1.0, 2.0):
        assert world.learning.contradictions == {}
        world.tell(DECLARING, at=at)
        world.take()
        batch, terms = world.learning.batches(JOB)
    assert (batch, terms) == (64, None)
    assert "was given a batch of 256 and still has 64" in world.learning.contradictions[JobId(7)]
    world.tell(msgspec.structs.replace(DECLARING, batch=250), at=3.0)  # rounded to its workers
    world.take()
    assert world.learning.batches(JOB)[1] is not None
    assert world.learning.contradictions == {}


def test_a_batch_is_not_missed_while_the_job_moves_nor_at_another_size(world: World) -> None:
    world.store.put("leases", [{"job": 7, "sizes": "1-4", "gpus": 4, "batch": 256}])
    for at in (1.0, 2.0):
        world.tell(DECLARING, at=at)
        world.take()
    assert world.learning.batches(JOB)[1] is not None
    world.store.write("UPDATE leases SET gpus = 2")
    world.store.put("moves", [{"job": 7, "at": 2.0, "open": 1, "record": "{}"}])
    for at in (3.0, 4.0):
        world.tell(DECLARING, at=at)
        world.take()
    assert world.learning.batches(JOB)[1] is not None


def test_a_batch_too_large_for_the_smallest_size_does_not_bar_the_job_from_it(
    world: World,
) -> None:
    limits = {"batch_submitted": 64, "batch_most": 512, "batch_most_per_gpu": 32}
    world.tell(msgspec.structs.replace(REPORT, **limits))
    world.take()
    assert world.learning.batches(JOB)[1] == Batch(submitted=64, most=512, most_per_gpu=32)


def test_a_contradictory_report_is_not_used_for_the_batch_and_is_named(world: World) -> None:
    """Also after a restart of onesd, which reads it from the database."""
    limits = {"batch_submitted": 64, "batch_most": 32, "batch_most_per_gpu": 64, "tunes": True}
    world.tell(msgspec.structs.replace(REPORT, **limits))
    world.take()
    for each in (world.learning, world.after_a_restart()):
        assert each.batches(JOB) == (64, None)
        assert "batch_submitted 64" in each.contradictions[JobId(7)]
    world.tell(msgspec.structs.replace(REPORT, **limits | {"batch_most": 128}), at=2.0)
    world.take()
    assert world.learning.batches(JOB)[1] is not None
    assert world.learning.contradictions == {}


def test_a_job_whose_terms_leave_it_no_batch_at_its_sizes_keeps_its_own(world: World) -> None:
    limits = {"batch_submitted": 2, "batch_most": 2, "batch_most_per_gpu": 64}
    world.tell(msgspec.structs.replace(REPORT, **limits))
    world.take()
    assert world.learning.batches(JOB, least=4) == (64, None)
    assert "4 GPUs" in world.learning.contradictions[JobId(7)]
    world.learning.end(replace(JOB, state="CANCELLED"), 9.0)()
    assert world.learning.contradictions == {}


def test_a_report_from_a_node_that_slurm_has_forgotten_teaches_no_speed(world: World) -> None:
    spread = replace(JOB, gpus_on={"n1": 1, "n9": 1})
    world.tell(REPORT)
    world.take(spread)
    assert world.learning.ready(spread)
    assert world.rows("observations") == []


def test_a_kept_report_that_cant_be_read_stops_nothing(world: World) -> None:
    world.store.put("jobs", [A_ROW])
    world.tell(REPORT)
    world.take()
    world.store.write('UPDATE reports SET report = \'{"op": "other"}\'')
    assert world.learning.progress() == {}
    assert world.learning.report(JOB) is None
    assert world.learning.batches(JOB) == (None, None)
    world.learning.end(replace(JOB, state="COMPLETED"), 9.0)()
    assert world.rows("finished") == []


def test_a_finished_job_teaches_its_familys_length_once(world: World) -> None:
    world.tell(REPORT)
    world.take()
    world.learning.end(replace(JOB, state="COMPLETED"), 9.0)()
    for each in (world.learning, world.after_a_restart()):
        assert list(each.experience().of_family("alice/train").lengths) == [640.0]


def test_a_batch_of_reports_that_cannot_be_written_is_written_later_but_for_the_one_at_fault(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {number: replace(JOB, id=number) for number in (7, 8, 9)}
    node = NodeRecord(name="n1", states=frozenset({"MIXED"}), gpu_type="v100", gpus=8)
    snapshot = Snapshot(taken=0.0, jobs=jobs, nodes={"n1": node}, switches={})
    for number in jobs:
        world.tell(msgspec.structs.replace(REPORT, job=number))
    keep = Learning._keep

    def fails_once(self: Learning, record: JobRecord, *rest: Any, **more: Any) -> Any:
        if record.id == 8:
            raise sqlite3.OperationalError("database or disk is full")
        return keep(self, record, *rest, **more)

    monkeypatch.setattr(Learning, "_keep", fails_once)
    with pytest.raises(sqlite3.OperationalError):
        world.learning.take(snapshot)
    assert world.rows("reports") == []
    assert not world.learning.experience().of_job(JobId(7)).points
    world.learning.take(snapshot)
    assert [row["job"] for row in world.rows("reports")] == [7, 9]
    assert world.learning.experience().of_job(JobId(7)).points
