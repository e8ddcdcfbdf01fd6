"""Carrying out onesd's orders at the base launcher: satellites come, then all change at once.

An order says which satellites stay and what is to be added. Those that are added are submitted,
and wait at the door until all of them are there; only then are their workers started, and the
vote that takes them in is the one that lets the others leave. Where one does not come in time, all
of that order go again, and the job is as it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ones.slurm_ext.runtime.live.agent_line import Order
from ones.slurm_ext.runtime.live.submitting import Submitted, Submitter
from ones.slurm_ext.runtime.live.terms import Slot

log = logging.getLogger(__name__)
State = Literal["idle", "working", "done", "failed"]


class BaseLauncher(Protocol):
    """What the base launcher knows and does to carry out an order."""

    def homes(self) -> dict[int, int]:
        """Satellite's Slurm job -> its home, of those that are in."""

    def waiting(self) -> frozenset[int]:
        """Slurm jobs of the satellites that wait at the door."""

    def let_in(self, jobs: Iterable[int]) -> None:
        """Take these in; workers are wanted in all of their slots."""

    def send_away(self, jobs: Iterable[int]) -> None:
        """End these satellites, in or at the door."""

    def own(self) -> dict[str, int]:
        """Further nodes of the job's own allocation -> their homes, until their launchers end."""

    def want(
        self, homes: frozenset[int], batch: int | None, *, without: frozenset[int] = frozenset()
    ) -> None:
        """Workers in all slots of these homes, of the base, and of whom nobody has ordered.

        In none of `without`, which are the base's own.
        """

    def members(self) -> frozenset[Slot] | None:
        """Who trains; None while that is changing."""


@dataclass(slots=True)
class OrderUnderWay:
    """The order under way."""

    order: Order
    until: float
    submitted: list[Submitted] = field(default_factory=list)
    changing: bool = False  # all are there

    @property
    def jobs(self) -> list[int]:
        return [each.job for each in self.submitted if each.job is not None]


class Orders:
    """Does what orders say, one after the other."""

    def __init__(
        self, base: BaseLauncher, submitter: Submitter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._base = base
        self._submitter = submitter
        self._clock = clock
        self._current: OrderUnderWay | None = None
        self.number = 0
        self.state: State = "idle"
        self.reason = ""
        self.coming: list[int] = []  # satellites of the order under way
        self._unwanted: list[Submitted] = []  # that Slurm may still take

    def take(self, order: Order) -> None:
        """An order from onesd, which says it again and again until it hears an answer."""
        if order.number == self.number:
            if order.withdrawn and self.state == "working":
                self._fail("withdrawn")
            return
        if self._current is not None:
            self._fail("another order has come")
        self.number, self.reason = order.number, ""
        if order.withdrawn:
            self.state, self.reason = "failed", "withdrawn"
            return
        log.info(
            "ones-run: order %d: keep %s, add %s, leave %s",
            order.number,
            sorted(order.keep),
            order.add,
            sorted(order.leave),
        )
        self.state = "working"
        current = self._current = OrderUnderWay(order, self._clock() + order.patience)
        gone = order.keep - set(self._base.homes())
        if gone:
            self._fail(f"satellite {min(gone)} is gone")
            return
        for node, gpus in order.add:
            try:
                satellite = self._submitter.ask(order.number, node, gpus, order.gpu_type)
            except (OSError, ValueError) as fault:
                reason = fault.strerror if isinstance(fault, OSError) else fault
                self._fail(f"sbatch: {reason}")
                return
            current.submitted.append(satellite)
        self.look()

    def look(self) -> None:
        """Go on as far as it goes now."""
        for each in [each for each in self._unwanted if self._submitter.look(each)]:
            self._unwanted.remove(each)
            self._submitter.cancel([] if each.job is None else [each.job])
        current = self._current
        if current is None:
            return
        answered = [self._submitter.look(each) for each in current.submitted]
        self.coming = current.jobs
        if fault := next((each.fault for each in current.submitted if each.fault), ""):
            self._fail(fault)
        elif gone := current.order.keep - set(self._base.homes()):
            self._fail(f"satellite {min(gone)} is gone")
        elif self._clock() > current.until:
            self._fail(f"not done within {current.order.patience:.0f} s")
        elif current.changing:
            self._settle(current)
        elif all(answered) and self._base.waiting() >= set(current.jobs):
            current.changing = True
            self._base.let_in(current.jobs)
            homes = self._base.homes()
            wanted = frozenset(homes[job] for job in (*current.order.keep, *current.jobs))
            self._base.want(wanted, current.order.batch, without=self._leaving(current.order))

    def refused(self, reason: str) -> None:
        """The workers could not be brought together."""
        if self._current is not None and self._current.changing:
            self._fail(reason)

    def lost(self, job: int) -> None:
        """A satellite is gone."""
        current = self._current
        if current is not None and job in (*current.jobs, *current.order.keep):
            self._fail(f"satellite {job} was lost")

    def wants(self, ticket: str, restarts: int) -> bool:
        """Whether a satellite that comes with this ticket is expected."""
        return self._current is not None and ticket == f"{restarts}.{self.number}"

    def close(self) -> None:
        """The job is over: what is on its way need not come."""
        if self._current is not None:
            self._fail("the training is over")

    def _settle(self, current: OrderUnderWay) -> None:
        members = self._base.members()
        if members is None:
            return
        homes = self._base.homes()
        wanted = {homes.get(job) for job in (*current.order.keep, *current.jobs)}
        present = {slot.home for slot in members}
        others = [home for job, home in homes.items() if home not in wanted and home in present]
        leaving = self._leaving(current.order)
        if None in wanted or not wanted <= present or others or leaving & present:
            self._fail("the workers could not be brought together")
            return
        if leaving:  # Slurm would kill what hasn't ended there, and call the job failed for it
            return
        self._current, self.coming = None, []
        self.state = "done"

    def _leaving(self, order: Order) -> frozenset[int]:
        """Homes of the base's own that this order sends away."""
        return frozenset(home for node, home in self._base.own().items() if node in order.leave)

    def _fail(self, reason: str) -> None:
        current, self._current = self._current, None
        self.state, self.reason, self.coming = "failed", " ".join(reason.split())[:500], []
        log.warning("ones-run: order %d: %s", self.number, reason)
        if current is None:
            return
        self._unwanted += [each for each in current.submitted if not self._submitter.look(each)]
        inside = set(self._base.homes())
        self._base.send_away(current.jobs)
        self._submitter.cancel([job for job in current.jobs if job not in inside])
