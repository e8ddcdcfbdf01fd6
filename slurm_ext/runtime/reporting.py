"""Tells the node's agent how the job goes, from a thread that training never waits for.

JSON lines on a unix socket, in the shapes of Report and Checkpoint in ones.daemon.wire. Without an
agent, reports are dropped, and the next one tries again; only a checkpoint's confirmation is kept
and repeated, because a move waits for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Mapping
from typing import TypeGuard

log = logging.getLogger(__name__)
PATIENCE = 2.0  # seconds for one exchange with the agent
RETRY = 0.5  # seconds between two tries to confirm a checkpoint
KEEP_TRYING = 60.0  # seconds after which a confirmation is too late to matter
LARGEST_BATCH = 10**12
Value = str | int | float | bool | None


class Reporter:
    """One worker's line to the agent of its node."""

    def __init__(self, path: str, *, job: int, restarts: int) -> None:
        self._path = path
        self._who: dict[str, Value] = {"job": job, "restarts": restarts}
        self._wake = threading.Condition()
        self._report: dict[str, Value] | None = None
        self._confirmation: tuple[float, dict[str, Value]] | None = None
        self._closing = False
        self._connection: socket.socket | None = None
        self._complained = ""
        self._left_out: set[str] = set()
        self.batch: int | None = None
        """The global batch that the plan has for the job now, by the agent's last answer."""
        self._thread = threading.Thread(target=self._run, name="ones-reports", daemon=True)
        self._thread.start()

    def report(self, fields: Mapping[str, Value]) -> None:
        """Send these fields soon; an older report that has not gone out yet is replaced."""
        with self._wake:
            self._report = self._message("report", fields)
            self._wake.notify()

    def confirm(self, *, samples: int, path: str) -> None:
        """Say that a checkpoint is complete, until the agent has taken it or it is too late."""
        message = self._message("checkpoint", {"samples": samples, "path": path})
        with self._wake:
            self._confirmation = (time.monotonic() + KEEP_TRYING, message)
            self._wake.notify()

    def close(self, last: Mapping[str, Value] | None = None, *, patience: float = 1.0) -> None:
        """Send what is left, for a moment at most, with these fields as the last word."""
        with self._wake:
            if last is not None:
                # What a report that has not gone out yet has measured is in no other.
                self._report = (self._report or {}) | self._message("report", last)
            self._closing = True
            self._wake.notify()
        self._thread.join(patience)

    def _message(self, op: str, fields: Mapping[str, Value]) -> dict[str, Value]:
        usable = {
            name: value
            for name, value in fields.items()
            if value is not None
            and not (isinstance(value, float) and not math.isfinite(value))
            and self._fits(name, value)
        }
        return {"op": op, **self._who, **usable}

    def _fits(self, name: str, value: Value) -> bool:
        """Whether a line can hold it: what scripts give is not always what they should."""
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            if name not in self._left_out:
                self._left_out.add(name)
                log.warning(
                    "ones: reports leave out %s, which is a %s and no plain number or text",
                    name,
                    type(value).__name__,
                )
            return False
        return True

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._confirmation is not None:
                    if self._report is None and not self._closing:
                        self._wake.wait(RETRY)
                else:
                    while self._report is None and self._confirmation is None and not self._closing:
                        self._wake.wait()
                report, self._report = self._report, None
                confirmation, closing = self._confirmation, self._closing
            if confirmation is not None:
                until, message = confirmation
                if self._send(message) or time.monotonic() > until:
                    with self._wake:
                        if self._confirmation is confirmation:
                            self._confirmation = None
            if report is not None:
                self._send(report)
            if closing:
                self._hang_up()
                return

    def _send(self, message: Mapping[str, Value]) -> bool:
        """Whether the agent took it. Tries a second time where the agent was restarted."""
        line = json.dumps(message).encode() + b"\n"
        for _ in range(2):
            fresh = self._connection is None
            try:
                reply = self._exchange(line)
            except (OSError, ValueError):
                self._hang_up()
                if fresh:
                    return False
                continue
            error = reply.get("error", "no reason given") if not reply.get("ok") else ""
            if error and error != self._complained:
                log.warning("ones: the agent refuses this job's reports: %s", error)
            self._complained = str(error)
            if not error and message["op"] == "report":
                self.batch = _batch(reply.get("batch"))
            return not error
        return False

    def _exchange(self, line: bytes) -> dict[str, Value]:
        if self._connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(PATIENCE)
            try:
                connection.connect(self._path)
            except OSError:
                connection.close()
                raise
            self._connection = connection
        self._connection.sendall(line)
        reply = b""
        while not reply.endswith(b"\n"):
            chunk = self._connection.recv(4096)
            if not chunk or len(reply) > 65536:
                raise ConnectionError("the agent hung up")
            reply += chunk
        answer = json.loads(reply)
        return answer if isinstance(answer, dict) else {}

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


def is_batch(said: object) -> TypeGuard[int]:
    """Whether it is a global batch that workers can count with."""
    return isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= LARGEST_BATCH


def _batch(said: Value) -> int | None:
    """What an agent says of the batch, where that can be one."""
    return said if is_batch(said) else None
