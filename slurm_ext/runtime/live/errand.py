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

from ones.slurm_ext.runtime.live.desk import Order
from ones.slurm_ext.runtime.live.recruits import Recruit, Recruits
from ones.slurm_ext.runtime.live.terms import Slot

log = logging.getLogger(__name__)
State = Literal["idle", "working", "done", "failed"]


class Ground(Protocol):
    """What the base launcher knows and does for an errand."""

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
class Errand:
    """The order under way."""

    order: Order
    until: float
    recruits: list[Recruit] = field(default_factory=list)
    changing: bool = False  # all are there

    @property
    def jobs(self) -> list[int]:
        return [each.job for each in self.recruits if each.job is not None]


class Errands:
    """Does what orders say, one after the other."""

    def __init__(
        self, ground: Ground, recruits: Recruits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ground = ground
        self._recruits = recruits
        self._clock = clock
        self._errand: Errand | None = None
        self.number = 0
        self.state: State = "idle"
        self.reason = ""
        self.coming: list[int] = []  # satellites of the order under way
        self._unwanted: list[Recruit] = []  # that Slurm may still take

    def take(self, order: Order) -> None:
        """An order from onesd, which says it again and again until it hears an answer."""
        if order.number == self.number:
            if order.withdrawn and self.state == "working":
                self._fail("withdrawn")
            return
        if self._errand is not None:
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
        errand = self._errand = Errand(order, self._clock() + order.patience)
        gone = order.keep - set(self._ground.homes())
        if gone:
            self._fail(f"satellite {min(gone)} is gone")
            return
        for node, gpus in order.add:
            try:
                recruit = self._recruits.ask(order.number, node, gpus, order.gpu_type)
            except OSError as fault:
                self._fail(f"sbatch: {fault.strerror}")
                return
            errand.recruits.append(recruit)
        self.look()

    def look(self) -> None:
        """Go on as far as it goes now."""
        for each in [each for each in self._unwanted if self._recruits.look(each)]:
            self._unwanted.remove(each)
            self._recruits.cancel([] if each.job is None else [each.job])
        errand = self._errand
        if errand is None:
            return
        answered = [self._recruits.look(each) for each in errand.recruits]
        self.coming = errand.jobs
        if fault := next((each.fault for each in errand.recruits if each.fault), ""):
            self._fail(fault)
        elif gone := errand.order.keep - set(self._ground.homes()):
            self._fail(f"satellite {min(gone)} is gone")
        elif self._clock() > errand.until:
            self._fail(f"not done within {errand.order.patience:.0f} s")
        elif errand.changing:
            self._settle(errand)
        elif all(answered) and self._ground.waiting() >= set(errand.jobs):
            errand.changing = True
            self._ground.let_in(errand.jobs)
            homes = self._ground.homes()
            wanted = frozenset(homes[job] for job in (*errand.order.keep, *errand.jobs))
            self._ground.want(wanted, errand.order.batch, without=self._leaving(errand.order))

    def refused(self, reason: str) -> None:
        """The workers could not be brought together."""
        if self._errand is not None and self._errand.changing:
            self._fail(reason)

    def lost(self, job: int) -> None:
        """A satellite is gone."""
        errand = self._errand
        if errand is not None and job in (*errand.jobs, *errand.order.keep):
            self._fail(f"satellite {job} was lost")

    def wants(self, ticket: str, restarts: int) -> bool:
        """Whether a satellite that comes with this ticket is expected."""
        return self._errand is not None and ticket == f"{restarts}.{self.number}"

    def close(self) -> None:
        """The job is over: what is on its way need not come."""
        if self._errand is not None:
            self._fail("the training is over")

    def _settle(self, errand: Errand) -> None:
        members = self._ground.members()
        if members is None:
            return
        homes = self._ground.homes()
        wanted = {homes.get(job) for job in (*errand.order.keep, *errand.jobs)}
        present = {slot.home for slot in members}
        others = [home for job, home in homes.items() if home not in wanted and home in present]
        leaving = self._leaving(errand.order)
        if None in wanted or not wanted <= present or others or leaving & present:
            self._fail("the workers could not be brought together")
            return
        if leaving:  # Slurm would kill what hasn't ended there, and call the job failed for it
            return
        self._errand, self.coming = None, []
        self.state = "done"

    def _leaving(self, order: Order) -> frozenset[int]:
        """Homes of the base's own that this order sends away."""
        return frozenset(home for node, home in self._ground.own().items() if node in order.leave)

    def _fail(self, reason: str) -> None:
        errand, self._errand = self._errand, None
        self.state, self.reason, self.coming = "failed", " ".join(reason.split())[:500], []
        log.warning("ones-run: order %d: %s", self.number, reason)
        if errand is None:
            return
        self._unwanted += [each for each in errand.recruits if not self._recruits.look(each)]
        inside = set(self._ground.homes())
        self._ground.send_away(errand.jobs)
        self._recruits.cancel([job for job in errand.jobs if job not in inside])
