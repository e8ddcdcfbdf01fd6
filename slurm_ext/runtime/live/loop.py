"""Waiting for sockets, signals and the clock in one thread, as a process that forks must."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
from collections.abc import Callable, Iterable


class Loop:
    """Calls back when a socket can be read, a signal has come, or a moment has passed."""

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._on_signal: Callable[[int], None] = lambda number: None

    def listen(self, numbers: Iterable[int], call: Callable[[int], None]) -> None:
        """Have this called, outside of any signal handler, for these signals."""
        self._on_signal = call
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        self._selector.register(self._woken, selectors.EVENT_READ, self._signals)

    def watch(self, readable: socket.socket, call: Callable[[], None]) -> None:
        self._selector.register(readable, selectors.EVENT_READ, call)

    def forget(self, readable: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(readable)

    def once(self) -> None:
        """Wait for something to happen, or for the next tick."""
        for key, _ in self._selector.select(self._tick):
            if key.fileobj in (each.fileobj for each in self._selector.get_map().values()):
                key.data()

    def _signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._woken.recv(4096):
                self._on_signal(number)
