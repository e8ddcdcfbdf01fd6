"""An agent's socket that keeps what it is told, for the tests of the runtime."""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from patience import eventually

from ones.daemon.wire import Checkpoint, Report


class ListeningAgent:
    """Takes JSON lines on a socket and answers each."""

    def __init__(self, path: Path) -> None:
        self.taken: list[bytes] = []
        self.from_whom: list[int] = []  # the process that each of them is from
        self.refuse = False
        self.batch: int | None = None  # of the lease, told to jobs that tune
        self._path = path
        self._socket: socket.socket | None = None

    def up(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self._path))
        self._socket.listen()
        threading.Thread(target=self._serve, args=(self._socket,), daemon=True).start()

    def down(self) -> None:
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _serve(self, listening: socket.socket) -> None:
        with suppress(OSError):  # of `down`
            while True:
                connection, _ = listening.accept()
                with suppress(ConnectionError):  # of a job that was killed before its answer
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process = struct.unpack("3i", peer)[0]
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                self.from_whom.append(process)
                self.taken.append(line)
                reply: dict[str, object] = {"ok": not self.refuse, "error": "not your job"}
                if self.batch is not None:
                    reply["batch"] = self.batch
                connection.sendall(json.dumps(reply).encode() + b"\n")

    def reports_of(self, process: int) -> list[dict[str, Any]]:
        """What this process has reported, in order."""
        said = zip(list(self.taken), list(self.from_whom), strict=False)
        messages = [json.loads(line) for line, whose in said if whose == process]
        return [each for each in messages if each["op"] == "report"]

    def wait_for(self, count: int) -> list[Report | Checkpoint]:
        eventually(lambda: len(self.taken) >= count)
        return [msgspec.json.decode(line, type=Report | Checkpoint) for line in self.taken]
