"""The other launchers of a live job: how they come in, are kept in touch with, and are lost."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.link import (
    LONGEST,
    LONGEST_UNPROVEN,
    Admitting,
    Lines,
    LinkFault,
    Message,
    Sealed,
    encode,
)
from ones.slurm_ext.runtime.live.loop import Loop

log = logging.getLogger(__name__)
BEAT = 5.0  # seconds between signs of life of launchers
SILENCE = 30.0  # seconds without one after which a launcher is lost
STRANGER = 10.0  # seconds to prove oneself
STRANGERS = 32  # at a time
OF_ADDRESS = 8  # of them
TELL = 60.0  # seconds between two lines of the log about strangers
MOST_SLOTS = 1024  # of one launcher
# What a message can be the cause of that is JSON, but makes no sense.
NONSENSE = (OnesError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(slots=True)
class Launcher:
    """A connection of another launcher, or of somebody who may become one."""

    link: socket.socket
    admitting: Admitting | None
    address: str = ""
    sealed: Sealed | None = None
    lines: Lines = field(default_factory=lambda: Lines(LONGEST_UNPROVEN))
    heard: float = 0.0  # last; of a stranger, when he came
    home: int = 0
    name: str = ""
    job: str = ""
    slots: int = 0
    workers: int = 0  # to begin with
    waits: bool = False  # until all others of its order are there


class Launchers:
    """Those who have joined, each a home of its own; and strangers, until they have proved
    themselves. `expects` says whether a satellite's ticket is good.

    Whoever reaches the port is a stranger: nothing that he does may touch the training, or keep
    those out who know the secret.
    """

    def __init__(
        self,
        loop: Loop,
        secret: bytes,
        *,
        expects: Callable[[str], bool],
        came: Callable[[Launcher], None],
        said: Callable[[Launcher, Message], None],
        lost: Callable[[Launcher], None],
    ) -> None:
        self._loop = loop
        self._secret = secret
        self._expects, self._came, self._said, self._lost = expects, came, said, lost
        self._launchers: dict[int, Launcher] = {}
        self._strangers: list[Launcher] = []
        self._leaving: list[Launcher] = []
        self._last_home = 0
        self._beat = 0.0
        self._told: float | None = None  # when the log last told of strangers
        self._untold = 0  # strangers gone since

    def __iter__(self) -> Iterator[Launcher]:
        return iter(list(self._launchers.values()))

    def name(self, home: int) -> str:
        """Of the launcher at this home; empty for the base's own, and for one that is gone."""
        launcher = self._launchers.get(home)
        return launcher.name if launcher else ""

    def named(self, name: str) -> int | None:
        """The home of the launcher of this name."""
        return next((launcher.home for launcher in self if launcher.name == name), None)

    def of_job(self, job: int) -> list[Launcher]:
        return [launcher for launcher in self if launcher.job == str(job)]

    def open(self, address: str) -> int:
        """Listen at the address for those who want to join; the port."""
        door = socket.create_server((address, 0))
        door.setblocking(False)
        self._loop.watch(door, lambda: self._greet(door))
        port: int = door.getsockname()[1]
        return port

    def close(self) -> None:
        for launcher in self:
            self.dismiss(launcher.home)

    def tell(self, home: int, message: Message) -> None:
        """One that is gone, or doesn't take it, is lost soon enough."""
        launcher = self._launchers.get(home)
        if launcher is not None and launcher.sealed is not None:
            with contextlib.suppress(OSError):
                launcher.link.sendall(launcher.sealed.seal(message))

    @property
    def leaving(self) -> bool:
        """Whether somebody who is seen off has not ended yet."""
        return bool(self._leaving)

    def dismiss(self, home: int, *, see_off: bool = False) -> None:
        """It is to end by itself, and is not counted any more.

        Who is seen off is `leaving` until its process has ended.
        """
        launcher = self._launchers.get(home)
        if launcher is None:
            return
        self.tell(home, {"do": "dismiss"})
        if see_off:
            del self._launchers[home]
            self._leaving.append(launcher)
        else:
            self._part(launcher)

    def keep_in_touch(self) -> None:
        now = time.monotonic()
        for launcher in [each for each in self._strangers if now - each.heard > STRANGER]:
            self.lose(launcher, "it hasn't said who it is")
        for launcher in [each for each in (*self, *self._leaving) if now - each.heard > SILENCE]:
            self.lose(launcher, f"nothing heard for {SILENCE:.0f} s")
        if now - self._beat > BEAT:
            self._beat = now
            for launcher in self:
                self.tell(launcher.home, {"do": "beat"})

    def lose(self, launcher: Launcher, why: str) -> None:
        if launcher in self._leaving:
            self._part(launcher)
            return
        self._part(launcher)
        if launcher.home:
            log.warning("ones-run: launcher %s is gone: %s", launcher.name, why)
            self._lost(launcher)
        else:
            self._tell_of_stranger(launcher, why)

    def _tell_of_stranger(self, launcher: Launcher, why: str) -> None:
        """In the job's log, which no stranger may fill."""
        now = time.monotonic()
        if self._told is not None and now - self._told < TELL:
            self._untold += 1
            return
        others = f" (and {self._untold} others before)" if self._untold else ""
        log.warning("ones-run: %s did not join: %s%s", launcher.address, why, others)
        self._told, self._untold = now, 0

    def _greet(self, door: socket.socket) -> None:
        try:
            link, (address, *_) = door.accept()
        except OSError:
            return
        self._make_room(address)
        admitting = Admitting(self._secret)
        launcher = Launcher(link, admitting, address, heard=time.monotonic())
        self._strangers.append(launcher)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(SILENCE / 3)  # for sending; it is read when there is something
            link.sendall(admitting.greeting())
        except OSError as fault:
            self.lose(launcher, str(fault))
            return
        self._loop.watch(link, lambda: self._hear(launcher))

    def _make_room(self, address: str) -> None:
        """Drop the longest unproven of this address, or of all, where there are too many.

        A satellite proves itself within milliseconds: it is not the oldest for long.
        """
        neighbours = [each for each in self._strangers if each.address == address]
        if len(neighbours) >= OF_ADDRESS:
            self.lose(neighbours[0], f"{OF_ADDRESS} of this address have not said who they are")
        elif len(self._strangers) >= STRANGERS:
            self.lose(self._strangers[0], f"{STRANGERS} have not said who they are")

    def _hear(self, launcher: Launcher) -> None:
        try:
            data = launcher.link.recv(1 << 16)
            if not data:
                raise LinkFault("it has hung up")
            for line in launcher.lines.add(data):
                if launcher.sealed is None:
                    self._admit(launcher, line)
                elif launcher not in self._leaving:
                    self._said(launcher, launcher.sealed.open(line))
                launcher.heard = time.monotonic()
        except (OSError, *NONSENSE) as fault:
            self.lose(launcher, str(fault))

    def _admit(self, launcher: Launcher, line: bytes) -> None:
        assert launcher.admitting is not None
        offer, welcome, sealed = launcher.admitting.admit(line)
        slots, workers = int(offer["slots"]), int(offer["workers"])
        if not 1 <= workers <= slots <= MOST_SLOTS:
            raise LinkFault(f"it offers {workers} workers in {slots} slots")
        ticket = str(offer.get("ticket", ""))
        if ticket and not self._expects(ticket):
            launcher.link.sendall(
                encode({"error": f"nobody waits for a satellite of order {ticket}"})
            )
            raise LinkFault(f"it comes by order {ticket}, which is over")
        launcher.link.sendall(welcome)
        launcher.admitting, launcher.sealed = None, sealed
        launcher.lines.longest = LONGEST
        launcher.name, launcher.job = str(offer["name"]), str(offer["job"])
        launcher.slots, launcher.workers, launcher.waits = slots, workers, bool(ticket)
        self._last_home += 1
        launcher.home = self._last_home
        self._strangers.remove(launcher)
        self._launchers[launcher.home] = launcher
        self.tell(launcher.home, {"do": "home", "home": launcher.home})
        self._came(launcher)

    def _part(self, launcher: Launcher) -> None:
        self._loop.forget(launcher.link)
        launcher.link.close()
        self._launchers.pop(launcher.home, None)
        for others in (self._strangers, self._leaving):
            if launcher in others:
                others.remove(launcher)
