"""Live resizing's protocol, without processes: whatever happens in whatever order, all agree."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.slurm_ext.runtime.live.faults import FAILURES, STABLE, Faults
from ones.slurm_ext.runtime.live.generation import LEAVE, MEND, TRIES, VOTE, WARM, Council
from ones.slurm_ext.runtime.live.terms import (
    Abort,
    Action,
    Broken,
    Changed,
    Cut,
    Dismiss,
    Dropped,
    End,
    Event,
    Failed,
    Finished,
    Go,
    Gone,
    Kill,
    Loss,
    Lost,
    Number,
    Offer,
    Opened,
    Propose,
    Ready,
    Refused,
    Slot,
    Start,
    Stopping,
    Switched,
    Switching,
    Tick,
    Wanted,
    WorkerId,
)
from ones.slurm_ext.runtime.live.vote import Ballot

SEEDS = st.integers(0, 2**32)  # of a schedule
LONG = max(LEAVE, MEND, VOTE, WARM) + 1


@dataclass
class Group:
    """A process group: who has connected, who has closed it, and the collectives begun in it."""

    offers: dict[WorkerId, Offer]
    joined: set[WorkerId] = field(default_factory=set)
    closed: set[WorkerId] = field(default_factory=set)
    votes: dict[int, dict[WorkerId, int]] = field(default_factory=dict)  # by step
    copying: dict[WorkerId, int | None] = field(default_factory=dict)  # their committed steps

    @property
    def size(self) -> int:
        return next(iter(self.offers.values())).size

    def members(self) -> set[WorkerId]:
        return {key for key, offer in self.offers.items() if offer.rank is not None}


@dataclass
class Process:
    """A worker as the protocol sees it: it trains, votes, switches, breaks and parks."""

    key: WorkerId
    slot: Slot
    committed: int | None
    ballot: Ballot = field(default_factory=Ballot)
    inbox: deque[Action] = field(default_factory=deque)
    outbox: deque[Event] = field(default_factory=deque)
    ready: bool = False
    making: Offer | None = None
    prepared: Offer | None = None
    go: Number | None = None  # the others are switching to this one
    entering: Offer | None = None  # copies the state in this one
    state: str = "waiting"  # waiting, training, copying, leaving
    step: int = 0  # within the generation
    contributed: bool = False
    last_result: tuple[int, int] | None = None


class World:
    """Some workers, their groups and the council, moved by a random schedule."""

    def __init__(self, seed: random.Random, *, homes: list[int], first: int) -> None:
        self.random = seed
        self.council = Council()
        self.now = 0.0
        self.processes: dict[WorkerId, Process] = {}
        self.groups: dict[Number, Group] = {}
        self.homes = set(range(len(homes)))
        self.slots = homes
        self.refused: list[str] = []
        self.ended: int | None = None
        self.changes: list[Changed] = []
        self.limit = 10**9  # steps of the training
        self.linger = False  # whether who leaves has not ended yet
        self.tell(Opened(0, homes[0], first))

    # The launcher's part

    def tell(self, event: Event) -> None:
        for action in self.council.step(event, self.now):
            self.do(action)

    def do(self, action: Action) -> None:
        match action:
            case Start(key, slot, _, _, first):
                assert slot.home in self.homes
                assert slot not in {each.slot for each in self.processes.values()}
                self.processes[key] = Process(key, slot, 0 if first else None)
            case Kill(key, now):
                if key in self.processes:
                    if now:
                        self.kill(key)
                    else:
                        self.processes[key].inbox.append(action)
            case Dismiss(home):
                assert not [each for each in self.processes.values() if each.slot.home == home]
                self.homes.discard(home)
            case Refused(reason):
                self.refused.append(reason)
            case Changed():
                self.changes.append(action)
            case End(code):
                assert not self.processes
                self.ended = code
            case Propose(key, offer):
                group = self.groups.setdefault(offer.number, Group({}))
                group.offers[key] = offer
                if key in self.processes:
                    self.processes[key].inbox.append(action)
                else:
                    group.closed.add(key)
            case Abort(key) | Go(key) | Cut(key):
                if key in self.processes:
                    self.processes[key].inbox.append(action)

    def kill(self, key: WorkerId, code: int = -9) -> None:
        process = self.processes.pop(key)
        for group in self.groups.values():
            if key in group.offers:
                group.closed.add(key)
        pending = list(process.outbox)
        # What it has said arrives before its end.
        for event in [*pending, Gone(key, code)]:
            self.tell(event)

    def lose(self, home: int) -> None:
        self.homes.discard(home)
        for key in [each.key for each in self.processes.values() if each.slot.home == home]:
            del self.processes[key]
            for group in self.groups.values():
                if key in group.offers:
                    group.closed.add(key)
        self.tell(Lost(home))

    # A worker's part

    def moves(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for process in self.processes.values():
            if process.outbox:
                found.append(lambda p=process: self.tell(p.outbox.popleft()))  # type: ignore[misc]
            if process.state == "leaving":
                if not self.linger:
                    found.append(lambda p=process: self.kill(p.key, 0))  # type: ignore[misc]
                continue
            if process.inbox:
                found.append(lambda p=process: self.hear(p))  # type: ignore[misc]
            if not process.ready:
                found.append(lambda p=process: self.warm(p))  # type: ignore[misc]
            if process.making is not None and self.can_make(process):
                found.append(lambda p=process: self.make(p))  # type: ignore[misc]
            if process.state == "training":
                if step := self.can_step(process):
                    found.append(step)
            elif process.state == "copying" and (copy := self.can_copy(process)):
                found.append(copy)
        return found

    def say(self, process: Process, event: Event) -> None:
        process.outbox.append(event)

    def warm(self, process: Process) -> None:
        process.ready = True
        self.say(process, Ready(process.key))

    def hear(self, process: Process) -> None:
        match process.inbox.popleft():
            case Propose(_, offer):
                if offer.at_once:
                    assert process.state == "waiting"
                process.making = offer
            case Abort(_, number):
                if process.making is not None and process.making.number == number:
                    self.leave_group(process, number)
                    process.making = None
                if process.state == "training":
                    process.ballot.withdraw(number)
                else:
                    self.leave_group(process, number)
                    process.prepared = None
                    self.say(process, Dropped(process.key, number))
            case Go(_, number):
                if process.prepared is not None and process.prepared.number == number:
                    self.begin_copy(process, process.prepared)
                elif process.making is not None and process.making.number == number:
                    process.go = number
                else:
                    self.park(process)
            case Cut(_, number):
                # The group's connections are shut, so nothing in it can end any more.
                group = self.groups[number]
                if process.key in group.offers:
                    group.closed.add(process.key)
            case Kill():
                if process.state == "waiting":
                    self.kill(process.key, 0)

    def leave_group(self, process: Process, number: Number) -> None:
        if number in self.groups and process.key in self.groups[number].offers:
            self.groups[number].closed.add(process.key)

    def can_make(self, process: Process) -> bool:
        offer = process.making
        assert offer is not None
        if offer.rank is None:
            return True
        group = self.groups[offer.number]
        if process.key not in group.joined:
            return True
        # Made when all are there; failed when one of them never can be.
        return group.members() <= group.joined or bool(group.closed & group.members())

    def make(self, process: Process) -> None:
        offer = process.making
        assert offer is not None
        group = self.groups[offer.number]
        if offer.rank is not None:
            if process.key not in group.joined:
                group.joined.add(process.key)
                return
            if group.closed & group.members():
                process.making = None
                group.closed.add(process.key)
                if offer.at_once or process.go == offer.number:
                    self.park(process)
                else:
                    self.say(process, Failed(process.key, offer.number, "a peer is gone"))
                return
        process.making, process.prepared = None, offer
        if offer.at_once or process.go == offer.number:
            if offer.rank is None:
                process.state = "leaving"
            else:
                self.begin_copy(process, offer)
        elif process.state == "training":
            process.ballot.prepare(offer.number)

    def begin_copy(self, process: Process, offer: Offer) -> None:
        process.state, process.entering = "copying", offer
        assert (offer.rank in offer.sources) <= (process.committed is not None)
        if offer.rank in offer.receivers:
            process.committed = None
        self.groups[offer.number].copying[process.key] = process.committed

    def can_copy(self, process: Process) -> Callable[[], None] | None:
        offer = process.entering
        assert offer is not None
        group = self.groups[offer.number]
        if group.members() <= set(group.copying):
            return lambda: self.end_copy(process, offer, group)
        if group.closed & group.members():
            return lambda: self.park(process)
        return None

    def end_copy(self, process: Process, offer: Offer, group: Group) -> None:
        sent = {steps for steps in group.copying.values() if steps is not None}
        assert len(sent) == 1, "those that send have done the same steps"
        process.committed = sent.pop()
        if process.ballot.number:
            self.leave_group(process, process.ballot.number)
        process.ballot.entered(offer.number)
        process.state, process.entering, process.prepared = "training", None, None
        process.step, process.contributed, process.last_result = 0, False, None
        self.say(process, Switched(process.key, offer.number))

    def can_step(self, process: Process) -> Callable[[], None] | None:
        number = process.ballot.number
        group = self.groups[number]
        votes = group.votes.setdefault(process.step, {})
        if process.key not in votes:
            return lambda: votes.__setitem__(process.key, process.ballot.vote)
        if group.members() <= set(votes):
            return lambda: self.commit(process, votes)
        if group.closed & group.members():
            return lambda: self.park(process)
        return None

    def commit(self, process: Process, votes: dict[WorkerId, int]) -> None:
        """The end of a step: a switch, where the vote of the step before says so."""
        assert process.committed is not None
        process.committed += 1
        process.step += 1
        if process.committed >= self.limit:
            self.say(process, Finished(process.key))
            self.kill(process.key, 0)
            return
        result, process.last_result = (
            process.last_result,
            (min(votes.values()), max(votes.values())),
        )
        if result is None:
            return
        if not process.ballot.switches(*result):
            dropped = process.ballot.after_result()
            if dropped is not None:
                self.leave_group(process, dropped)
                process.prepared = None
                self.say(process, Dropped(process.key, dropped))
            return
        offer = process.prepared
        assert offer is not None
        self.say(process, Switching(process.key, offer.number))
        if offer.rank is None:
            process.state = "leaving"
        else:
            self.begin_copy(process, offer)

    def park(self, process: Process) -> None:
        for number in (process.ballot.number, *(
            offer.number for offer in (process.making, process.prepared, process.entering) if offer
        )):  # fmt: skip
            self.leave_group(process, number)
        process.state, process.making, process.prepared, process.entering = (
            "waiting",
            None,
            None,
            None,
        )
        process.ballot.prepared = None
        self.say(process, Broken(process.key, process.committed))

    # Schedules

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if moves := self.moves():
                self.random.choice(moves)()
            else:
                return

    def settle(self, *, patient: bool = False) -> None:
        """No more faults: everything that can happen does, and time passes where nothing can."""
        for _ in range(60):
            for _ in range(3000):
                if self.at_rest(patient) or not (moves := self.moves()):
                    break
                self.random.choice(moves)()
            if self.at_rest(patient):
                return
            self.now += LONG
            self.tell(Tick())
        pytest.fail("the training never came to rest")

    def at_rest(self, patient: bool = False) -> bool:
        if self.council.over or patient:
            return self.council.over
        if not self.council.settled or any(p.inbox or p.outbox for p in self.processes.values()):
            return False
        return set(self.processes) == set(self.council.members)

    def check(self) -> None:
        if self.council.over:
            assert not self.processes
            return
        assert {each.slot for each in self.processes.values()} == self.council.wanted
        assert {each.ballot.number for each in self.processes.values()} == {self.council.number}
        assert all(each.state == "training" for each in self.processes.values())
        before = {key: each.committed for key, each in self.processes.items()}
        self.run(400)
        assert all(each.committed != before[key] for key, each in self.processes.items())


def a_world(
    seed: random.Random | None = None, *, first: int = 2, homes: Iterable[int] = (8,)
) -> World:
    return World(seed or random.Random(1), homes=list(homes), first=first)


def slots(*indices: int, home: int = 0) -> frozenset[Slot]:
    return frozenset(Slot(home, index) for index in indices)


@given(SEEDS, st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_any_order_of_joins_leaves_and_crashes_ends_in_agreement(number: int, first: int) -> None:
    seed = random.Random(number)
    world = a_world(seed, first=first, homes=(5, 2, 2))
    world.homes = {0}
    waiting = [1, 2]
    for _ in range(seed.randint(0, 12)):
        world.run(seed.randint(0, 150))
        if world.council.over:
            break
        kind = seed.randint(0, 9)
        alive = sorted(world.processes)
        if kind <= 3:
            known = [Slot(home, i) for home in world.homes for i in range(world.slots[home])]
            wanted = frozenset(seed.sample(known, seed.randint(1, len(known))))
            world.tell(Wanted(wanted, together=seed.random() < 0.5))
        elif kind <= 5 and alive:
            world.kill(seed.choice(alive), seed.choice([-9, 1, -11]))
        elif kind == 6 and waiting:
            home = waiting.pop()
            world.homes.add(home)
            world.tell(Opened(home, world.slots[home], world.slots[home]))
        elif kind == 7 and len(world.homes) > 1:
            world.lose(max(world.homes))
        elif kind == 8:
            world.now += seed.choice([1.0, 40.0, 200.0])
            world.tell(Tick())
        elif kind == 9 and seed.random() < 0.1:
            world.tell(Stopping())
            return
    world.settle()
    world.check()


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_without_crashes_every_order_is_carried_out_and_nobody_who_stays_is_replaced(
    number: int,
) -> None:
    seed = random.Random(number)
    world = a_world(seed, first=seed.randint(1, 5))
    world.settle()
    for _ in range(4):
        wanted = slots(*seed.sample(range(8), seed.randint(1, 8)))
        before = {each.slot: key for key, each in world.processes.items()}
        world.tell(Wanted(wanted))
        world.settle()
        after = {each.slot: key for key, each in world.processes.items()}
        assert set(after) == wanted
        assert all(after[slot] == key for slot, key in before.items() if slot in wanted)
    assert not world.refused
    world.check()


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_who_leaves_together_with_those_who_come_trains_until_they_are_there(number: int) -> None:
    world = a_world(random.Random(number), first=3)
    world.settle()
    world.changes.clear()
    world.tell(Wanted(slots(0, 3, 4), together=True))
    world.settle()
    assert [change.slots for change in world.changes] == [tuple(sorted(slots(0, 3, 4)))]
    world.check()


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_who_must_leave_does_not_wait_for_those_who_are_still_to_come(number: int) -> None:
    world = a_world(random.Random(number), first=3)
    world.settle()
    world.tell(Wanted(slots(0, 1, 3), together=True))
    world.tell(Wanted(slots(0, 3)))
    gone = [each for each in world.processes.values() if each.slot.index in (1, 2)]
    for each in world.processes.values():
        each.ready = each.ready or each.slot.index == 3  # which never gets ready
    world.run(2000)
    assert not [each for each in gone if each.key in world.processes]


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_growth_into_slots_whose_workers_still_leave_is_one_change(number: int) -> None:
    world = a_world(random.Random(number), first=4)
    world.settle()
    world.tell(Wanted(slots(0, 1)))
    world.linger = True
    world.run(2000)
    world.changes.clear()
    world.tell(Wanted(slots(*range(8))))
    world.run(2000)
    world.linger = False
    world.settle()
    assert [len(change.slots) for change in world.changes] == [8]
    world.check()


@given(SEEDS, st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_a_training_comes_to_its_end_whatever_happens_just_then(number: int, limit: int) -> None:
    seed = random.Random(number)
    world = a_world(seed, first=3)
    world.limit = limit
    for _ in range(6):
        world.run(seed.randint(0, 120))
        if world.council.over:
            break
        if seed.random() < 0.5:
            world.tell(Wanted(slots(*seed.sample(range(8), seed.randint(1, 8)))))
        elif world.processes:
            world.kill(seed.choice(sorted(world.processes)))
    world.settle(patient=True)
    assert world.council.over
    assert world.ended in (0, -9)


@given(SEEDS, st.integers(0, 200))
@settings(max_examples=100, deadline=None)
def test_survivors_of_a_crash_go_on_from_their_memory(number: int, steps: int) -> None:
    seed = random.Random(number)
    world = a_world(seed, first=3)
    world.settle()
    world.run(steps)
    kept = set(world.processes)
    furthest = max(each.committed or 0 for each in world.processes.values())
    victim = seed.choice(sorted(kept))
    world.kill(victim)
    world.settle()
    assert kept - {victim} < set(world.processes)
    assert len(world.processes) == 3
    assert min(each.committed or 0 for each in world.processes.values()) >= furthest - 1
    assert [each.loss for each in world.changes if each.loss] == [Loss(1, restarted=False)]
    world.check()


def test_a_newcomer_that_dies_before_the_vote_costs_the_members_nothing() -> None:
    world = a_world()
    world.settle()
    number, members = world.council.number, world.council.members
    for _ in range(TRIES):
        world.tell(Wanted(slots(0, 1, 2)))
        newcomer = next(key for key in sorted(world.processes) if key not in members)
        world.kill(newcomer)
        assert world.council.number == number
        assert not any(each.inbox for each in world.processes.values() if each.key in members)
    world.settle()
    assert set(members) <= set(world.processes)


def test_a_slot_whose_workers_always_fail_is_given_up_and_the_others_train_on() -> None:
    world = a_world()
    world.settle()
    world.tell(Wanted(slots(0, 1, 2)))
    for _ in range(TRIES):
        world.kill(max(world.processes), 1)
    world.settle()
    assert world.council.wanted == slots(0, 1)
    assert world.refused == [f"the workers in slot 0/2 failed {TRIES} times"]
    world.check()


def test_a_newcomer_that_only_ever_ends_without_a_word_is_given_up_as_one_that_fails() -> None:
    """Its script may find nothing to do there, and exit with 0."""
    world = a_world()
    world.settle()
    world.tell(Wanted(slots(0, 1, 2)))
    for _ in range(TRIES):
        world.kill(max(world.processes), 0)
    world.settle()
    assert world.council.wanted == slots(0, 1)
    assert world.refused == [f"the workers in slot 0/2 failed {TRIES} times"]
    world.check()


def test_a_newcomer_that_ended_with_0_does_not_hide_that_all_others_failed_by_themselves() -> None:
    faults = Faults()
    faults.blame(Slot(0, 2), 0, lasted=1.0)
    faults.blame(Slot(0, 0), 7, lasted=1.0)
    assert faults.is_hopeless(now=2.0, nobody_left=True)


def test_all_members_lost_means_a_restart_in_which_one_reads_the_checkpoint() -> None:
    world = a_world(first=3)
    world.settle()
    for key in sorted(world.processes):
        world.kill(key)
    assert sorted(each.committed is None for each in world.processes.values()) == [
        False,
        True,
        True,
    ]
    world.settle()
    assert [each.loss for each in world.changes] == [None, Loss(3, restarted=True)]
    world.check()


def test_a_script_that_fails_in_all_workers_is_not_started_again() -> None:
    world = a_world()
    world.settle()
    for key in sorted(world.processes):
        world.kill(key, 7)
    assert world.ended == 7


def test_workers_that_are_lost_again_and_again_end_the_job() -> None:
    world = a_world()
    for _ in range(TRIES + 1):
        world.settle()
        for key in sorted(world.processes):
            world.kill(key)
    assert world.ended == -9


def test_a_loss_after_which_the_others_are_ended_to_begin_again_is_one_loss() -> None:
    """Of sharded models nobody has the whole state where one is lost."""
    council, now = Council(), 0.0

    def step(event: Event) -> list[Action]:
        nonlocal now
        now += 1.0
        return council.step(event, now)

    def begin() -> None:
        for key in sorted(council.workers):
            step(Ready(key))
        assert council.attempt is not None
        for key in council.attempt.members:
            step(Switched(key, council.attempt.number))
        assert council.settled

    step(Opened(0, 3, 3))
    begin()
    for _ in range(FAILURES):
        first, *others = council.members
        step(Gone(first, -9))
        for key in others:
            said = step(Broken(key, None))
        assert said == [Kill(key) for key in others]
        for key in others:
            step(Gone(key, -15))
        step(Tick())
        assert not council.over
        begin()


def test_workers_that_are_lost_now_and_then_do_not_end_a_job_that_is_resized_in_between() -> None:
    world = a_world()
    world.settle()
    for number in range(2 * TRIES):
        world.now += STABLE + 1
        world.tell(Wanted(slots(0, 1, 2) if number % 2 else slots(0, 1)))
        world.settle()
        for key in sorted(world.processes):
            world.kill(key)
        world.settle()
    assert world.ended is None


def test_newcomers_end_when_the_training_does() -> None:
    world = a_world()
    world.settle()
    world.tell(Wanted(slots(0, 1, 2)))
    members = world.council.members
    for key in members:
        world.tell(Finished(key))
        world.kill(key, 0)
    world.settle()
    assert world.ended == 0


def test_a_script_without_epochs_runs_to_its_end() -> None:
    world = a_world()
    for key in sorted(world.processes):
        world.kill(key, 0)
    assert world.ended == 0


def test_a_launcher_whose_workers_all_left_is_dismissed() -> None:
    world = a_world(homes=(2, 2))
    world.tell(Opened(1, 2, 2))
    world.settle()
    assert len(world.processes) == 4
    world.tell(Wanted(slots(0, 1)))
    world.settle()
    assert world.homes == {0}
    world.check()


def test_a_training_may_move_to_other_slots_altogether() -> None:
    world = a_world()
    world.settle()
    world.tell(Wanted(slots(5, 6, 7)))
    world.settle()
    assert [len(each.slots) for each in world.changes] == [2, 5, 3]
    world.check()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (frozenset(), "a training needs a worker; cancel the job instead"),
        (slots(0, 8), "there is no slot 0/8"),
        (slots(0, home=3), "there is no slot 3/0"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(wanted: frozenset[Slot], reason: str) -> None:
    world = a_world()
    world.settle()
    world.tell(Wanted(wanted))
    assert world.refused == [reason]
    world.check()


def test_a_member_alone_in_its_vote_does_not_switch() -> None:
    ballot = Ballot()
    ballot.entered(Number(1))
    ballot.prepare(Number(2))
    assert not ballot.switches(1, 2)
    assert ballot.switches(2, 2)


def test_a_vote_taken_back_too_late_counts() -> None:
    ballot = Ballot()
    ballot.entered(Number(1))
    ballot.prepare(Number(2))
    ballot.withdraw(Number(2))
    assert ballot.switches(2, 2)
    assert ballot.after_result() == 2
    assert ballot.vote == 1
