"""What the mover writes down for a move that Slurm has no part in, and for how long it is at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from fake_slurm import FakeSlurm, a_record
from onesd_builders import the_books
from policy_builders import a_job, on

from ones.daemon.onesd.books.holds import HoldsBook
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves.restart import Mover
from ones.daemon.onesd.moves.turns import Turns
from ones.policies.model import JobId
from ones.policies.moves import Move
from ones.slurm_ext.actions import Action
from ones.slurm_ext.actuator import Actuator
from ones.slurm_ext.elastic import held_for_us
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.mark import Mark
from ones.slurm_ext.moves import MoveLimits
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Snapshot


def a_mover(store: Store, actuator: Actuator) -> Mover:
    books = the_books(store)
    return Mover(books, actuator, Metrics(), limits=MoveLimits(), clock=lambda: 0.0)


def test_a_new_batch_is_leased_and_nothing_else_is_begun(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    mover = a_mover(store, cast(Any, None))  # a hand on Slurm would be a mistake
    here = on(n1=2)
    tune = Move(job=JobId(1), kind="tune", target=here, batch=256, reason="better")
    record = a_record(1, state="RUNNING", held=False, gpus_on={"n1": 2})
    mover.begin(tune, a_job(1, placement=here), record)
    row = store.row("SELECT gpus, batch FROM leases WHERE job = 1")
    assert row is not None
    assert tuple(row) == (2, 256)
    assert mover.open() == []
    assert store.rows("SELECT * FROM moves") == []


def test_a_stranded_job_is_held_and_no_more_bound_to_its_lost_node(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    lost = a_record(1, held=False, restarts=1, required_nodes="n1", reason="ReqNodeNotAvail")
    slurm = FakeSlurm(lost)
    a_mover(store, Actuator(slurm.cluster)).take_back(lost, "its node is gone")
    assert (slurm.job.held, slurm.job.required_nodes) == (True, "")
    holds = HoldsBook(store).of([1], now=0.0)
    assert held_for_us(slurm.job, Mark.parse(slurm.job.admin_comment), holds)


def test_a_stranded_job_is_taken_back_once_slurm_answers(tmp_path: Path) -> None:
    lost = a_record(1, held=False, restarts=1, required_nodes="n1", reason="ReqNodeNotAvail")
    slurm = FakeSlurm(lost, down=True)
    mover = a_mover(Store(tmp_path / "db"), Actuator(slurm.cluster))
    mover.take_back(lost, "its node is gone")
    slurm.down = False
    mover.take_back(lost, "its node is gone")
    assert slurm.job.held


class SlowSlurm(Actuator):
    """It takes a second to refuse whatever it is asked for."""

    def __init__(self) -> None:
        self.now = 2000.0
        self.asked: list[int] = []

    def perform(self, action: Action) -> JobRecord | None:
        self.now += 1.0
        self.asked.append(action.job)
        raise SlurmError("scontrol", "busy")


def test_a_tick_that_took_its_time_is_gone_on_with_in_the_next_and_nobody_is_passed_over(
    tmp_path: Path,
) -> None:
    slurm = SlowSlurm()
    books = the_books(Store(tmp_path / "db"))
    mover = Mover(books, slurm, Metrics(), limits=MoveLimits(), clock=lambda: slurm.now)
    jobs = {number: a_record(number) for number in range(1, 8)}
    nodes = {"n1": NodeRecord(name="n1", states=frozenset({"IDLE"}), gpus=32, gpu_type="v100")}
    snapshot = Snapshot(taken=slurm.now, jobs=jobs, nodes=nodes, switches={})
    for number, record in jobs.items():
        start = Move(job=JobId(number), kind="start", target=on(n1=4), reason="its turn")
        mover.begin(start, a_job(number), record)
    asked = []
    for _ in range(3):
        mover.tick(snapshot, most=2.5)
        asked.append(tuple(slurm.asked))
        slurm.asked.clear()
    assert asked == [(1, 2, 3), (4, 5, 6), (7, 1, 2)]


def test_who_was_passed_over_for_want_of_time_comes_first_the_next_time() -> None:
    now = 0.0
    turns, had = Turns(lambda: now), list[list[int]]()
    for there in ({3, 1, 2, 4}, {1, 4, 5}, {1, 4, 5}):
        had.append([])
        for number in turns.of(there, most=1.5):
            had[-1].append(number)
            now += 1.0
    assert had == [[1, 2], [4, 5], [1, 4]]
