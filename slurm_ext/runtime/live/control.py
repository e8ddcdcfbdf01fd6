"""The control door of a live job: one JSON line in, one out when the order is carried out."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ones.slurm_ext.runtime.live.link import Lines, LinkFault, Message, decode, encode
from ones.slurm_ext.runtime.live.loop import Loop

PREFIX = "ones-live-"
LONGEST_PATH = 107  # bytes of a socket's path that the kernel takes


def private_folder(name: str) -> Path:
    """A new folder for its owner only, in which a socket of this name can be bound."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    if len(os.fsencode(folder / name)) <= LONGEST_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))


@dataclass(slots=True)
class _Visitor:
    """A connection, and whether it waits for an answer."""

    link: socket.socket
    lines: Lines = field(default_factory=Lines)
    waits: bool = False


class Control:
    """Takes orders from the job's own user, and root.

    `obey` returns the answer, or None where it comes later, by `answer`; it raises LinkFault for
    what is no order.
    """

    def __init__(self, path: Path, loop: Loop, obey: Callable[[Message], Message | None]) -> None:
        self._path = path
        self._loop = loop
        self._obey = obey
        self._visitors: list[_Visitor] = []

    def open(self) -> None:
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.bind(str(self._path))
        door.listen()
        door.setblocking(False)
        self._loop.watch(door, lambda: self._receive(door))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(visitor.waits for visitor in self._visitors)

    def answer(self, message: Message) -> None:
        """To all who wait."""
        for visitor in self._visitors:
            if visitor.waits:
                self._reply(visitor, message)

    def _receive(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):
            link, _ = door.accept()
            peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", peer)[1] not in (0, os.getuid()):
                link.close()
                return
            link.settimeout(1.0)
            visitor = _Visitor(link)
            self._visitors.append(visitor)
            self._loop.watch(link, lambda: self._read(visitor))

    def _read(self, visitor: _Visitor) -> None:
        try:
            data = visitor.link.recv(1 << 16)
            if not data:
                raise LinkFault("hung up")
            for line in visitor.lines.add(data):
                visitor.waits = True  # already now: the order may be refused on the spot
                answer = self._obey(decode(line))
                if answer is not None:
                    self._reply(visitor, answer)
        except OSError:
            self._forget(visitor)
        except LinkFault as fault:
            self._reply(visitor, {"ok": False, "error": str(fault)})
            self._forget(visitor)

    @staticmethod
    def _reply(visitor: _Visitor, message: Message) -> None:
        visitor.waits = False
        with contextlib.suppress(OSError):
            visitor.link.sendall(encode(message))

    def _forget(self, visitor: _Visitor) -> None:
        self._loop.forget(visitor.link)
        visitor.link.close()
        if visitor in self._visitors:
            self._visitors.remove(visitor)
