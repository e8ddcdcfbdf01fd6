"""The protocol by which a training goes from one generation of workers to the next.

Events in, actions out: nothing here knows a clock, a process or a socket. The base launcher feeds
it. What holds at all times:

- A generation comes by a vote of the members of the one before (`vote`), or at once where nobody
  trains: at the beginning, and after a break.
- One generation is in the making at a time; each attempt has a number of its own.
- Every generation that comes by a vote has a survivor, which has the whole state.
- Until a member says that it is switching, an attempt can be called off, and training is untouched.
"""

from __future__ import annotations

from collections.abc import Iterable

from ones.slurm_ext.runtime.live.attempt import Attempt, Phase, Worker, attempt_at
from ones.slurm_ext.runtime.live.faults import FAILURES, Faults
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
    Opened,
    Propose,
    Ready,
    Refused,
    Seconds,
    Slot,
    Start,
    Stopping,
    Switched,
    Switching,
    Tick,
    Wanted,
    WorkerId,
)

WARM = 600.0  # seconds to import, build and warm up
VOTE = 1800.0  # seconds until the members agree: an evaluation may lie in between
MEND = 120.0  # seconds until every member of a broken group has said so: a step may be long
LEAVE = 120.0  # seconds to hand on slices of a sharded state, and to leave in good order
TRIES = 3  # attempts at a change, and mends in a row, without success


class Council:
    """Knows all workers of a job, and leads them from one generation to the next."""

    def __init__(self) -> None:
        self.number = Number(0)  # of the present generation
        self.members: tuple[WorkerId, ...] = ()  # of the present generation, by rank
        self.workers: dict[WorkerId, Worker] = {}
        self.wanted: frozenset[Slot] = frozenset()
        self.attempt: Attempt | None = None
        self.ending = False
        self.over = False
        self._batch: int | None = None
        self._together = False  # whether those who leave wait for those who come
        self._homes: dict[int, int] = {}  # their slots
        self._last_number = 0
        self._last_worker = 0
        self._broken_since: Seconds | None = None
        self._restarting = False
        self._lost = 0  # members, since the present generation began
        self._restarted = False  # since then
        self._mends = 0
        self._tries = 0  # of the change under way
        self._faults = Faults()
        self._code: int | None = None  # of the job
        self._now: Seconds = 0.0
        self._out: list[Action] = []

    def step(self, event: Event, now: Seconds) -> list[Action]:
        """What is to be done now that this has happened."""
        self._now, self._out = now, []
        if not self.over:
            self._take(event)
            self._advance()
        return self._out

    @property
    def slots(self) -> list[Slot]:
        """All that there are, in the order of ranks."""
        return [Slot(home, i) for home in sorted(self._homes) for i in range(self._homes[home])]

    @property
    def settled(self) -> bool:
        """Whether the present generation is the one that is wanted, and all is well."""
        return (
            self.attempt is None
            and self._broken_since is None
            and not self._restarting
            and all(key in self.workers for key in self.members)
            and {self.workers[key].slot for key in self.members} == self.wanted
        )

    # Events

    def _take(self, event: Event) -> None:
        match event:
            case Opened(home, slots, workers):
                self._homes[home] = slots
                self.wanted |= {Slot(home, index) for index in range(workers)}
                self._tries = 0
            case Lost(home):
                self._homes.pop(home, None)
                self.wanted = frozenset(slot for slot in self.wanted if slot.home != home)
                for worker in [each for each in self.workers.values() if each.slot.home == home]:
                    self._gone(worker, -9)
                self._keep_members()
                self.wanted = self.wanted or frozenset({Slot(0, 0)})
            case Wanted():
                self._order(event)
            case Ready(key):
                ready = self.workers.get(key)
                if ready is not None and ready.phase is Phase.STARTING:
                    ready.phase = Phase.READY
            case Switching(key, number):
                self._switching(number)
            case Switched(key, number):
                self._switching(number)
                if self.attempt is not None and self.attempt.number == number:
                    self.attempt.done.add(key)
            case Dropped(key, number):
                if self.attempt is not None and self.attempt.number == number:
                    self.attempt.done.add(key)
            case Failed(key, number, _):
                self._failed(key, number)
            case Broken(key, committed):
                lost = self.workers.get(key)
                if lost is not None and lost.phase in (Phase.MEMBER, Phase.LEAVING):
                    lost.parked, lost.committed = True, committed
                    self._break()
            case Finished(key):
                if key in self.workers and not self._is_new(key):
                    self.ending = True
            case Gone(key, code):
                if key in self.workers:
                    self._gone(self.workers[key], code)
            case Stopping():
                self.ending = True
            case Tick():
                pass

    def _order(self, order: Wanted) -> None:
        slots = order.slots
        unknown = sorted(s for s in slots if not s.index < self._homes.get(s.home, 0))
        if not slots:
            self._out.append(Refused("a training needs a worker; cancel the job instead"))
        elif unknown:
            self._out.append(Refused(f"there is no slot {unknown[0]}"))
        elif self.ending:
            self._out.append(Refused("the training is ending"))
        else:
            self.wanted, self._batch, self._tries = slots, order.batch, 0
            self._together = order.together
            self._faults.forgive(slots)

    def _switching(self, number: Number) -> None:
        attempt = self.attempt
        if attempt is None or attempt.number != number or attempt.switching:
            return
        # The vote counts, also where it was called off a moment too late.
        attempt.switching, attempt.aborted = True, False
        attempt.done.clear()
        for key in attempt.members:
            if self._is_new(key):
                self._out.append(Go(key, number))
                # From here on it may hold a part of the state, and must say when it lost its group.
                self._becomes(self.workers[key], Phase.MEMBER)
        for key in attempt.leavers:
            if worker := self.workers.get(key):
                self._becomes(worker, Phase.LEAVING)

    def _failed(self, key: WorkerId, number: Number) -> None:
        attempt = self.attempt
        if attempt is None or attempt.number != number:
            return
        if attempt.at_once or attempt.switching:
            self._break()  # those that need it say so themselves
        else:
            self._abort()

    def _gone(self, worker: Worker, code: int) -> None:
        del self.workers[worker.id]
        attempt, member = self.attempt, worker.phase is Phase.MEMBER
        early = worker.phase is Phase.STARTING and not self.members
        if code == 0 and not worker.killed and (member or early):
            self.ending = True  # it came to the end of its script
        if self.ending:
            if member and code and not self._code:
                self._code = code
            if any(each.parked for each in self.workers.values()):
                self._break()
            return
        # A newcomer's script may find nothing to do, and end well: it would do so each time.
        newcomer = bool(self.members) and worker.phase in (Phase.STARTING, Phase.READY)
        if (code or newcomer) and not worker.killed and not self._restarting:
            self._faults.blame(worker.slot, code, lasted=self._now - worker.since)
        if member:
            self._lost += not worker.killed
            if not self._restarting:  # else it ends for the loss that is being dealt with
                self._faults.deaths.append(code)
                self._break()
        elif attempt is not None and worker.id in attempt.members:
            self._abort()

    def _break(self) -> None:
        if self._broken_since is not None:
            return
        self._broken_since = self._now
        attempt, lost = self.attempt, {self.number}
        if attempt is not None and (attempt.switching or attempt.at_once):
            lost.add(attempt.number)
        for worker in self.workers.values():
            if worker.phase in (Phase.MEMBER, Phase.LEAVING) and not worker.parked:
                self._out += [Cut(worker.id, number) for number in sorted(lost) if number]

    # Decisions

    def _advance(self) -> None:
        self._deadlines()
        if self._broken_since is not None and not self._restarting:
            self._mend()
        if self._restarting and not self.workers:
            self._restarting = False
        if self.attempt is not None:
            self._settle()
        if self.ending:
            self._end()
            return
        if self.attempt is not None or self._broken_since is not None or self._restarting:
            return
        self._staff()
        self._retire()
        if self.ending:
            self._end()
        elif not self.members:
            self._begin()
        else:
            self._change()

    def _deadlines(self) -> None:
        for worker in self.workers.values():
            late = self._now - worker.since
            if worker.phase is Phase.STARTING and late > WARM and not worker.killed:
                self._faults.blame(worker.slot, -15, lasted=late)
                self._kill(worker)
            elif worker.phase is Phase.LEAVING and late > LEAVE and not worker.parked:
                self._out.append(Kill(worker.id, now=True))
                worker.since = self._now
        attempt = self.attempt
        if attempt is not None and self._now - attempt.since > VOTE:
            self._abort()

    def _abort(self) -> None:
        """Call off what is being voted on; where it is too late for that, it comes."""
        attempt = self.attempt
        if attempt is None or attempt.aborted or attempt.switching or attempt.at_once:
            return
        attempt.aborted = True
        attempt.done.clear()
        for key in sorted(attempt.everybody):
            if key in self.workers and not self._is_new(key):
                self._out.append(Abort(key, attempt.number))

    def _called_off(self, attempt: Attempt) -> bool:
        """Whether all have heard it. Newcomers are the last: the vote may still bring it."""
        left = [each for key in attempt.everybody if (each := self.workers.get(key)) is not None]
        waits = [each for each in left if each.id not in attempt.done and not each.parked]
        if any(not self._is_new(each.id) for each in waits):
            return False
        if not attempt.told_new:
            attempt.told_new = True
            for each in waits:
                self._out.append(Abort(each.id, attempt.number))
        return not waits

    def _settle(self) -> None:
        """End the attempt where all have answered."""
        attempt = self.attempt
        assert attempt is not None
        if attempt.aborted:
            if self._called_off(attempt):
                self.attempt = None
                self._tries += 1
                if self._tries >= TRIES:
                    self._give_up("the new workers could not join the others")
        elif self._broken_since is None and all(
            key in attempt.done and key in self.workers for key in attempt.members
        ):
            self._enter(attempt)

    def _enter(self, attempt: Attempt) -> None:
        loss = None
        if attempt.at_once and self.number:
            loss = Loss(self._lost, self._restarted)
        self.number, self.members, self.attempt = attempt.number, attempt.members, None
        self._tries, self._mends = 0, 0
        self._lost, self._restarted = 0, False
        self._faults.deaths.clear()
        slots = tuple(self.workers[key].slot for key in self.members)
        self._out.append(Changed(self.number, slots, loss))

    def _mend(self) -> None:
        """Make a group of what is left, once everybody involved waits for it."""
        attempt, began = self.attempt, self._broken_since
        assert began is not None
        self._abort()
        # Who leaves may have slices of a sharded state that nobody else has.
        late = [
            each.id
            for each in self.workers.values()
            if each.phase in (Phase.MEMBER, Phase.LEAVING) and not each.parked
        ]
        if late:
            if self._now - began > MEND:
                self._out += [Kill(key, now=True) for key in late]
                self._broken_since = self._now
            return
        if attempt is not None and attempt.aborted and not attempt.told_new:
            # All members wait, so nothing can bring it any more; and nobody waits for newcomers,
            # who may be trying to reach the lost one still.
            for key in attempt.members:
                if self._is_new(key):
                    self._out.append(Abort(key, attempt.number))
        self.attempt = None
        parked = [each for each in self.workers.values() if each.parked]
        furthest = max(
            (each.committed for each in parked if each.committed is not None), default=-1
        )
        self._mends += 1
        if furthest < 0 or self._mends > TRIES:
            self._restart()
            return
        sources = [each for each in parked if each.committed == furthest]
        kept = [each for each in parked if each.slot in self.wanted]
        if not any(each in kept for each in sources):
            kept.append(sources[0])
        new = [each for each in self.workers.values() if self._may_join(each)]
        self._propose(
            [*kept, *new],
            leavers=[each for each in parked if each not in kept],
            sources=[each.id for each in sources if each in kept],
            at_once=True,
        )
        self._broken_since = None

    def _restart(self) -> None:
        """Nobody has the whole state: all begin again from the checkpoint."""
        self.attempt, self._broken_since, self._mends = None, None, 0
        self._restarted = True
        hopeless = self._faults.is_hopeless(now=self._now, nobody_left=not self.workers)
        self.members = ()
        for worker in self.workers.values():
            self._kill(worker)
        if self.ending or hopeless:
            if hopeless and self._faults.deaths:
                self._code = self._faults.deaths[0]
            self.ending = True
        else:
            self._restarting = True
            self._faults.failures.clear()

    def _staff(self) -> None:
        """A worker for every wanted slot."""
        taken = {each.slot for each in self.workers.values()}
        for slot in sorted(self.wanted - taken):
            if self._faults.failures.get(slot, 0) >= FAILURES:
                self.wanted -= {slot}
                self._out.append(Refused(f"the workers in slot {slot} failed {FAILURES} times"))
        self._keep_members()
        if not self.wanted:
            self._code, self.ending = (self._faults.deaths or [1])[-1], True
            return
        order = sorted(self.wanted)
        for rank, slot in enumerate(order):
            if slot not in taken:
                self._last_worker += 1
                key = WorkerId(self._last_worker)
                first = not self.members and not rank
                self.workers[key] = Worker(key, slot, Phase.STARTING, self._now, first=first)
                self._out.append(Start(key, slot, rank, len(order), first))

    def _retire(self) -> None:
        """What is wanted no more and no member ends; a launcher without workers goes."""
        for worker in self.workers.values():
            if worker.slot not in self.wanted and worker.phase in (Phase.STARTING, Phase.READY):
                self._kill(worker)
        used = {slot.home for slot in self.wanted}
        used |= {each.slot.home for each in self.workers.values()}
        for home in sorted(self._homes):
            if home and home not in used:
                del self._homes[home]
                self._out.append(Dismiss(home))

    def _begin(self) -> None:
        """The first generation: all that were started, and the state of the one in front."""
        waiting = [each for each in self.workers.values() if each.slot in self.wanted]
        if not all(self._may_join(each) for each in waiting):
            return
        front = min(waiting, key=lambda each: each.slot)
        if front.first:
            self._propose(waiting, leavers=[], sources=[front.id], at_once=True)
        else:
            # Who has read the checkpoint is gone.
            self._restarting = True
            for worker in waiting:
                self._kill(worker)

    def _change(self) -> None:
        """Ask the members for the generation that is wanted, if it is another one."""
        present = [self.workers[key] for key in self.members]
        stay = [each for each in present if each.slot in self.wanted]
        new = [each for each in self.workers.values() if self._may_join(each)]
        # A slot whose last worker has not ended yet gets its next one only then.
        due = self.wanted.difference(each.slot for each in (*stay, *new))
        if not stay:
            # Somebody must hand on the state: grow first, and shrink after that.
            stay = present
            if due:
                return
        leavers = [each for each in present if each not in stay]
        if due and self._together:
            return
        if (new and not due) or leavers:
            self._propose(
                [*stay, *([] if due else new)],
                leavers=leavers,
                sources=[each.id for each in stay],
                at_once=False,
            )

    def _may_join(self, worker: Worker) -> bool:
        ready = worker.phase is Phase.READY and not worker.killed and not self.ending
        return ready and worker.slot in self.wanted

    def _propose(
        self,
        members: Iterable[Worker],
        *,
        leavers: Iterable[Worker],
        sources: Iterable[WorkerId],
        at_once: bool,
    ) -> None:
        self._last_number += 1
        self.attempt, offers = attempt_at(
            Number(self._last_number),
            members,
            leavers=leavers,
            sources=sources,
            batch=self._batch,
            at_once=at_once,
            now=self._now,
        )
        for key, offer in offers.items():
            worker = self.workers[key]
            worker.parked = False
            self._out.append(Propose(key, offer))
            if at_once:
                leaves = key in self.attempt.leavers
                self._becomes(worker, Phase.LEAVING if leaves else Phase.MEMBER)

    def _give_up(self, reason: str) -> None:
        """Go on with the members alone; those who could not join end."""
        self._tries, self.wanted = 0, frozenset()
        self._keep_members()
        self._out.append(Refused(reason))

    def _keep_members(self) -> None:
        """Where none of the wanted slots is left, the members' own are wanted."""
        if not self.wanted:
            members = [self.workers[key] for key in self.members if key in self.workers]
            self.wanted = frozenset(each.slot for each in members)

    def _end(self) -> None:
        for worker in self.workers.values():
            # Before the first generation a script without epochs may simply run to its end.
            if worker.phase is Phase.READY or (self.members and worker.phase is Phase.STARTING):
                self._kill(worker)
        if not self.workers:
            self.over = True
            self._out.append(End(self._code or 0))

    def _becomes(self, worker: Worker, phase: Phase) -> None:
        if worker.phase is not phase:
            worker.phase, worker.since = phase, self._now

    def _kill(self, worker: Worker) -> None:
        if not worker.killed:
            worker.killed = True
            self._out.append(Kill(worker.id))

    def _is_new(self, key: WorkerId) -> bool:
        worker = self.workers.get(key)
        return worker is not None and worker.phase in (Phase.STARTING, Phase.READY)
