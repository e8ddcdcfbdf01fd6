"""The worker processes of one launcher: started, spoken to, and ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ones.slurm_ext.runtime.environment import Place, read_environment
from ones.slurm_ext.runtime.live.link import Lines, LinkFault, Message, decode, encode
from ones.slurm_ext.runtime.live.member import AGAIN, FD, FIRST, HOME

log = logging.getLogger(__name__)
GRACE = 10.0  # seconds from the first word to SIGKILL
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(slots=True)
class Process:
    """A worker process and the line to it."""

    worker: int
    pid: int
    link: socket.socket
    lines: Lines = field(default_factory=Lines)
    ends: float | None = None  # when SIGKILL is due


class Home:
    """One launcher's workers. `run` makes the process that calls it the worker at a place."""

    def __init__(self, run: Callable[[Place], None], die_with: Callable[[int], None]) -> None:
        self.number = 0
        self.let_go: Callable[[socket.socket], None] = lambda link: None
        """Called with a line before it is closed."""
        self._run = run
        self._die_with = die_with
        self._processes: dict[int, Process] = {}
        self._failed: list[int] = []  # that could not be started
        self._before = _sockets()

    def start(self, worker: int, place: Place, *, first: bool, again: bool) -> socket.socket | None:
        """Fork a worker; what it says comes from the socket.

        None where the machine has no room for it just now: `reap` then says that it is gone.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as fault:
            self._not_started(worker, fault)
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        # Nothing may arrive between the fork and the end of our handlers in the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        try:
            pid = os.fork()
        except OSError as fault:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
            ours.close()
            theirs.close()
            self._not_started(worker, fault)
            return None
        if pid == 0:
            self._become(theirs, place, parent, first=first, again=again)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        theirs.close()
        ours.setblocking(False)
        self._processes[worker] = Process(worker, pid, ours)
        return ours

    def _not_started(self, worker: int, fault: OSError) -> None:
        log.warning("ones-run: a worker could not be started: %s", fault.strerror)
        self._failed.append(worker)

    def pids(self) -> dict[int, int]:
        return {each.worker: each.pid for each in self._processes.values()}

    def tell(self, worker: int, message: Message) -> None:
        if process := self._processes.get(worker):
            with contextlib.suppress(OSError):
                process.link.setblocking(True)
                process.link.sendall(encode(message))
                process.link.setblocking(False)

    def heard(self, worker: int) -> Iterator[Message]:
        """What has arrived from a worker."""
        process = self._processes.get(worker)
        if process is None:
            return
        try:
            data = process.link.recv(1 << 16)
            for line in process.lines.add(data):
                yield decode(line)
        except (OSError, LinkFault):
            return

    def kill(self, worker: int, *, now: bool = False, grace: float = GRACE) -> None:
        """End a worker: ask it to leave first, unless `now`."""
        process = self._processes.get(worker)
        if process is None:
            return
        if now:
            _signal(process.pid, signal.SIGKILL)
        elif process.ends is None:
            self.tell(worker, {"do": "leave"})
            _signal(process.pid, signal.SIGTERM)
            process.ends = time.monotonic() + grace

    def signal(self, number: int) -> None:
        for process in self._processes.values():
            _signal(process.pid, number)

    def overdue(self) -> None:
        """SIGKILL to those who were to end and didn't."""
        now = time.monotonic()
        for process in self._processes.values():
            if process.ends is not None and now > process.ends:
                _signal(process.pid, signal.SIGKILL)

    def reap(self) -> Iterator[tuple[int, int, list[Message]]]:
        """Workers that have ended, with their exit codes and last words."""
        failed, self._failed = self._failed, []
        yield from ((worker, 1, []) for worker in failed)
        for process in list(self._processes.values()):
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                last: list[Message] = []
                while more := list(self.heard(process.worker)):
                    last += more
                del self._processes[process.worker]
                self.let_go(process.link)  # its number may be another's at once
                process.link.close()
                yield process.worker, os.waitstatus_to_exitcode(status), last

    def _become(
        self, link: socket.socket, place: Place, parent: int, *, first: bool, again: bool
    ) -> None:
        signal.set_wakeup_fd(-1)
        for number in (*HEARD, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(read_environment(os.environ).checkpoint_signal, signal.SIG_IGN)
        if self.number:
            # The end of this launcher's Slurm job is not the end of the training.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        # Other workers' lines, and the doors, are none of ours.
        for each in _sockets() - self._before - {link.fileno()}:
            os.close(each)
        self._die_with(parent)
        os.environ.update({FD: str(link.detach()), HOME: str(self.number)})
        os.environ[FIRST] = "1" if first else "0"
        if again:
            os.environ[AGAIN] = "1"
        self._run(place)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _sockets() -> set[int]:
    """The sockets that this process has open, besides those it was given as 0 to 2."""
    found = set()
    for open_file in list(Path("/proc/self/fd").iterdir()):
        number = int(open_file.name)
        with contextlib.suppress(OSError):
            if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode):
                found.add(number)
    return found
