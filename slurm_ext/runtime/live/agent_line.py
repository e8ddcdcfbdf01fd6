"""The base launcher's line to the node's agent: it says how the job goes, and hears onesd's orders.

One JSON line out (`Live` in ones.daemon.wire), one in, on the socket through which workers report:
the kernel names us to the agent by our process. Nothing here waits: training must not feel it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ones.slurm_ext.runtime.live.link import Lines, LinkFault, Message, decode, encode
from ones.slurm_ext.runtime.reporting import is_batch

EVERY = 1.0  # seconds between two words
PATIENCE = 10.0  # seconds for an answer
MOST_PARTS = 1024  # that one order adds
MOST_PATIENCE = 86400.0  # seconds for one order
_NODE = re.compile(r"[\w.-]{1,255}", re.ASCII)
_TYPE = re.compile(r"[\w.-]{0,64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the job is to look like beside its base allocation; `LiveOrder` in ones.daemon.wire."""

    number: int
    keep: frozenset[int]  # satellites, by Slurm job
    add: tuple[tuple[str, int], ...]  # node, GPUs
    leave: frozenset[str]  # nodes of the base allocation that are given back
    gpu_type: str
    batch: int | None
    patience: float
    withdrawn: bool


def read_order(said: object, *, restarts: int) -> Order | None:
    """An order in the agent's answer; None where there is none for this run that can be read."""
    try:
        if not isinstance(said, dict) or said["restarts"] != restarts:
            return None
        add = tuple((str(part["node"]), int(part["gpus"])) for part in said.get("add", ()))
        batch = said.get("batch")
        order = Order(
            number=int(said["number"]),
            keep=frozenset(int(job) for job in said.get("keep", ())),
            add=add,
            leave=frozenset(str(node) for node in said.get("leave", ())),
            gpu_type=str(said.get("gpu_type", "")),
            batch=None if batch is None else int(batch),
            patience=float(said.get("patience", 60.0)),
            withdrawn=bool(said.get("withdrawn", False)),
        )
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return None
    fair = all(_NODE.fullmatch(node) and 1 <= gpus <= 1024 for node, gpus in add)
    fair = fair and len(add) <= MOST_PARTS and 0.0 <= order.patience <= MOST_PATIENCE
    fair = fair and (order.batch is None or is_batch(order.batch))
    return order if fair and _TYPE.fullmatch(order.gpu_type) else None


class AgentLine:
    """Speaks with the agent every second, and at once when there is news."""

    def __init__(
        self,
        path: str,
        *,
        job: int,
        restarts: int,
        watch: Callable[[socket.socket, Callable[[], None]], None],
        forget: Callable[[socket.socket], None],
        take: Callable[[Order], None],
    ) -> None:
        self._path = path
        self._who: Message = {"op": "live", "job": job, "restarts": restarts}
        self._restarts = restarts
        self._watch, self._forget, self._take = watch, forget, take
        self._link: socket.socket | None = None
        self._lines = Lines()
        self._said: Message = {}
        self._at = 0.0
        self._waits = False

    def say(self, state: Message) -> None:
        """Tell the agent how things are, if that is new or a while ago."""
        now = time.monotonic()
        patience = PATIENCE if self._waits else EVERY if state == self._said else 0.1
        if now - self._at < patience:
            return
        if self._waits:
            self._hang_up()
        self._said, self._at = state, now
        try:
            if self._link is None:
                self._connect()
            assert self._link is not None
            self._link.sendall(encode({**self._who, **state}))
            self._waits = True
        except OSError:
            self._hang_up()

    def close(self, state: Message) -> None:
        """A last word."""
        with contextlib.suppress(OSError):
            if self._link is None:
                self._connect()
            assert self._link is not None
            self._link.sendall(encode({**self._who, **state}))
        self._hang_up()

    def _connect(self) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(0.2)  # a full backlog must not hold us up
        try:
            link.connect(self._path)
        except OSError:
            link.close()
            raise
        self._link, self._lines = link, Lines()
        self._watch(link, self._hear)

    def _hear(self) -> None:
        if self._link is None:
            return
        try:
            data = self._link.recv(1 << 16)
            if not data:
                raise LinkFault("the agent has hung up")
            for line in self._lines.add(data):
                self._waits = False
                order = read_order(decode(line).get("order"), restarts=self._restarts)
                if order is not None:
                    self._take(order)
        except (OSError, LinkFault):
            self._hang_up()

    def _hang_up(self) -> None:
        self._waits = False
        if self._link is not None:
            self._forget(self._link)
            self._link.close()
            self._link = None
