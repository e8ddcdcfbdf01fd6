"""The connections to onesd's doors: how long each may be idle, how many there may be, from whom.

Whoever connects costs a descriptor before he has said a word. So a request has to come soon, and
where there are too many connections, the one that has said nothing for longest makes place; those
that agents have proved themselves on go last.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Callable, Hashable, Sequence
from typing import cast

from ones.daemon.pace import Pace

log = logging.getLogger(__name__)
MOST = 12_288  # each agent keeps one
FIRST_WORD = 10.0  # seconds until a request's headers must be there
WORK = 60.0  # for a request and its answer
KEPT = 30.0  # between two requests
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Connections:
    """All connections to some doors; of one address or user at most `of_one`."""

    def __init__(
        self, most: int, *, of_one: int | None = None, allowed: Sequence[Network] = ()
    ) -> None:
        self._most = most
        self._most_of_one = max(8, min(256, most // 4)) if of_one is None else of_one
        self._allowed = allowed
        # By who is at the other end, each in the order of their last answers.
        self._of: dict[Hashable, dict[Connection, None]] = {}
        self._by_transport: dict[asyncio.BaseTransport, Connection] = {}
        self._telling = Pace(rate=1 / 60, burst=1, tokens=1)

    def __len__(self) -> int:
        return len(self._by_transport)

    def guarded(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """The factory of protocols, for a door whose connections count."""
        return lambda: Connection(make(), self)

    def begin(self, transport: asyncio.BaseTransport | None) -> None:
        """A request's headers are there."""
        if (connection := self._found(transport)) is not None:
            connection.busy()

    def proved(self, transport: asyncio.BaseTransport | None) -> None:
        """An agent has proved itself on it."""
        if (connection := self._found(transport)) is not None:
            connection.proved = True

    def stays(self, transport: asyncio.BaseTransport | None) -> None:
        """The answer goes on for as long as the other end listens."""
        if (connection := self._found(transport)) is not None:
            connection.stays()

    def end(self, transport: asyncio.BaseTransport | None) -> None:
        """The request is answered."""
        if (connection := self._found(transport)) is not None:
            mine = self._of[connection.whose]
            del mine[connection]
            mine[connection] = None
            connection.idle(KEPT)

    def _found(self, transport: asyncio.BaseTransport | None) -> Connection | None:
        return None if transport is None else self._by_transport.get(transport)

    def enter(self, connection: Connection, transport: asyncio.Transport) -> bool:
        """Whether it may stay; another one may have to go for it."""
        whose = connection.whose = _whose(transport)
        if isinstance(whose, str) and self._allowed and not self._is_allowed(whose):
            self._tell(f"{whose} may not connect; see allow in [daemon]")
            return False
        if whose not in (0, os.geteuid()):
            mine = self._of.get(whose, {})
            crowd = mine if len(mine) >= self._most_of_one else None
            if crowd is None and len(self) >= self._most:
                crowd = max(self._of.values(), key=len)
            if crowd is not None:
                leaves = _longest_idle(crowd)
                self._tell(f"too many connections ({len(self)}; {len(mine)} of {_shown(whose)})")
                if leaves is None:
                    return False
                leaves.leave()
        self._of.setdefault(whose, {})[connection] = None
        self._by_transport[transport] = connection
        return True

    def _tell(self, what: str) -> None:
        if self._telling.take(asyncio.get_running_loop().time()):
            log.warning("%s; some are closed, and for a minute no more is said of it", what)

    def gone(self, connection: Connection) -> None:
        mine = self._of.get(connection.whose, {})
        mine.pop(connection, None)
        if not mine:
            self._of.pop(connection.whose, None)
        if connection.transport is not None:
            self._by_transport.pop(connection.transport, None)

    def _is_allowed(self, address: Hashable) -> bool:
        found = ipaddress.ip_address(str(address))
        mapped = getattr(found, "ipv4_mapped", None) or found
        return mapped.is_loopback or any(mapped in network for network in self._allowed)


class Connection(asyncio.Protocol):
    """One connection, around aiohttp's own protocol."""

    def __init__(self, inner: asyncio.Protocol, all_of_them: Connections) -> None:
        self._inner = inner
        self._all = all_of_them
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        self.whose: Hashable = None
        self.working = False
        self.proved = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        welcome = self._all.enter(self, self.transport)
        self._inner.connection_made(transport)
        if welcome:
            self.idle(FIRST_WORD)
        else:
            self.transport.abort()

    def connection_lost(self, fault: Exception | None) -> None:
        self._stop_timer()
        self._all.gone(self)
        self._inner.connection_lost(fault)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def busy(self) -> None:
        self.working = True
        self._leaves_after(WORK)

    def stays(self) -> None:
        self.working = True
        self._stop_timer()

    def idle(self, seconds: float) -> None:
        self.working = False
        self._leaves_after(seconds)

    def leave(self) -> None:
        """Close it at once; it counts no more."""
        self._stop_timer()
        self._all.gone(self)
        if self.transport is not None:
            self.transport.abort()

    def _leaves_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.leave)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def uid_of(transport: asyncio.BaseTransport | None) -> int | None:
    """The user at the other end of a unix socket, in the kernel's word; None for TCP."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1]) & 0xFFFFFFFF


def address_of(transport: asyncio.BaseTransport | None) -> str:
    """Where the other end is, for a log."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else "unix"


def _whose(transport: asyncio.BaseTransport) -> int | str:
    uid = uid_of(transport)
    return address_of(transport) if uid is None else uid


def _shown(whose: int | str) -> str:
    return whose if isinstance(whose, str) else f"uid {whose}"


def _longest_idle(connections: dict[Connection, None]) -> Connection | None:
    idle = [one for one in connections if not one.working]
    return next((one for one in idle if not one.proved), next(iter(idle), None))
