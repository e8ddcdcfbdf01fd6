"""A launcher that joins a running job: it offers its slots to the base, and does as it is told."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import time
from pathlib import Path

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.environment import Place
from ones.slurm_ext.runtime.live.base import TICK
from ones.slurm_ext.runtime.live.home import GRACE, HEARD, Home
from ones.slurm_ext.runtime.live.joining import BEAT, SILENCE
from ones.slurm_ext.runtime.live.link import (
    LONGEST,
    LONGEST_UNPROVEN,
    Joining,
    Lines,
    LinkFault,
    Message,
    Sealed,
    read_join_file,
)
from ones.slurm_ext.runtime.live.loop import Loop

log = logging.getLogger(__name__)
PATIENCE = 120.0  # seconds to find the base
TOLD = 10.0  # ... after which it is told that there is none yet
RETRY = 0.5
ORPHANED = 1.0  # seconds that workers have to end when there is nobody left to train with


class Satellite:
    """Holds slots of a job that is led from elsewhere."""

    def __init__(self, home: Home, join_file: Path, offer: Message) -> None:
        self._home = home
        self._join_file = join_file
        self._offer = offer  # what it is called, whose it is, and how many workers it may have
        self._loop = Loop(TICK)
        home.let_go = self._loop.forget
        self._lines = Lines()
        self._early: list[bytes] = []
        self._heard = self._beat = time.monotonic()
        self._over = False
        self._lost = False

    def run(self) -> int:
        """Until the base sends us away (0), or is lost (1)."""
        self._link, self._sealed = self._join()
        self._loop.listen((*HEARD, signal.SIGCHLD), self._signalled)
        self._loop.watch(self._link, self._hear)
        for line in self._early:
            self._obey(self._sealed.open(line))
        while not (self._over and not self._home.pids()):
            self._loop.once()
            for worker, code, last in self._home.reap():
                for message in last:
                    self._say({**message, "worker": worker})
                self._say({"say": "gone", "worker": worker, "code": code})
            self._home.overdue()
            now = time.monotonic()
            if now - self._beat > BEAT:
                self._beat = now
                self._say({"say": "beat"})
            if now - self._heard > SILENCE and not self._over:
                self._part(f"nothing heard for {SILENCE:.0f} s")
        return 1 if self._lost else 0

    def _join(self) -> tuple[socket.socket, Sealed]:
        """Find the base, which may be starting still, and be admitted."""
        begun, told = time.monotonic(), False
        while True:
            try:
                return self._try_to_join()
            except (OSError, OnesError) as fault:
                tried = time.monotonic() - begun
                if tried > PATIENCE or "refuses" in str(fault):
                    raise LinkFault(f"no way to join the job: {fault}") from None
                if tried > TOLD and not told:
                    told = True
                    log.warning(
                        "ones-run: no way to join the job yet (%s); it is tried for %.0f s",
                        fault,
                        PATIENCE,
                    )
                time.sleep(RETRY)

    def _try_to_join(self) -> tuple[socket.socket, Sealed]:
        base = read_join_file(self._join_file)
        link = socket.create_connection((base.host, base.port), timeout=SILENCE / 3)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            joining, lines = Joining(base.secret, self._offer), Lines(LONGEST_UNPROVEN)
            link.sendall(joining.answer(_line(link, lines, self._early)))
            sealed = joining.admitted(_line(link, lines, self._early))
            lines.longest = LONGEST
        except BaseException:
            link.close()
            raise
        self._lines = lines
        self._heard = time.monotonic()
        return link, sealed

    def _hear(self) -> None:
        try:
            data = self._link.recv(1 << 16)
            if not data:
                raise LinkFault("it has hung up")
            for line in self._lines.add(data):
                self._heard = time.monotonic()
                self._obey(self._sealed.open(line))
        except (OSError, LinkFault) as fault:
            self._part(str(fault))

    def _obey(self, message: Message) -> None:
        worker = message.get("worker", 0)
        match message["do"]:
            case "beat":
                pass
            case "home":
                self._home.number = message["home"]
            case "start":
                place = Place(**message["place"])
                first, again = message["first"], message["again"]
                link = self._home.start(worker, place, first=first, again=again)
                if link is None:
                    return
                self._loop.watch(link, lambda: self._hear_worker(worker, link))
                self._say({"say": "started", "worker": worker, "pid": self._home.pids()[worker]})
            case "kill":
                self._home.kill(worker, now=message["now"])
            case "dismiss":
                self._over = True
                self._end_workers()
            case _:
                self._home.tell(worker, {**message})

    def _hear_worker(self, worker: int, link: socket.socket) -> None:
        messages = list(self._home.heard(worker))
        if not messages:
            self._loop.forget(link)
        for message in messages:
            self._say({**message, "worker": worker})

    def _signalled(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._say({"say": "leaving"})
        elif number != signal.SIGCHLD:
            self._home.signal(number)

    def _say(self, message: Message) -> None:
        if not self._lost:
            with contextlib.suppress(OSError):
                self._link.sendall(self._sealed.seal(message))

    def _part(self, why: str) -> None:
        """Without the base there is no training."""
        self._loop.forget(self._link)
        if not self._over:
            log.warning("ones-run: the job's first launcher is gone: %s", why)
            self._lost = self._over = True
        self._end_workers(grace=ORPHANED)

    def _end_workers(self, *, grace: float = GRACE) -> None:
        for worker in self._home.pids():
            self._home.kill(worker, grace=grace)


def _line(link: socket.socket, lines: Lines, early: list[bytes]) -> bytes:
    """The next line; what comes with it already is for later."""
    while not early:
        data = link.recv(1 << 16)
        if not data:
            raise LinkFault("the job's first launcher has hung up")
        early += lines.add(data)
    return early.pop(0)
