"""The other launchers of a live job: how they come in, are kept in touch with, and are lost."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.link import Admitting, Lines, LinkFault, Message, Sealed, encode
from ones.slurm_ext.runtime.live.loop import Loop

log = logging.getLogger(__name__)
BEAT = 5.0  # seconds between signs of life of launchers
SILENCE = 30.0  # seconds without one after which a launcher is lost
STRANGER = 10.0  # seconds to prove oneself
STRANGERS = 32  # at a time
MOST_SLOTS = 1024  # of one launcher


@dataclass(slots=True)
class Guest:
    """A connection of another launcher, or of somebody who may become one."""

    link: socket.socket
    admitting: Admitting | None
    sealed: Sealed | None = None
    lines: Lines = field(default_factory=Lines)
    heard: float = 0.0
    home: int = 0
    name: str = ""
    job: str = ""
    slots: int = 0
    workers: int = 0  # to begin with
    waits: bool = False  # until all others of its order are there


class Guests:
    """Those who have joined, each a home of its own; and strangers, until they have proved
    themselves. `expects` says whether a satellite's ticket is good."""

    def __init__(
        self,
        loop: Loop,
        secret: bytes,
        *,
        expects: Callable[[str], bool],
        came: Callable[[Guest], None],
        said: Callable[[Guest, Message], None],
        lost: Callable[[Guest], None],
    ) -> None:
        self._loop = loop
        self._secret = secret
        self._expects, self._came, self._said, self._lost = expects, came, said, lost
        self._guests: dict[int, Guest] = {}
        self._strangers: list[Guest] = []
        self._leaving: list[Guest] = []
        self._last_home = 0
        self._beat = 0.0

    def __iter__(self) -> Iterator[Guest]:
        return iter(list(self._guests.values()))

    def name(self, home: int) -> str:
        """Of the launcher at this home; empty for the base's own, and for one that is gone."""
        guest = self._guests.get(home)
        return guest.name if guest else ""

    def named(self, name: str) -> int | None:
        """The home of the launcher of this name."""
        return next((guest.home for guest in self if guest.name == name), None)

    def of_job(self, job: int) -> list[Guest]:
        return [guest for guest in self if guest.job == str(job)]

    def open(self, address: str) -> int:
        """Listen at the address for those who want to join; the port."""
        door = socket.create_server((address, 0))
        door.setblocking(False)
        self._loop.watch(door, lambda: self._greet(door))
        port: int = door.getsockname()[1]
        return port

    def close(self) -> None:
        for guest in self:
            self.dismiss(guest.home)

    def tell(self, home: int, message: Message) -> None:
        """One that is gone, or doesn't take it, is lost soon enough."""
        guest = self._guests.get(home)
        if guest is not None and guest.sealed is not None:
            with contextlib.suppress(OSError):
                guest.link.sendall(guest.sealed.seal(message))

    @property
    def leaving(self) -> bool:
        """Whether somebody who is seen off has not ended yet."""
        return bool(self._leaving)

    def dismiss(self, home: int, *, see_off: bool = False) -> None:
        """It is to end by itself, and is no guest any more.

        Who is seen off is `leaving` until its process has ended.
        """
        guest = self._guests.get(home)
        if guest is None:
            return
        self.tell(home, {"do": "dismiss"})
        if see_off:
            del self._guests[home]
            self._leaving.append(guest)
        else:
            self._part(guest)

    def keep_in_touch(self) -> None:
        now = time.monotonic()
        for guest in [each for each in self._strangers if now - each.heard > STRANGER]:
            self.lose(guest, "it hasn't said who it is")
        for guest in [each for each in (*self, *self._leaving) if now - each.heard > SILENCE]:
            self.lose(guest, f"nothing heard for {SILENCE:.0f} s")
        if now - self._beat > BEAT:
            self._beat = now
            for guest in self:
                self.tell(guest.home, {"do": "beat"})

    def lose(self, guest: Guest, why: str) -> None:
        if guest in self._leaving:
            self._part(guest)
            return
        who = f"launcher {guest.name}" if guest.home else "somebody who wanted to join"
        log.warning("ones-run: %s is gone: %s", who, why)
        self._part(guest)
        if guest.home:
            self._lost(guest)

    def _greet(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):
            link, _ = door.accept()
            if len(self._strangers) >= STRANGERS:
                link.close()
                return
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            admitting = Admitting(self._secret)
            guest = Guest(link, admitting, heard=time.monotonic())
            self._strangers.append(guest)
            link.settimeout(SILENCE / 3)  # for sending; it is read when there is something
            link.sendall(admitting.greeting())
            self._loop.watch(link, lambda: self._hear(guest))

    def _hear(self, guest: Guest) -> None:
        try:
            data = guest.link.recv(1 << 16)
            if not data:
                raise LinkFault("it has hung up")
            for line in guest.lines.add(data):
                guest.heard = time.monotonic()
                if guest.sealed is None:
                    self._admit(guest, line)
                elif guest not in self._leaving:
                    self._said(guest, guest.sealed.open(line))
        except (OSError, OnesError, KeyError, TypeError, ValueError) as fault:
            self.lose(guest, str(fault))

    def _admit(self, guest: Guest, line: bytes) -> None:
        assert guest.admitting is not None
        offer, welcome, sealed = guest.admitting.admit(line)
        slots, workers = int(offer["slots"]), int(offer["workers"])
        if not 1 <= workers <= slots <= MOST_SLOTS:
            raise LinkFault(f"it offers {workers} workers in {slots} slots")
        ticket = str(offer.get("ticket", ""))
        if ticket and not self._expects(ticket):
            guest.link.sendall(encode({"error": f"nobody waits for a satellite of order {ticket}"}))
            raise LinkFault(f"it comes by order {ticket}, which is over")
        guest.link.sendall(welcome)
        guest.admitting, guest.sealed = None, sealed
        guest.name, guest.job = str(offer["name"]), str(offer["job"])
        guest.slots, guest.workers, guest.waits = slots, workers, bool(ticket)
        self._last_home += 1
        guest.home = self._last_home
        self._strangers.remove(guest)
        self._guests[guest.home] = guest
        self.tell(guest.home, {"do": "home", "home": guest.home})
        self._came(guest)

    def _part(self, guest: Guest) -> None:
        self._loop.forget(guest.link)
        guest.link.close()
        self._guests.pop(guest.home, None)
        for others in (self._strangers, self._leaving):
            if guest in others:
                others.remove(guest)
