"""The node-local socket: jobs report through it, and slurmstepd asks what a job's environment is.

The kernel names the peer; the peer's process names the job (see attribution). Nobody's word for
another job is taken, and nothing that a peer sends or leaves unsent holds up another peer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ones.daemon.agent.attribution import Owner
from ones.daemon.agent.messages import MOST_BYTES, Message, Refused, read_message
from ones.daemon.descriptors import BACKLOG, for_visitors
from ones.daemon.wire import Lease
from ones.slurm_ext.errors import OnesError

log = logging.getLogger(__name__)
MOST_CONNECTIONS = 4096  # fewer where fewer descriptors are allowed
MOST_OF_ONE_USER = 256
FOR_ROOT = 64  # connections that only root and our own user may have: slurmstepd is root's
MOST_TOLD = 4096  # refusals that are logged
MOST_FAULTS = 16  # refusals after which a connection is closed
PENALTY = 0.1  # seconds that a refused sender waits for its answer
_ENV = re.compile(rb"env ([1-9][0-9]{0,9}) ([0-9]{1,10})\r?")
_ACCEPTED = b'{"ok":true}\n'


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, in the kernel's word."""

    pid: int
    uid: int


# What a job that takes another batch or size while it runs is told of its lease. Raises Refused.
Take = Callable[[Peer, Owner, Message], Lease | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitors:
    """What the door needs to know and to call."""

    identify: Callable[[Peer], Owner | None]  # whose process this is
    take: Take
    environment: Callable[[Peer, int, int], Awaitable[list[str]]]  # peer, job, uid -> NAME=VALUE
    refused: Callable[[str], None]  # counts


class Door:
    """The listening socket and its connections."""

    def __init__(self, path: Path, visitors: Visitors) -> None:
        self._path = path
        self._visitors = visitors
        self._connections: Counter[int] = Counter()
        self._told: set[tuple[int, str]] = set()
        self._trusted = {0, os.geteuid()}
        self._most = for_visitors(MOST_CONNECTIONS) - FOR_ROOT
        self._most_of_one = max(1, min(MOST_OF_ONE_USER, self._most // 2))

    async def open(self) -> asyncio.Server:
        """Listen; raises OnesError where that can't be or another agent already does."""
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _remove_stale(self._path)
            server = await asyncio.start_unix_server(
                self._serve, self._path, limit=MOST_BYTES, backlog=BACKLOG
            )
            self._path.chmod(0o666)
        except OSError as fault:
            raise OnesError(
                f"{self._path}: {fault.strerror or fault}; name another with socket in [agent]"
            ) from None
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        trusted = peer.uid in self._trusted
        crowded = (
            self._connections[peer.uid] >= self._most_of_one
            or self._connections.total() >= self._most
        )
        if crowded and not trusted:
            self._visitors.refused("too_many")
            writer.close()
            return
        self._connections[peer.uid] += 1
        try:
            await self._converse(peer, reader, writer)
        except (ConnectionError, TimeoutError):
            pass  # it hung up
        finally:
            self._connections[peer.uid] -= 1
            if not self._connections[peer.uid]:
                del self._connections[peer.uid]
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _converse(
        self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # At once, while the process that connected is most surely still the one of this id.
        owner = self._visitors.identify(peer)
        faults = 0
        while faults < MOST_FAULTS:
            try:
                line = await _line(reader)
                if line is None:
                    return
                if not line.strip():
                    continue
                asked = _ENV.fullmatch(line)
                if asked is not None and peer.uid in self._trusted:
                    job, uid = int(asked[1]), int(asked[2])
                    lines = await self._visitors.environment(peer, job, uid)
                    writer.write("".join(f"{each}\n" for each in lines).encode())
                    await writer.drain()
                    return  # the end of the answer is the end of the connection
                answer = _accepted(self._report(peer, owner, line))
            except Refused as refusal:
                faults += refusal.why != "too_fast"
                self._tell(peer, owner, refusal)
                answer = msgspec.json.encode({"ok": False, "error": str(refusal)}) + b"\n"
                await asyncio.sleep(PENALTY)
            writer.write(answer)
            await writer.drain()

    def _report(self, peer: Peer, owner: Owner | None, line: bytes) -> Lease | None:
        if owner is None:
            raise Refused(
                "unproven",
                f"process {peer.pid} belongs to no job of Slurm on this node;"
                " report from within the job",
            )
        return self._visitors.take(peer, owner, read_message(line, job=owner.job))

    def _tell(self, peer: Peer, owner: Owner | None, refusal: Refused) -> None:
        """Count it, and log a user's first of each kind: a flood of lies must not fill a disk."""
        self._visitors.refused(refusal.why)
        if (peer.uid, refusal.why) in self._told or len(self._told) > MOST_TOLD:
            return
        self._told.add((peer.uid, refusal.why))
        job = f"job {owner.job}" if owner else f"process {peer.pid}"
        log.warning(
            "%s of uid %d was refused (more such are only counted): %s", job, peer.uid, refusal
        )


def _accepted(lease: Lease | None) -> bytes:
    told: dict[str, object] = {}
    if lease is not None and lease.batch is not None:
        told["batch"] = lease.batch
    if lease is not None and lease.order is not None:
        told["order"] = lease.order
    return msgspec.json.encode({"ok": True, **told}) + b"\n" if told else _ACCEPTED


async def _line(reader: asyncio.StreamReader) -> bytes | None:
    """The next line without its end, None after the last; raises Refused for an endless one."""
    try:
        return (await reader.readuntil(b"\n"))[:-1]
    except asyncio.IncompleteReadError as end:
        return bytes(end.partial) or None
    except asyncio.LimitOverrunError as overrun:
        await reader.readexactly(max(1, overrun.consumed))
        raise Refused("malformed", f"a line of more than {MOST_BYTES} bytes") from None


def _peer(writer: asyncio.StreamWriter) -> Peer:
    connection = writer.get_extra_info("socket")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Peer(pid, uid & 0xFFFFFFFF)


def _remove_stale(path: Path) -> None:
    """Remove the socket of an agent that is no more; raises OnesError where one answers."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise OnesError(f"another ones-agent answers on {path}; stop it first")
