"""Stage-in jobs run before their jobs; whatever goes wrong, the job starts as without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_slurm import FakeSlurm, a_record
from policy_builders import a_cluster, a_job, a_problem, on

from ones.daemon.config import StagingConfig
from ones.daemon.onesd.books.stages import Staging, in_use
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.deciding import Gate, Question, gated, stage_ins
from ones.policies.guard import History, Limits
from ones.policies.model import Job, JobId, Placement, Problem
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.snapshot import STAGE_MARK, JobRecord, Snapshot
from ones.slurm_ext.staging import StageJobs, stages

MAIN = a_record(1, admin_comment="ONES1:sizes=4;request=4;held=1;stage=9")
STAGE = a_record(9, admin_comment=STAGE_MARK, tres_per_job="", name="ones-stage-in")
CONFIG = StagingConfig(patience=60.0, hold=30.0, lead=100.0)


@dataclass
class Hand:
    """Stands for StageJobs: what was done, and what Slurm refuses."""

    done: list[str] = field(default_factory=list)
    refuses: bool = False
    said: str = ""

    def let_run(self, job: int, *, main: JobRecord, nodes: Sequence[str]) -> None:
        if self.refuses:
            raise SlurmError("scontrol", "no answer")
        self.done.append(f"run {job} for {main.id} on {','.join(nodes)}")

    def cancel(self, job: int) -> None:
        self.done.append(f"cancel {job}")

    def comment(self, _job: int) -> str:
        return self.said


@dataclass
class Site:
    """Staging over a database and a queue of two jobs, at a time that the test sets."""

    folder: Path
    main: JobRecord = MAIN
    stage: JobRecord | None = STAGE
    now: float = 1000.0
    hand: Hand = field(default_factory=Hand)
    job: Job = field(default_factory=lambda: a_job(1, "4", requested=4, nodes=a_cluster()))

    def __post_init__(self) -> None:
        self.store = Store(self.folder / "db")

    @property
    def staging(self) -> Staging:
        """A fresh one each time: nothing may be kept but in the database."""
        return Staging(CONFIG, self.store, cast(Any, self.hand))

    @property
    def snapshot(self) -> Snapshot:
        jobs = [self.main, *([self.stage] if self.stage else [])]
        return Snapshot(taken=self.now, jobs={job.id: job for job in jobs}, nodes={}, switches={})

    def gate(self) -> Gate | None:
        return self.staging.gates([self.job], self.snapshot, now=self.now).get(JobId(1))

    @property
    def planned(self) -> Job:
        """The job as the policy sees it."""
        return gated(self.job, self.gate())

    def begin(self, **planned: int) -> None:
        gate = self.gate()
        waiting = [self.job.id] if gate is not None and gate.to_begin else []
        problem = a_problem([self.job], a_cluster())
        plan = {JobId(1): on(**planned)} if planned else {}
        begin(self.staging, problem, waiting, plan, self.snapshot, now=self.now)

    def slurm(self, **changes: Any) -> None:
        assert self.stage is not None
        self.stage = replace(self.stage, **changes)

    @property
    def may_start(self) -> bool:
        return self.planned.startable


def begin(
    staging: Staging,
    problem: Problem,
    waiting: Iterable[JobId],
    planned: Mapping[JobId, Placement],
    snapshot: Snapshot,
    *,
    now: float,
) -> None:
    """As a round does it: decided first, then done."""
    question = Question(
        problem=problem,
        history=History(),
        limits=Limits(),
        staged=staging.staged(),
        lead=CONFIG.lead,
    )
    where = stage_ins(problem, frozenset(waiting), planned, question)
    staging.begin(where, snapshot, now=now)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_job_waits_for_its_data_and_then_starts_where_they_are(site: Site) -> None:
    assert not site.may_start
    site.begin(n2=4)
    assert site.hand.done == ["run 9 for 1 on n2"]
    site.slurm(held=False, state="RUNNING", nodes="n2")
    assert not site.may_start
    gate = site.gate()
    assert gate is not None
    assert "being staged in by job 9 on n2" in gate.note
    site.slurm(state="COMPLETED")
    assert site.planned.startable
    assert site.planned.nodes == {"n2"}
    site.now += CONFIG.hold + 1
    assert site.planned.nodes == site.job.nodes


def test_without_a_plan_it_runs_where_gpus_are_foretold_to_be_free(site: Site) -> None:
    site.begin()
    assert site.hand.done == ["run 9 for 1 on n1"]


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "NODE_FAIL"])
def test_when_staging_fails_the_job_starts_anywhere_and_says_why(site: Site, state: str) -> None:
    site.hand.said = "data/z: Permission denied"
    site.begin(n2=4)
    site.slurm(held=False, state=state)
    assert site.planned == site.job
    assert "failed: data/z: Permission denied" in site.staging.told(1)


def test_when_staging_takes_too_long_it_is_ended_and_the_job_starts(site: Site) -> None:
    site.begin(n2=4)
    site.slurm(held=False, state="PENDING")
    site.now += CONFIG.patience + 1
    assert site.planned == site.job
    assert site.hand.done[-1] == "cancel 9"
    assert "late" in site.staging.told(1)
    site.slurm(state="COMPLETED", nodes="n2")  # too late is too late
    assert site.planned == site.job


@pytest.mark.parametrize(
    "stage",
    [
        None,
        replace(STAGE, user="mallory"),
        replace(STAGE, admin_comment=""),
        replace(STAGE, admin_comment="ONES1:sizes=4;request=4;held=1"),
    ],
)
def test_a_number_that_is_no_stage_in_job_of_the_same_user_stages_nothing(
    site: Site, stage: JobRecord | None
) -> None:
    site.stage = stage
    assert site.may_start
    site.begin(n2=4)
    assert site.hand.done == []


def test_a_refusal_is_tried_again_in_the_next_round(site: Site) -> None:
    site.hand.refuses = True
    site.begin(n2=4)
    assert not site.may_start
    site.hand.refuses = False
    site.begin(n2=4)
    assert site.hand.done == ["run 9 for 1 on n2"]


@pytest.mark.parametrize(
    "main",
    [
        replace(MAIN, restarts=1),
        replace(MAIN, admin_comment="ONES1:sizes=4;request=4;held=1"),
    ],
)
def test_a_job_without_or_one_that_ran_already_is_not_held_back(
    site: Site, main: JobRecord
) -> None:
    site.main = main
    assert site.planned == site.job


@pytest.mark.parametrize(
    "changes",
    [
        {"tres_per_job": "gres/gpu:4"},
        {"tres_per_node": "gres/gpu:v100:1"},
        {"state": "RUNNING", "held": False, "gpus_on": {"n1": 1}},
    ],
)
def test_a_job_with_gpus_is_no_stage_in_job_whatever_its_mark(changes: dict[str, Any]) -> None:
    assert stages(STAGE)
    assert not stages(replace(STAGE, **changes))


def test_a_stage_in_job_that_nobody_waits_for_is_ended_after_a_while(site: Site) -> None:
    site.staging.tidy(site.snapshot, now=site.now + 1e6)
    assert site.hand.done == []
    site.main = replace(site.main, state="CANCELLED")
    site.staging.tidy(site.snapshot, now=STAGE.submitted + 1)
    assert site.hand.done == []
    site.staging.tidy(site.snapshot, now=STAGE.submitted + 1e6)
    assert site.hand.done == ["cancel 9"]


def test_data_are_needed_until_the_job_has_ended_for_good(site: Site) -> None:
    site.slurm(state="COMPLETED")
    for state, needed in (("PENDING", (9,)), ("RUNNING", (9,)), ("COMPLETED", ())):
        site.main = replace(site.main, state=state)
        assert in_use(site.snapshot) == needed
    site.slurm(state="RUNNING")
    assert in_use(site.snapshot) == (9,)


def test_only_a_held_stage_in_job_of_the_same_user_is_written_to() -> None:
    for wrong in (
        replace(STAGE, user="mallory"),
        replace(STAGE, admin_comment=""),
        replace(STAGE, held=False),
        replace(STAGE, state="RUNNING", held=False),
    ):
        slurm = FakeSlurm(wrong)
        with pytest.raises(SlurmError):
            StageJobs(slurm.cluster).let_run(9, main=MAIN, nodes=["n1"])
        assert slurm.written == []


class Slurmctld:
    """One stage-in job, of which the partition takes some QOS only."""

    def __init__(self, *takes: str) -> None:
        self.takes = takes
        self.record = STAGE
        self.written: dict[str, str] = {}

    def job(self, _number: int) -> Any:
        return SimpleNamespace(record=self.record)

    def update(self, _number: int, fields: Mapping[str, str]) -> None:
        if self.takes and fields.get("QOS", self.record.qos) not in self.takes:
            raise SlurmError("scontrol", "Invalid qos specification")
        self.written = dict(fields)
        self.record = replace(self.record, required_nodes=fields["ReqNodeList"])

    def release(self, _number: int) -> None:
        pass


def test_a_stage_in_job_runs_in_the_reservation_of_its_main_job() -> None:
    main = replace(MAIN, reservation="class", qos="gpus")
    slurm = Slurmctld()
    StageJobs(cast(Any, slurm)).let_run(9, main=main, nodes=["n1"])
    assert slurm.written["ReservationName"] == "class"
    assert "QOS" not in slurm.written  # which may ask for GPUs


def test_its_qos_is_the_main_jobs_where_the_partition_takes_no_other() -> None:
    slurm = Slurmctld("gpus")
    StageJobs(cast(Any, slurm)).let_run(9, main=replace(MAIN, qos="gpus"), nodes=["n1"])
    assert slurm.written["QOS"] == "gpus"
    with pytest.raises(SlurmError, match="Invalid qos"):
        StageJobs(cast(Any, Slurmctld("other"))).let_run(9, main=MAIN, nodes=["n1"])


def test_two_jobs_are_not_promised_the_same_gpus(tmp_path: Path) -> None:
    mains = [
        replace(MAIN, id=1),
        replace(MAIN, id=2, admin_comment="ONES1:sizes=4;request=4;held=1;stage=8"),
    ]
    queue = [*mains, STAGE, replace(STAGE, id=8)]
    snapshot = Snapshot(taken=0.0, jobs={job.id: job for job in queue}, nodes={}, switches={})
    jobs = [a_job(number, "4", requested=4, nodes=a_cluster(2)) for number in (1, 2)]
    store, hand = Store(tmp_path / "db"), Hand()
    for waiting in ([JobId(1)], [JobId(2)]):  # in two rounds; in one it is the same
        staging = Staging(CONFIG, store, cast(Any, hand))
        problem = a_problem(jobs, a_cluster(2))
        begin(staging, problem, waiting, {}, snapshot, now=0.0)
    assert hand.done == ["run 9 for 1 on n1", "run 8 for 2 on n2"]
    together = Staging(CONFIG, Store(tmp_path / "other"), cast(Any, hand))
    problem = a_problem(jobs, a_cluster(2))
    begin(together, problem, [job.id for job in jobs], {}, snapshot, now=0.0)
    assert hand.done[2:] == hand.done[:2]
