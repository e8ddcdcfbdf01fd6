"""Live moves against a job that obeys, refuses, loses satellites or falls silent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from fake_slurm import a_record
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.policies.model import Placement
from ones.slurm_ext.actions import FIRST
from ones.slurm_ext.live_moves import (
    LiveEvidence,
    LiveLimits,
    LiveMove,
    Order,
    Said,
    advance,
    core,
    next_order,
    passed_over,
    promised,
)
from ones.slurm_ext.satellites import Tie
from ones.slurm_ext.snapshot import JobRecord

LIMITS = LiveLimits(room=10, order=20, answer=10)
NODES = {"n1": 4, "n2": 4}


def placed(**gpus_on: int) -> Placement:
    return Placement.of(gpus_on)


def a_satellite(number: int, node: str, gpus: int, *, order: int = 1) -> JobRecord:
    return a_record(
        id=number,
        state="RUNNING",
        held=False,
        gpus_on={node: gpus},
        admin_comment=f"ONES1S:base=1;restarts=0;order={order}",
    )


def a_live_job(*satellites: JobRecord, **gpus_on: int) -> JobRecord:
    return a_record(
        id=1,
        state="RUNNING",
        held=False,
        gpus_on=gpus_on or {"n1": 1},
        batch_host="n1",
        satellites=satellites,
    )


def a_move(**gpus_on: int) -> LiveMove:
    return LiveMove(id=7, job=1, restarts=0, target=placed(**gpus_on), begun_at=0.0)


@dataclass
class World:
    """A job's launcher and Slurm, as far as a live move sees them."""

    job: JobRecord
    now: float = 0.0
    said: Said | None = None
    obeys: bool = True
    ended: dict[int, str] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    fewest: int = 99  # GPUs it had at any time
    others: dict[str, int] = field(default_factory=dict)
    last: int = 100
    own: dict[str, int] = field(default_factory=dict)  # workers on further nodes of its own
    takes_back: bool = True  # whether Slurm does
    given: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.say("idle", 0)

    def say(self, state: str, order: int, reason: str = "") -> None:
        self.said = Said(
            at=self.now, able=True, order=order, state=state, reason=reason, own=dict(self.own)
        )

    @property
    def free(self) -> dict[str, int]:
        held = self.job.held_on
        return {
            node: gpus - held.get(node, 0) - self.others.get(node, 0)
            for node, gpus in NODES.items()
        }

    def evidence(self) -> LiveEvidence:
        return LiveEvidence(now=self.now, said=self.said, free=self.free, ended=self.ended)

    def step(self, move: LiveMove) -> LiveMove:
        after = advance(move, self.job, self.evidence(), LIMITS)
        # It goes on from what is on disk.
        after = LiveMove.from_json(after.to_json())
        assert advance(move, self.job, self.evidence(), LIMITS) == after
        self.now += 1.0
        if after.order is not None and not after.outcome and self.obeys:
            self.obey(after.order)
        if after.step == "giving" and not after.outcome and self.takes_back:
            self.take_back(after.order)
        self.fewest = min(self.fewest, sum(self.job.held_on.values()))
        return after

    def obey(self, order: Order) -> None:
        if self.said is not None and self.said.order == order.number:
            return
        self.orders.append(order)
        stay = [each for each in self.job.satellites if each.id in order.keep]
        assert {each.id for each in stay} == set(order.keep)
        for node, gpus in order.add:
            assert gpus <= self.free[node], "more than is free beside those that leave"
            self.last += 1
            stay.append(a_satellite(self.last, node, gpus, order=order.number))
        for node in order.leave:
            assert node != self.job.batch_host
            self.own[node] = 0
        self.job = replace(self.job, satellites=tuple(stay))
        self.say("done", order.number)

    def take_back(self, order: Order | None) -> None:
        assert order is not None
        assert not any(self.own[node] for node in order.leave), "somebody trains there"
        self.given += [node for node in order.leave if node in self.job.gpus_on]
        left = {node: n for node, n in self.job.gpus_on.items() if node not in order.leave}
        self.job = replace(self.job, gpus_on=left)

    def run(self, move: LiveMove, steps: int = 60) -> LiveMove:
        for _ in range(steps):
            move = self.step(move)
            if move.outcome:
                return move
        pytest.fail(f"still {move.step} after {steps} steps")


def test_a_job_grows_by_one_satellite_on_each_node_in_one_order() -> None:
    world = World(a_live_job(n1=1))
    assert world.run(a_move(n1=3, n2=4)).outcome == "done"
    (order,) = world.orders
    assert order.number == 700
    assert (order.keep, order.add) == ((), (("n1", 2), ("n2", 4)))


def test_what_is_wanted_no_more_leaves_and_the_rest_stays() -> None:
    world = World(a_live_job(a_satellite(11, "n1", 2), a_satellite(12, "n2", 4), n1=1))
    assert world.run(a_move(n1=3)).outcome == "done"
    assert world.orders == [Order(number=700, keep=(11,), add=())]


def test_growing_and_shrinking_are_one_order() -> None:
    world = World(a_live_job(a_satellite(11, "n1", 3), n1=1))
    assert world.run(a_move(n1=1, n2=2)).outcome == "done"
    assert world.orders == [Order(number=700, keep=(), add=(("n2", 2),))]


def test_a_satellite_is_replaced_by_a_smaller_one_before_it_leaves_where_there_is_room() -> None:
    world = World(a_live_job(a_satellite(11, "n2", 2), n1=1))
    assert world.run(a_move(n1=1, n2=1)).outcome == "done"
    assert world.orders == [Order(number=700, keep=(), add=(("n2", 1),))]
    assert world.fewest == 2


def test_a_satellite_is_replaced_after_it_has_left_where_there_is_no_room_for_both() -> None:
    world = World(a_live_job(a_satellite(11, "n2", 4), n1=1))
    assert world.run(a_move(n1=1, n2=2)).outcome == "done"
    assert [(order.keep, order.add) for order in world.orders] == [
        ((), ()),
        ((), (("n2", 2),)),
    ]


def test_it_waits_for_room_and_gives_up_after_a_while() -> None:
    world = World(a_live_job(n1=1), others={"n2": 4})
    after = world.run(a_move(n1=1, n2=2))
    assert after.outcome == "expired: 3 GPUs on n[1-2] did not become free; it runs on"
    assert world.orders == []
    assert world.now >= LIMITS.room


def test_a_refusal_ends_the_move_with_the_jobs_own_words() -> None:
    world = World(a_live_job(n1=1), obeys=False)
    move = world.step(a_move(n1=2))
    assert move.order is not None
    world.say("failed", move.order.number, "sbatch: no such node")
    assert world.step(move).outcome == "failed: sbatch: no such node; it runs on"


def test_a_satellite_that_a_limit_keeps_from_starting_calls_the_order_back_at_once() -> None:
    world = World(a_live_job(n1=1), obeys=False)
    move = world.step(a_move(n1=1, n2=4))
    assert move.order is not None
    waits = replace(
        a_satellite(101, "n2", 4, order=move.order.number),
        state="PENDING",
        reason="Resources",
        gpus_on={},
    )
    world.job = replace(world.job, satellites=(waits,))
    assert world.step(move).step == "ordered", "it is next"
    kept_off = replace(waits, reason="QOSMaxGRESPerUser")
    world.job = replace(world.job, satellites=(kept_off,))
    move = world.step(move)
    assert (move.step, move.refused) == ("withdrawing", "QOSMaxGRESPerUser")
    assert move.because == "failed: Slurm does not start satellite 101 (QOSMaxGRESPerUser)"


@pytest.mark.parametrize("answers", [True, False])
def test_an_order_that_is_not_carried_out_in_time_is_called_back(answers: bool) -> None:
    world = World(a_live_job(n1=1), obeys=False)
    move = world.step(a_move(n1=2))
    world.say("working", 700)
    while move.step == "ordered":
        move = world.step(move)
    assert move.step == "withdrawing"
    assert world.now >= LIMITS.order
    if answers:
        world.say("failed", 700, "withdrawn")
    move = world.run(move)
    end = "; it runs on" if answers else ", and the job does not answer"
    assert move.outcome == f"expired: not carried out within 20 s{end}"


def test_a_satellite_that_fails_to_start_calls_the_order_back_at_once() -> None:
    world = World(a_live_job(n1=1), obeys=False)
    move = world.step(a_move(n1=2))
    world.ended = {700: "satellite 101 ended (FAILED)"}
    move = world.step(move)
    assert (move.step, move.because) == ("withdrawing", "failed: satellite 101 ended (FAILED)")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"state": "CANCELLED"}, "abandoned: it has ended (CANCELLED)"),
        ({"restarts": 1}, "abandoned: the job does not run as it did"),
        ({"state": "PENDING"}, "abandoned: the job does not run as it did"),
        ({"admin_comment": ""}, "abandoned: the job is no longer marked elastic"),
    ],
)
@pytest.mark.parametrize("steps", [0, 1])
def test_whatever_else_happens_to_the_job_ends_the_move(
    changes: dict[str, object], word: str, steps: int
) -> None:
    world = World(a_live_job(n1=1), obeys=False)
    move = a_move(n1=2)
    for _ in range(steps):
        move = world.step(move)
    world.job = replace(world.job, **changes)  # type: ignore[arg-type]
    assert world.step(move).outcome == word


def test_a_job_whose_own_gpus_must_go_or_whose_training_is_over_is_not_moved_live() -> None:
    world = World(a_live_job(n1=2))
    assert "own GPUs" in world.step(a_move(n1=1, n2=4)).outcome
    world.said = Said(at=0.0, able=False, order=0, state="idle")
    assert "does not take orders" in world.step(a_move(n1=3)).outcome


def test_it_waits_for_the_launchers_word_and_not_for_ever() -> None:
    world = World(a_live_job(n1=1))
    world.said = None
    move = world.step(a_move(n1=2))
    assert (move.step, move.outcome) == ("begun", "")
    world.say("idle", 0)
    assert world.run(move).outcome == "done"
    world.said = None
    assert "nothing was heard" in world.run(a_move(n1=3)).outcome


def test_after_a_start_of_onesd_the_launcher_has_its_time_again_to_be_heard() -> None:
    job, due = a_live_job(n1=1), replace(a_move(n1=2), deadline=50.0)
    heard_nothing = LiveEvidence(now=55.0, listening=50.0)
    assert advance(due, job, heard_nothing, LIMITS).outcome == ""
    assert "nothing was heard" in advance(due, job, LiveEvidence(now=55.0), LIMITS).outcome
    later = replace(heard_nothing, now=60.0)
    assert "nothing was heard" in advance(due, job, later, LIMITS).outcome


def test_only_whole_satellites_are_kept_and_as_many_gpus_as_they_can_be() -> None:
    parts = [a_satellite(11, "n1", 1), a_satellite(12, "n1", 2), a_satellite(13, "n2", 3)]
    job = a_live_job(*parts, n1=1)
    order = next_order(job, placed(n1=3, n2=2), {"n1": 0, "n2": 1}, number=1)
    assert order is not None
    assert order.keep == (12,)
    assert order.add == ()  # two on n2 when the three have left


def test_what_a_live_move_gives_back_is_promised_to_others() -> None:
    job = a_live_job(a_satellite(11, "n1", 3), n1=1)
    assert promised([a_move(n1=1, n2=2)], {1: job}) == {"n1": 3}


def test_a_satellite_of_order_7000_is_none_of_order_700() -> None:
    order = Order(number=700, keep=(), add=())
    move = replace(a_move(n1=1), step="ordered", order=order, orders=1)
    said = Said(at=1.0, able=True, order=700, state="done")
    other = a_live_job(a_satellite(5, "n2", 1, order=7000))
    assert advance(move, other, LiveEvidence(now=1.0, said=said), LIMITS) == move
    own = a_live_job(a_satellite(5, "n2", 1, order=700))
    assert advance(move, own, LiveEvidence(now=1.0, said=said), LIMITS) != move


def test_a_mark_that_cant_be_read_ties_to_nothing() -> None:
    assert Tie.of(a_record(admin_comment="ONES1S:base=1")) is None
    assert Tie.of(a_satellite(11, "n1", 1, order=700)) == Tie(1, 0, 700)


def test_a_node_of_its_own_is_given_back_once_its_launcher_has_left_it() -> None:
    world = World(a_live_job(n1=2, n2=2), own={"n2": 2})
    move = world.run(a_move(n1=2))
    assert (move.outcome, move.given) == ("done", ("n2",))
    assert [(order.keep, order.add, order.leave) for order in world.orders] == [((), (), ("n2",))]
    assert dict(world.job.gpus_on) == {"n1": 2}
    # It comes back as a satellite.
    assert world.run(replace(a_move(n1=2, n2=1), id=8)).outcome == "done"
    assert dict(world.job.held_on) == {"n1": 2, "n2": 1}


def test_a_part_of_a_node_of_its_own_goes_as_a_whole_and_a_satellite_takes_its_place() -> None:
    world = World(a_live_job(n1=2, n2=3), own={"n2": 3}, others={"n2": 1})
    assert world.run(a_move(n1=2, n2=1)).outcome == "done"
    assert world.given == ["n2"]
    assert dict(world.job.held_on) == {"n1": 2, "n2": 1}


def test_the_first_node_and_those_without_a_known_launcher_are_never_given_back() -> None:
    world = World(a_live_job(n1=2, n2=2), own={"n1": 2})
    for target in (a_move(n1=2), a_move(n2=2)):
        assert "own GPUs" in world.step(target).outcome
    assert core(world.job, {"n1": 2, "n2": 2}) == placed(n1=2)
    assert core(world.job, {}) == placed(n1=2, n2=2)
    assert world.orders == []


def test_a_node_whose_launcher_was_lost_is_given_back_by_the_next_move() -> None:
    world = World(a_live_job(n1=2, n2=2), own={"n2": 0})
    assert world.run(a_move(n1=2, n2=2)).outcome == "done"  # nothing to move
    assert world.run(replace(a_move(n1=3, n2=2), id=8)).outcome == "done"
    assert world.given == ["n2"]
    assert dict(world.job.held_on) == {"n1": 3, "n2": 2}


def test_where_slurm_does_not_take_a_node_back_the_move_ends_and_the_job_runs_on() -> None:
    world = World(a_live_job(n1=2, n2=2), own={"n2": 2}, takes_back=False)
    move = world.run(a_move(n1=2))
    assert move.outcome == "failed: Slurm did not take n2 back; it runs on"
    assert move.given == ()


sizes = st.integers(min_value=0, max_value=4)


@settings(max_examples=200, deadline=None)
@given(targets=st.lists(st.tuples(sizes, sizes), min_size=1, max_size=6), own=sizes)
def test_any_chain_of_targets_is_reached_with_the_jobs_first_node_kept(
    targets: list[tuple[int, int]], own: int
) -> None:
    nodes = {"n1": 1, **({"n2": own} if own else {})}
    world = World(a_live_job(**nodes), own={"n2": own} if own else {})
    for number, (first, second) in enumerate(targets, start=1):
        target = Placement.of({"n1": max(1, first), "n2": second})
        move = LiveMove(id=number, job=1, restarts=0, target=target, begun_at=world.now)
        assert world.run(move).outcome == "done"
        assert dict(world.job.held_on) == dict(target.gpus_on)
        assert world.job.gpus_on["n1"] == 1


@settings(max_examples=200, deadline=None)
@given(targets=st.lists(st.tuples(sizes, sizes), min_size=1, max_size=6))
def test_any_chain_of_targets_is_reached_with_the_jobs_own_gpu_kept(
    targets: list[tuple[int, int]],
) -> None:
    world = World(a_live_job(n1=1))
    for number, (first, second) in enumerate(targets, start=1):
        target = Placement.of({"n1": max(1, first), "n2": second})
        move = LiveMove(id=number, job=1, restarts=0, target=target, begun_at=world.now)
        assert world.run(move).outcome == "done"
        assert dict(world.job.held_on) == dict(target.gpus_on)
    numbers = [order.number for order in world.orders]
    assert numbers == sorted(set(numbers))


def test_a_satellite_goes_before_all_that_wait_if_it_is_what_was_ordered() -> None:
    move = replace(
        a_move(n1=2, n2=2), step="ordered", order=Order(number=700, keep=(), add=(("n2", 2),))
    )

    def waits(number: int, **changes: Any) -> JobRecord:
        asks = replace(a_satellite(number, "n2", 2, order=700), state="PENDING", gpus_on={})
        asks = replace(
            asks,
            reason="Priority",
            required_nodes="n2",
            tres_per_node="gres/gpu:2",
            tres_per_job="",
        )
        return replace(asks, **changes)

    known = [
        waits(11),
        waits(12, reason="Resources"),
        waits(13, state="RUNNING"),
        waits(14, priority=FIRST),
        waits(15, required_nodes="n3"),
        waits(16, tres_per_node="gres/gpu:4"),
        waits(17, admin_comment="ONES1S:base=1;restarts=0;order=600"),
        waits(18, held=True),
        waits(19, reason="QOSMaxGRESPerUser"),
    ]
    assert passed_over(move, a_live_job(*known, n1=2)) == [11, 12]
    assert passed_over(replace(move, step="withdrawing"), a_live_job(*known, n1=2)) == []
    assert passed_over(replace(move, outcome="done"), a_live_job(*known, n1=2)) == []
