"""The base launcher in a Slurm job: it takes onesd's orders, and tells how the job is made up.

`Orders` carries them out; this is what it goes by and acts through: which launchers are
satellites, which are of the job's own nodes, and who is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ones.slurm_ext.runtime.live.agent_line import AgentLine, Order
from ones.slurm_ext.runtime.live.generation import Council
from ones.slurm_ext.runtime.live.joining import Launcher, Launchers
from ones.slurm_ext.runtime.live.link import Message
from ones.slurm_ext.runtime.live.loop import Loop
from ones.slurm_ext.runtime.live.order_under_way import Orders
from ones.slurm_ext.runtime.live.submitting import Ours, Submitter
from ones.slurm_ext.runtime.live.terms import Event, Slot, Wanted


class Service:
    """Deals with onesd on one side, and with the council and the launchers on the other.

    `take` gives the council an event, and does what follows; `came` has a launcher's slots counted.
    """

    def __init__(
        self,
        path: str,
        ours: Ours,
        environ: Mapping[str, str],
        *,
        loop: Loop,
        council: Council,
        launchers: Launchers,
        take: Callable[[Event], None],
        came: Callable[[Launcher], None],
    ) -> None:
        self._job, self._restarts = str(ours.job), ours.restarts
        self._council, self._launchers = council, launchers
        self._take, self._count_in = take, came
        self._orders = Orders(self, Submitter(ours, environ))
        self._agent = AgentLine(
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
        self._recoveries: list[Message] = []

    def report(
        self, history: Sequence[Mapping[str, Any]], recoveries: Sequence[Mapping[str, Any]]
    ) -> None:
        """Go on with the order under way, and say how things are.

        `history` is of all changes, `recoveries` of the last few that a lost worker has made.
        """
        self._recoveries = [dict(each) for each in recoveries]
        working = self._orders.state == "working"
        self._orders.look()
        if working:
            pauses = [each["pause"] or 0.0 for each in history if each["generation"] > self._since]
            self._pause = sum(pauses) if pauses else None
        self._agent.say(self._word())

    def close(self) -> None:
        """The job is over."""
        self._orders.close()
        self._agent.close({**self._word(), "able": False})

    def expects(self, ticket: str) -> bool:
        """Whether a satellite that comes with this ticket is waited for."""
        return self._orders.wants(ticket, self._restarts)

    def came(self, launcher: Launcher) -> None:
        if launcher.job == self._job:
            self._own[launcher.name.partition(".")[2]] = launcher.home

    def lost(self, launcher: Launcher) -> None:
        if launcher.job.isdecimal():
            self._orders.lost(int(launcher.job))

    def refused(self, reason: str) -> None:
        self._orders.refused(reason)

    def is_own(self, home: int) -> bool:
        """Whether a home is on a node of the job's own allocation."""
        return home in self._own.values()

    def _order(self, order: Order) -> None:
        if order.number != self._orders.number:
            self._since, self._pause = self._council.number, None
        self._orders.take(order)

    def _word(self) -> Message:
        council, orders = self._council, self._orders
        members = [council.workers[key] for key in council.members if key in council.workers]
        homes = [each.slot.home for each in members]
        parts = {str(job): 0 for job in (*orders.coming, *self.waiting())}
        parts |= {str(job): homes.count(home) for job, home in self.homes().items()}
        used = [slot.home for slot in council.wanted.union(each.slot for each in members)]
        word: Message = {
            "workers": len(homes),
            "parts": parts,
            "own": {node: used.count(home) for node, home in self._own.items()},
            "order": orders.number,
            "state": orders.state,
            "reason": orders.reason,
            "able": not council.ending,
            "recoveries": self._recoveries,
        }
        return word if self._pause is None else {**word, "pause": self._pause}

    # What orders go by, and act through

    def homes(self) -> dict[int, int]:
        return {
            int(launcher.job): launcher.home
            for launcher in self._launchers
            if launcher.job.isdecimal() and launcher.job != self._job and not launcher.waits
        }

    def waiting(self) -> frozenset[int]:
        waiting = [launcher for launcher in self._launchers if launcher.waits]
        return frozenset(int(launcher.job) for launcher in waiting if launcher.job.isdecimal())

    def let_in(self, jobs: Iterable[int]) -> None:
        for job in jobs:
            for launcher in self._launchers.of_job(job):
                launcher.waits = False
                self._count_in(launcher)

    def send_away(self, jobs: Iterable[int]) -> None:
        sent = [launcher for job in jobs for launcher in self._launchers.of_job(job)]
        left = {launcher.home for launcher in sent if not launcher.waits}
        for launcher in sent:
            if launcher.waits:
                self._launchers.dismiss(launcher.home)
        if left:
            slots = frozenset(slot for slot in self._council.slots if slot.home not in left)
            self._take(Wanted(slots))

    def own(self) -> dict[str, int]:
        present = {launcher.home for launcher in self._launchers}
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
        if not council.settled or self._launchers.leaving:
            return None
        return frozenset(council.workers[key].slot for key in council.members)
