"""A worker's side of live resizing: hears its launcher, makes groups beside training, and switches.

A thread reads what the launcher says; each group is made in a thread of its own. The training's own
thread looks here at the end of a step only, and waits here only where it can't train.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ones.slurm_ext.errors import OnesError, in_a_line
from ones.slurm_ext.runtime.live.link import Lines, Message, decode, encode
from ones.slurm_ext.runtime.live.terms import Number, Offer
from ones.slurm_ext.runtime.live.vote import Ballot

log = logging.getLogger(__name__)
# Variables of a worker's environment.
FD = "ONES_LIVE_FD"  # of the link to its launcher
FIRST = "ONES_LIVE_FIRST"  # 1: it reads the checkpoint
HOME = "ONES_LIVE_HOME"  # 0: its launcher is the base
AGAIN = "ONES_LIVE_AGAIN"  # 1: others have trained before it, in this very run of the job


class Made(Protocol):
    """A group that was made."""

    def cut(self) -> None: ...

    def drop(self) -> None: ...


# An offer, the group's name, and the store; None where this worker needs no group to leave.
Make = Callable[[Offer, str, tuple[str, int]], Made | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A generation that this worker is about to enter."""

    offer: Offer
    group: Any  # as it was made; None where this worker leaves, and has nothing to hand on


class Leave(Exception):
    """The launcher has sent this worker away."""


class Member:
    """One worker's knowledge of the present generation and of the next."""

    def __init__(self, link: socket.socket, make: Make) -> None:
        self.committed: int | None = None
        """Samples of which this worker has the whole state; None: it hasn't got one."""
        self.ballot = Ballot()
        self._link = link
        self._saying = threading.Lock()
        self._make = make
        self._changed = threading.Condition()
        self._next: Entry | None = None  # made, and not yet entered
        self._making: Number | None = None
        self._void: set[Number] = set()  # numbers that are not to be entered any more
        self._go: Number | None = None
        self._failed: Number | None = None
        self._inside: dict[Number, Made] = {}  # groups in which the training's thread may wait
        self._sent_away = False
        self._trains = False
        threading.Thread(target=self._listen, name="ones-live", daemon=True).start()

    def say(self, what: str, **fields: Any) -> None:
        """Tell the launcher; without one there is nobody left to tell."""
        try:
            with self._saying:
                self._link.sendall(encode({"say": what, **fields}))
        except OSError as fault:
            log.warning("ones: the launcher doesn't answer: %s", fault)

    @property
    def vote(self) -> Number:
        with self._changed:
            return self.ballot.vote

    def result(self, least: int, greatest: int) -> Entry | None:
        """What a vote's result means: the generation to enter now, or that it goes on as it is."""
        with self._changed:
            if self.ballot.switches(least, greatest):
                entry, self._next = self._next, None
                assert entry is not None
                self.say("switching", number=entry.offer.number)
                return entry
            dropped = self.ballot.after_result()
            if dropped is not None:
                self._drop(dropped)
        return None

    def wait(self) -> Entry:
        """The next generation, for a worker that can't train without one. Raises Leave."""
        with self._changed:
            self._trains = False
            while True:
                if self._sent_away:
                    raise Leave
                entry = self._next
                if entry is not None:
                    number = entry.offer.number
                    if entry.offer.at_once or self._go == number:
                        self._next = None
                        return entry
                if self._failed is not None:
                    # Where the others have switched, or nobody trains, it must be told as a break.
                    self._failed = None
                    self.say("broken", committed=self.committed)
                self._changed.wait()

    def enters(self, number: Number, group: Made) -> None:
        """The training's thread is about to use this group."""
        with self._changed:
            self._inside[number] = group

    def entered(self, number: Number) -> None:
        with self._changed:
            self._inside = {key: each for key, each in self._inside.items() if key == number}
            self.ballot.entered(number)
            self._trains, self._go, self._failed = True, None, None

    def broke(self) -> None:
        """The present group, or the one being entered, has lost a member."""
        with self._changed:
            self._trains = False
            self._inside.clear()
            self.ballot.prepared = None
            if self._making is not None:
                self._void.add(self._making)
            if self._next is not None:
                entry, self._next = self._next, None
                if entry.group is not None:
                    entry.group.drop()
        self.say("broken", committed=self.committed)

    def _listen(self) -> None:
        lines = Lines()
        while True:
            try:
                data = self._link.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                return  # the kernel ends us with our launcher
            try:
                for line in lines.add(data):
                    self._take(decode(line))
            except (OnesError, LookupError, TypeError, ValueError) as fault:
                # Deaf, it would hold up all others: without it they go on at once.
                reason = in_a_line(repr(fault), longest=200)
                log.error("ones: what the launcher says can't be read: %s", reason)
                os._exit(1)

    def _take(self, message: Message) -> None:
        with self._changed:
            match message["do"]:
                case "propose":
                    offer = _offer(message)
                    self._making = offer.number
                    host, port = message["store"]
                    threading.Thread(
                        target=self._prepare,
                        args=(offer, str(message["name"]), (str(host), int(port))),
                        name="ones-group",
                        daemon=True,
                    ).start()
                case "abort":
                    self._abort(Number(message["number"]))
                case "go":
                    number = Number(message["number"])
                    self._go = number
                    made = self._next is not None and self._next.offer.number == number
                    if not made and self._making != number:
                        self._failed = number
                case "cut":
                    number = Number(message["number"])
                    if number in self._inside:
                        self._inside[number].cut()
                case "leave":
                    self._sent_away = True
            self._changed.notify_all()

    def _abort(self, number: Number) -> None:
        if self._making == number:
            self._void.add(number)  # its thread drops it
        if self._trains:
            self.ballot.withdraw(number)
        else:
            self._drop(number)

    def _drop(self, number: Number) -> None:
        if self._next is not None and self._next.offer.number == number:
            entry, self._next = self._next, None
            if entry.group is not None:
                entry.group.drop()
        if self._making != number:
            self.say("dropped", number=number)

    def _prepare(self, offer: Offer, name: str, store: tuple[str, int]) -> None:
        group: Made | None = None
        reason = ""
        try:
            group = self._make(offer, name, store)
        except OnesError as fault:
            reason = str(fault)
        except Exception as fault:  # of a PyTorch that isn't as those known here
            reason = f"group {name}: {type(fault).__name__}: {fault}"
            log.exception("ones: group %s", name)
        with self._changed:
            number = offer.number
            if self._making == number:
                self._making = None
            if number in self._void:
                if group is not None:
                    group.drop()
                self.say("dropped", number=number)
            elif reason:
                if offer.at_once or self._go == number:
                    log.warning("ones: %s", reason)
                    self._failed = number
                else:
                    self.say("failed", number=number, reason=reason)
            else:
                self._next = Entry(offer, group)
                if self._trains:
                    self.ballot.prepare(number)
            self._changed.notify_all()


def _offer(message: Message) -> Offer:
    said = message["offer"]
    return Offer(
        number=Number(said["number"]),
        rank=said["rank"],
        size=said["size"],
        sources=tuple(said["sources"]),
        receivers=tuple(said["receivers"]),
        batch=said["batch"],
        at_once=said["at_once"],
        # A launcher of an earlier version says neither: its jobs have no sharded models.
        place=said.get("place", said["rank"] or 0),
        involved=said.get("involved", said["size"]),
    )
