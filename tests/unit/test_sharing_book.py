"""From reports of two jobs on one GPU to what is learnt of them, and why they are parted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import a_record
from policy_builders import PlainSpeed, a_cluster, a_job, a_problem, an_outlook, on

from ones.daemon.config import SharingConfig
from ones.daemon.onesd.books.heard import Inbox
from ones.daemon.onesd.books.needs import NeedsBook
from ones.daemon.onesd.books.pairs import SharingBook
from ones.daemon.onesd.books.sharers import FAMILIES, Sharers
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.moves.pairs import waits_for
from ones.daemon.wire import GpuSample, NodeReport, Received, Report
from ones.policies.model import Job, JobId, Problem
from ones.policies.moves import Move
from ones.policies.parting import partings, without_parted
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Snapshot
from ones.slurm_ext.usage import Usage

MIB = 2**20
CARD = 16384
CONFIG = SharingConfig(allow=True, reports=3)


class Rig:
    """One node of two GPUs, the jobs on it, and an agent that reports from it."""

    def __init__(self, folder: Path, config: SharingConfig = CONFIG) -> None:
        self.store = Store(folder / "db")
        self.config = config
        self.now = 1000.0
        self.records: dict[int, JobRecord] = {}
        self.xid: int | None = None
        self.moving: list[int] = []
        self.fixed: dict[int, str] = {}
        self.start_daemon()

    def start_daemon(self) -> None:
        self.inbox = Inbox()
        self.needs = NeedsBook(self.store, self)  # type: ignore[arg-type]
        self.book = SharingBook(self.store, self.inbox, self.needs, self.config)

    def usage(self, _: Iterable[int]) -> list[Usage]:
        return []  # accounting that comes late

    def job(self, number: int, *, alone: bool = True, **changes: Any) -> None:
        """A job on GPU 0, in shards; by default it had a GPU to itself before, 4000 MiB of it."""
        fields = {
            "name": f"train{number}",
            "state": "RUNNING",
            "held": False,
            "nodes": "n1",
            "gpus_on": {"n1": 1},
            "shares": {"n1": (0,)},
            "tres_per_node": "gres/shard:1",
            "tres_per_job": "",
            "restarts": 1,
            "started": self.now + number,
        }
        self.records[number] = a_record(number, **(fields | changes))
        row = {"job": number, "restarts": 0, "at": 1.0, "user": "alice", "account": "vision"}
        row |= {"family": f"alice/train{number}", "nodes": 1, "gpus": 1, "shared": 0}
        row |= {"resized": 0, "card": CARD, "gpu_memory": 4000.0, "busy": 1.2, "samples": 3}
        if alone:
            self.store.put("needs", [row])

    def snapshot(self) -> Snapshot:
        node = NodeRecord(
            name="n1", states=frozenset(), gpu_type="v100", gpus=2, shards_per_gpu=2, gpus_used=1
        )
        return Snapshot(taken=self.now, jobs=self.records, nodes={"n1": node}, switches={})

    def problem(self) -> Problem:
        nodes = [replace(node, shares=True) for node in a_cluster(1, 2)]
        jobs = [self._job(record, nodes) for record in self.records.values()]
        jobs = [job for job in jobs if job.placement or self.records[int(job.id)].held]
        problem = a_problem(jobs, nodes, now=self.now)
        speed = PlainSpeed(sample_seconds=0.01, fixed=0.0)
        return replace(
            problem, outlooks={job.id: an_outlook(1e5, speed=speed, batch=64.0) for job in jobs}
        )

    def _job(self, record: JobRecord, nodes: Any) -> Job:
        runs = record.state == "RUNNING"
        others = [
            JobId(other.id)
            for other in self.records.values()
            if other.id != record.id and other.shares == record.shares and other.shares
        ]
        return a_job(
            record.id,
            "1-4",
            requested=1,
            nodes=nodes,
            name=record.name,
            user=record.user,
            placement=on(n1=1) if runs else None,
            started=record.started if runs else None,
            fixed=self.fixed.get(record.id, ""),
            share=bool(record.shares),
            beside=others[0] if others else None,
        )

    def round(self, speeds: Mapping[int, float] | None = None, *, memory: float = 8000.0) -> None:
        """A round after the jobs have reported: a step of 64 samples takes 0.64 s alone."""
        self.now += 15
        received = tuple(
            Received(
                at=self.now - 1,
                evidence="cgroup",
                message=Report(job=job, restarts=1, batch=64, gpus=1, step_seconds=0.64 / speed),
            )
            for job, speed in (speeds or {}).items()
        )
        gpus = tuple(
            GpuSample(
                minor=minor,
                uuid=f"GPU-{minor}",
                type="v100",
                memory_total=CARD * MIB,
                memory_used=int(memory * MIB) if minor == 0 else 0,
                xid=self.xid if minor == 0 else None,
                jobs=tuple(self.records) if minor == 0 else (),
            )
            for minor in range(2)
        )
        report = NodeReport(
            node="n1", taken=self.now, interval=15, version="0", gpus=gpus, received=received
        )
        self.inbox.accept(report, now=self.now)
        snapshot, problem = self.snapshot(), self.problem()
        self.book.take(problem, snapshot, now=self.now)
        self.allowed = self.book.pairs(problem, snapshot, now=self.now)
        found = partings(problem, self.book.together(), frozenset(map(JobId, self.moving)))
        self.moves = [(move.job, move.kind, move.reason) for move in found]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    here = Rig(tmp_path)
    here.job(1)
    here.job(2)
    here.round()
    return here


def test_a_pair_is_measured_by_its_reports_and_the_first_one_does_not_count(rig: Rig) -> None:
    (pair,) = rig.book.view()
    assert (pair["first"], pair["second"], pair["expected"]) == (1, 2, [1.0, 1.0])
    rig.round({1: 0.1, 2: 0.1})  # of the time before they met
    for _ in range(2):
        rig.round({1: 0.9, 2: 0.85})
        assert rig.book.view()[0]["measured"] == [None, None]
    rig.round({1: 0.9, 2: 0.85})
    assert rig.book.view()[0]["measured"] == pytest.approx([0.9, 0.85])
    assert rig.moves == []


def test_the_same_report_heard_twice_is_one(rig: Rig) -> None:
    rig.round({1: 0.9, 2: 0.9})
    rig.round({1: 0.9, 2: 0.9})
    for _ in range(10):
        rig.book.take(rig.problem(), rig.snapshot(), now=rig.now)
    assert rig.book.view()[0]["measured"] == [None, None]


def test_what_a_pair_has_shown_is_what_the_next_are_expected_to_do(rig: Rig) -> None:
    for _ in range(4):
        rig.round({1: 0.85, 2: 0.85})
    rig.start_daemon()
    rig.records = {}
    for number, name in ((3, "train1"), (4, "train2")):
        rig.job(number, name=name, shares={}, tres_per_node="gres/gpu:1")
    rig.round()
    assert max(rig.allowed[JobId(3), JobId(4)]) < 0.95


def test_a_pair_that_is_slower_than_expected_is_parted_and_so_are_others_like_it(rig: Rig) -> None:
    for _ in range(4):
        rig.round({1: 0.95, 2: 0.3})
    reason = "separated from job 1: job 2 runs at 30% of its speed alone, expected 100%"
    assert rig.moves == [(2, "preempt", reason)]
    assert rig.allowed == {}
    rig.start_daemon()  # it is remembered
    del rig.records[2]
    rig.job(3, name="train2", state="PENDING", held=True, gpus_on={}, shares={})
    rig.round()
    assert (JobId(1), JobId(3)) not in rig.allowed
    assert rig.book.view()[0]["ended"] == rig.now


def test_a_pair_at_the_edge_of_the_tolerance_stays(rig: Rig) -> None:
    for _ in range(8):
        rig.round({1: 0.81, 2: 0.81})
    assert rig.moves == []


def test_memory_beyond_what_was_to_stay_free_parts_a_pair(rig: Rig) -> None:
    rig.round(memory=0.89 * CARD)
    assert rig.moves == []
    rig.round(memory=0.92 * CARD)
    ((job, kind, reason),) = rig.moves
    assert (job, kind) == (2, "preempt")
    assert "92% of its memory, expected 90%" in reason
    assert rig.book.closed(rig.now) == {}


def test_an_xid_parts_a_pair_and_closes_the_gpu_for_a_day(rig: Rig) -> None:
    rig.xid = 31
    rig.round()
    assert rig.moves[0][:2] == (2, "preempt")
    assert rig.book.closed(rig.now) == {("n1", 0): "XID 31"}
    # Their likes may share another GPU, but nobody the one that job 1 is left on.
    del rig.records[2]
    rig.job(3, state="PENDING", held=True, gpus_on={}, shares={})
    rig.job(4, state="PENDING", held=True, gpus_on={}, shares={})
    rig.round()
    assert rig.allowed.keys() == {(3, 4)}
    assert rig.book.closed(rig.now + 86401) == {}


def test_an_xid_of_before_they_met_is_none_of_theirs(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.xid = 31
    rig.job(1)
    rig.job(2)
    rig.round()
    rig.round()
    assert rig.moves == []
    rig.xid = 48
    rig.round()
    assert len(rig.moves) == 1


def test_a_job_that_runs_out_of_memory_closes_the_gpu_and_parts_its_kind(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SharingConfig(allow=True, spare_memory=0.0))
    rig.job(1)
    rig.job(2)
    rig.round(memory=0.99 * CARD)
    rig.records[2] = replace(rig.records[2], state="FAILED", gpus_on={}, shares={})
    rig.round()
    assert rig.book.closed(rig.now) == {("n1", 0): "job 2 ran out of memory beside job 1"}
    assert "ran out of memory" in rig.book.view()[0]["parted"]


def test_a_job_that_fails_with_memory_to_spare_closes_nothing(rig: Rig) -> None:
    rig.records[2] = replace(rig.records[2], state="FAILED", gpus_on={}, shares={})
    rig.round()
    assert rig.book.closed(rig.now) == {}
    assert rig.book.view()[0]["parted"] == ""


def test_a_pair_is_parted_once_and_not_both_of_it(rig: Rig) -> None:
    rig.fixed = {2: "preempt under way"}
    rig.moving = [2]
    for _ in range(20):
        rig.round(memory=0.95 * CARD)
        assert rig.moves == []


def test_the_other_one_goes_where_the_later_one_never_says_that_it_can(rig: Rig) -> None:
    rig.fixed = {2: "it has not yet said that it can save a checkpoint"}
    rig.round(memory=0.95 * CARD)
    assert rig.moves == []
    for _ in range(10):
        rig.round()
    assert [move[0] for move in rig.moves] == [1]


def test_two_that_were_not_to_meet_are_parted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.job(1)
    rig.job(2, alone=False)
    rig.round()
    assert rig.moves == [(2, "preempt", "separated from job 1: they were not to meet on one GPU")]
    assert rig.book.unknown == {2: "how much GPU memory it needs"}


def test_nobody_may_share_where_it_is_off(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SharingConfig())
    for number in (1, 2):
        rig.job(number, state="PENDING", held=True, gpus_on={}, shares={})
    rig.round()
    assert rig.allowed == {}


def test_jobs_for_more_than_one_gpu_do_not_share(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in (1, 2):
        rig.job(number, state="PENDING", held=True, gpus_on={}, shares={})
    rig.round()
    snapshot, problem = rig.snapshot(), rig.problem()
    assert rig.book.pairs(problem, snapshot, now=rig.now).keys() == {(1, 2)}
    wide = replace(problem, jobs=(problem.jobs[0], replace(problem.jobs[1], requested=2)))
    assert rig.book.pairs(wide, snapshot, now=rig.now) == {}


def a_move(job: int, other: int | None, kind: str = "start") -> Move:
    beside = None if other is None else JobId(other)
    return Move(job=JobId(job), kind=kind, target=on(n1=1), beside=beside)  # type: ignore[arg-type]


def test_the_host_goes_first_then_the_guest_and_nobody_else_at_that_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.job(1, shares={}, tres_per_node="gres/gpu:1")
    rig.job(2, state="PENDING", held=True, gpus_on={}, shares={})
    jobs = {job.id: job for job in rig.problem().jobs}
    host, guest = a_move(1, 2, "resize"), a_move(2, 1)
    assert waits_for(host, rig.snapshot(), jobs, []) == ""
    assert waits_for(guest, rig.snapshot(), jobs, []) == "job 1 comes first"
    under_way = MoveRecord(
        id=1, job=1, kind="resize", restarts=1, target=on(n1=1), shards=1, begun_at=0.0
    )
    assert "on its way" in waits_for(guest, rig.snapshot(), jobs, [under_way])
    rig.job(1)
    assert waits_for(guest, rig.snapshot(), jobs, []) == ""
    assert "job 1 is alone" in waits_for(a_move(3, 4), rig.snapshot(), jobs, [])
    assert waits_for(a_move(3, None), rig.snapshot(), jobs, []) == ""


def test_a_parting_comes_before_what_was_planned_for_the_two() -> None:
    parting = Move(job=JobId(2), kind="preempt")
    planned = [a_move(2, None, "resize"), a_move(3, 2), a_move(4, None)]
    assert without_parted(planned, [parting]) == [parting, planned[2]]


def test_whoever_asks_for_some_jobs_gets_their_pairs_however_many_others_there_are(
    rig: Rig,
) -> None:
    (row,) = rig.store.rows("SELECT * FROM pairs")
    later = {**dict(row), "at": row["at"] + 1, "first": 3, "second": 4}
    rig.store.put("pairs", [later | {"id": 10 + number} for number in range(250)])
    assert [pair["second"] for pair in rig.book.view(frozenset({2, 9}))] == [2]
    assert rig.book.view(frozenset()) == []
    assert len(rig.book.view()) == 200


def test_what_families_need_is_not_remembered_for_ever(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    sharers = Sharers(rig.inbox, rig.needs)
    for number in range(3 * FAMILIES):
        job = a_job(1, name=f"job-{number}")
        sharers.sharer(job, a_problem([job]), {}, now=float(number))
    assert len(sharers._families) <= FAMILIES
