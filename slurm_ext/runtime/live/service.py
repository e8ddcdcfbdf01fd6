"""The base launcher in a Slurm job: it takes onesd's orders, and tells how the job is made up.

An `Errands` carries the orders out; this is the ground it stands on: which launchers are
satellites, which are of the job's own nodes, and who is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ones.slurm_ext.runtime.live.desk import Desk, Order
from ones.slurm_ext.runtime.live.errand import Errands
from ones.slurm_ext.runtime.live.generation import Council
from ones.slurm_ext.runtime.live.guests import Guest, Guests
from ones.slurm_ext.runtime.live.link import Message
from ones.slurm_ext.runtime.live.loop import Loop
from ones.slurm_ext.runtime.live.recruits import Ours, Recruits
from ones.slurm_ext.runtime.live.terms import Event, Slot, Wanted


class Service:
    """Deals with onesd on one side, and with the council and the guests on the other.

    `take` gives the council an event, and does what follows; `came` has a guest's slots counted in.
    """

    def __init__(
        self,
        path: str,
        ours: Ours,
        environ: Mapping[str, str],
        *,
        loop: Loop,
        council: Council,
        guests: Guests,
        take: Callable[[Event], None],
        came: Callable[[Guest], None],
    ) -> None:
        self._job, self._restarts = str(ours.job), ours.restarts
        self._council, self._guests = council, guests
        self._take, self._count_in = take, came
        self._errands = Errands(self, Recruits(ours, environ))
        self._desk = Desk(
            path,
            job=ours.job,
            restarts=ours.restarts,
            watch=loop.watch,
            forget=loop.forget,
            take=self._order,
        )
        self._own: dict[str, int] = {}  # the job's other nodes -> their homes
        self._since = 0  # the generation in which the last order came
        self._pause: float | None = None

    def report(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Go on with the order under way, and say how things are; `history` is of all changes."""
        working = self._errands.state == "working"
        self._errands.look()
        if working:
            pauses = [each["pause"] or 0.0 for each in history if each["generation"] > self._since]
            self._pause = sum(pauses) if pauses else None
        self._desk.say(self._word())

    def close(self) -> None:
        """The job is over."""
        self._errands.close()
        self._desk.close({**self._word(), "able": False})

    def expects(self, ticket: str) -> bool:
        """Whether a satellite that comes with this ticket is waited for."""
        return self._errands.wants(ticket, self._restarts)

    def came(self, guest: Guest) -> None:
        if guest.job == self._job:
            self._own[guest.name.partition(".")[2]] = guest.home

    def lost(self, guest: Guest) -> None:
        if guest.job.isdecimal():
            self._errands.lost(int(guest.job))

    def refused(self, reason: str) -> None:
        self._errands.refused(reason)

    def is_own(self, home: int) -> bool:
        """Whether a home is on a node of the job's own allocation."""
        return home in self._own.values()

    def _order(self, order: Order) -> None:
        if order.number != self._errands.number:
            self._since, self._pause = self._council.number, None
        self._errands.take(order)

    def _word(self) -> Message:
        council, errands = self._council, self._errands
        members = [council.workers[key] for key in council.members if key in council.workers]
        homes = [each.slot.home for each in members]
        parts = {str(job): 0 for job in (*errands.coming, *self.waiting())}
        parts |= {str(job): homes.count(home) for job, home in self.homes().items()}
        used = [slot.home for slot in council.wanted.union(each.slot for each in members)]
        word: Message = {
            "workers": len(homes),
            "parts": parts,
            "own": {node: used.count(home) for node, home in self._own.items()},
            "order": errands.number,
            "state": errands.state,
            "reason": errands.reason,
            "able": not council.ending,
        }
        return word if self._pause is None else {**word, "pause": self._pause}

    # The ground of errands

    def homes(self) -> dict[int, int]:
        return {
            int(guest.job): guest.home
            for guest in self._guests
            if guest.job.isdecimal() and guest.job != self._job and not guest.waits
        }

    def waiting(self) -> frozenset[int]:
        waiting = [guest for guest in self._guests if guest.waits]
        return frozenset(int(guest.job) for guest in waiting if guest.job.isdecimal())

    def let_in(self, jobs: Iterable[int]) -> None:
        for job in jobs:
            for guest in self._guests.of_job(job):
                guest.waits = False
                self._count_in(guest)

    def send_away(self, jobs: Iterable[int]) -> None:
        sent = [guest for job in jobs for guest in self._guests.of_job(job)]
        left = {guest.home for guest in sent if not guest.waits}
        for guest in sent:
            if guest.waits:
                self._guests.dismiss(guest.home)
        if left:
            slots = frozenset(slot for slot in self._council.slots if slot.home not in left)
            self._take(Wanted(slots))

    def own(self) -> dict[str, int]:
        present = {guest.home for guest in self._guests}
        return {node: home for node, home in self._own.items() if home in present}

    def want(
        self, homes: frozenset[int], batch: int | None, *, without: frozenset[int] = frozenset()
    ) -> None:
        others = {*self.homes().values(), *without}
        slots = frozenset(
            slot for slot in self._council.slots if slot.home in homes or slot.home not in others
        )
        self._take(Wanted(slots, batch, together=True))

    def members(self) -> frozenset[Slot] | None:
        council = self._council
        if not council.settled or self._guests.leaving:
            return None
        return frozenset(council.workers[key].slot for key in council.members)
