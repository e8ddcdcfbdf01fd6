"""What onesd does about live jobs: orders from the journal, costs learnt, left-overs ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onesd_builders import the_books
from test_elastic import a_cluster
from test_satellites import BASE, part

from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves.live import GRACE, PATIENCE, SILENCE, LiveMover
from ones.daemon.wire import Live, NodeReport, Received
from ones.policies.model import JobId, Placement
from ones.policies.moves import Move
from ones.slurm_ext.actions import FIRST, GiveBack
from ones.slurm_ext.actuator import JobChanged
from ones.slurm_ext.live_moves import LiveLimits, LiveMove
from ones.slurm_ext.satellites import attach
from ones.slurm_ext.snapshot import JobRecord, Snapshot

LIMITS = LiveLimits(room=10, order=20, answer=10)


class Hand:
    """Cancels satellites, or finds that they have changed."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.first: list[int] = []
        self.refuses = False
        self.done: list[object] = []

    def perform(self, action: object) -> None:
        self.done.append(action)

    def put_satellite_first(self, number: int) -> None:
        self.first.append(number)
        if self.refuses:
            raise JobChanged(number, "is no satellite")

    def end_satellite(self, number: int) -> None:
        self.ended.append(number)
        if self.refuses:
            raise JobChanged(number, "is no satellite")


class World:
    """onesd's side of live moves on a database, with words of a job's launcher."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.store, self.hand = Store(folder / "db"), Hand()
        self.job = BASE
        self.others: list[JobRecord] = []
        self.again()
        self.store.put("leases", [{"job": 1, "sizes": "1-8"}])

    def again(self) -> None:
        """onesd is started anew, with nothing but its database."""
        hand: Any = self.hand
        books = the_books(self.store)
        self.inbox, self.learning = books.heard, books.reports
        self.mover = LiveMover(books, hand, Metrics(), limits=LIMITS, clock=lambda: self.now)

    def say(self, **fields: Any) -> None:
        message = Live(job=1, **fields)
        received = (Received(at=self.now, evidence="cgroup", message=message),)
        report = NodeReport(node="n1", taken=self.now, interval=2.0, version="0", received=received)
        self.inbox.accept(report, now=self.now)

    @property
    def snapshot(self) -> Snapshot:
        return attach(a_cluster(self.job, *self.others))

    def begin(self, **gpus_on: int) -> None:
        move = Move(job=JobId(1), kind="resize", target=Placement.of(gpus_on), batch=64)
        self.mover.begin(move, self.job)

    def tick(self) -> None:
        self.mover.tick(self.snapshot, {})
        self.mover.clean(self.snapshot)

    def give_up(self, **said: Any) -> None:
        """A round in which the job has said this, when nothing else is under way."""
        self.say(**said)
        self.mover.give_up_nodes(self.snapshot, [move.job for move in self.mover.open()])

    def order(self) -> Any:
        return self.mover.order(1, self.job)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_order_is_told_until_it_is_done_and_by_an_onesd_that_was_killed_as_well(
    world: World,
) -> None:
    world.say()
    world.begin(n1=1, n2=2)
    assert world.order() is None
    world.tick()
    order = world.order()
    assert (order.number, order.keep, order.batch, order.gpu_type) == (100, (), 64, "v100")
    assert [(each.node, each.gpus) for each in order.add] == [("n2", 2)]
    world.again()
    world.tick()
    assert world.order() == order
    world.others = [part(2)]
    world.say(order=100, state="done", parts={"2": 2}, pause=0.25)
    world.tick()
    assert world.order() is None
    assert world.mover.open() == []
    row = world.store.row("SELECT gpus, batch FROM leases WHERE job = 1")
    assert row is not None
    assert tuple(row) == (3, 64)
    assert world.learning.experience().live_cost(JobId(1), None, prior=9.0) == 1.0  # the least


def test_a_node_is_given_back_by_an_onesd_that_was_killed_just_before_as_well(
    world: World,
) -> None:
    own = {"n1": 1, "n2": 2}
    world.job = replace(BASE, nodes="n[1-2]", gpus_on=own, batch_host="n1")
    world.say(own={"n2": 2})
    assert world.mover.keeps(world.job) == Placement.of({"n1": 1})
    world.begin(n1=1)
    world.tick()
    assert world.order().leave == ("n2",)
    assert world.hand.done == []
    world.again()
    world.say(order=100, state="done", own={"n2": 0})
    for _ in range(2):
        world.tick()
    given = GiveBack(job=1, restarts=0, nodes=("n2",))
    assert world.hand.done == [given, given]  # until Slurm shows it
    world.again()
    world.say(order=100, state="done", own={"n2": 0})
    world.job = replace(world.job, nodes="n1", gpus_on={"n1": 1})
    world.tick()
    assert world.hand.done == [given, given]
    assert world.mover.open() == []
    row = world.store.row("SELECT record FROM moves")
    assert row is not None
    assert LiveMove.from_json(row["record"]).outcome == "done"


def test_a_node_of_a_jobs_own_that_lost_its_launcher_is_given_back_after_a_moment(
    world: World,
) -> None:
    world.job = replace(BASE, nodes="n[1-2]", gpus_on={"n1": 1, "n2": 2}, batch_host="n1")
    for workers in (1, 0):
        world.give_up(own={"n2": workers})
        world.now += GRACE - 1
    world.give_up(own={"n2": 0})
    assert world.mover.open() == []
    world.now += 2
    world.give_up(own={"n2": 0}, order=7, state="working")
    assert world.mover.open() == []  # it may be about to come
    for _ in range(2):
        world.now += GRACE + 1
        world.give_up(own={"n2": 0})
    (move,) = world.mover.open()
    assert dict(move.target.gpus_on) == {"n1": 1}
    assert move.reason == "nothing of it is left on n2"
    world.give_up(own={"n2": 0})
    assert world.mover.open() == [move]


def test_a_job_is_able_by_its_launchers_fresh_word_in_this_very_run(world: World) -> None:
    assert not world.mover.able(world.job)
    world.say()
    assert world.mover.able(world.job)
    assert not world.mover.able(replace(world.job, restarts=1))
    world.now += SILENCE + 1
    assert not world.mover.able(world.job)
    world.say(able=False)
    assert not world.mover.able(world.job)
    assert world.mover.silent(world.job) == ""


def test_a_live_job_is_not_restarted_because_onesd_has_not_heard_of_it_yet(world: World) -> None:
    world.say()
    assert world.mover.able(world.job)
    world.now += 3600.0
    world.again()
    assert "was not heard" in world.mover.silent(world.job)
    world.now += PATIENCE
    assert world.mover.silent(world.job) == ""


def test_satellites_of_a_job_that_ended_are_cancelled_and_no_other_job_is(world: World) -> None:
    plain = replace(part(3), admin_comment="")
    world.job = replace(BASE, state="CANCELLED", gpus_on={})
    world.others = [part(2), plain]
    world.tick()
    assert world.hand.ended == [2]
    world.tick()
    assert world.hand.ended == [2]  # it is given a moment
    world.now += 11.0
    world.hand.refuses = True
    world.tick()
    assert world.hand.ended == [2, 2]


def test_a_satellite_that_its_job_does_not_know_is_cancelled_after_a_moment(world: World) -> None:
    world.others = [part(2), part(3)]
    world.say(parts={"2": 2, "node2": 1})  # a launcher of another release, or a strange one
    world.tick()
    assert world.hand.ended == []
    world.now += GRACE + 1
    world.say(parts={"2": 2})
    world.tick()
    assert world.hand.ended == [3]


def test_what_comes_by_the_order_under_way_is_waited_for(world: World) -> None:
    world.say()
    world.begin(n1=1, n2=2)
    world.tick()
    world.others = [part(2, state="PENDING", gpus_on={})]
    for _ in range(3):
        world.now += GRACE / 4
        world.say(order=100, state="working")
        world.tick()
    assert world.hand.ended == []


def test_a_satellite_behind_others_in_slurms_queue_is_put_before_them(world: World) -> None:
    world.say()
    world.begin(n1=1, n2=2)
    world.tick()
    asks = {"tres_per_node": "gres/gpu:2", "tres_per_job": "", "required_nodes": "n2"}
    ours = "ONES1S:base=1;restarts=0;order=100"
    behind = part(2, state="PENDING", held=False, gpus_on={}, reason="Priority", **asks)
    world.others = [replace(behind, admin_comment=ours)]
    world.say(order=100, state="working")
    world.hand.refuses = True  # it changes under our hands: looked at again
    world.tick()
    world.tick()
    assert world.hand.first == [2, 2]
    world.others = [replace(world.others[0], priority=FIRST)]
    world.tick()
    assert world.hand.first == [2, 2]


def test_nobody_is_cancelled_on_the_word_of_a_launcher_that_is_silent(world: World) -> None:
    world.others = [part(2)]
    world.say()
    world.now += 10 * SILENCE
    world.tick()
    assert world.hand.ended == []
