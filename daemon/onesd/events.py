"""What happened in Slurm, heard at once: a reason to look again, and nothing else.

The hooks of slurmctld (slurm_ext/hooks) send datagrams, the agents tell of jobs whose last process
has ended. Nothing is ever believed of an event: a round reads everything again. So a lost one costs
one period, a forged one a round, and a storm of them as many rounds as `pause` allows.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ones.daemon.onesd.metrics import Metrics
from ones.slurm_ext.snapshot import Snapshot

if TYPE_CHECKING:
    from ones.daemon.config import EventsConfig

log = logging.getLogger(__name__)
SHARE = 0.2  # of the time that rounds may take, however many events there are
SETTLING = 30.0  # seconds after its end in which Slurm is still cleaning up after a job
_HOOKS = {"epilog_slurmctld": "epilog", "prolog_slurmctld": "prolog"}


class Events:
    """Wakes the round; all but `open` and `pause` may be called in the event loop only."""

    def __init__(
        self,
        config: EventsConfig,
        metrics: Metrics,
        *,
        welcome: Callable[[], bool] = lambda: True,  # whether the policy wants to hear of them
    ) -> None:
        self.wake = asyncio.Event()
        self._welcome = welcome
        self._config = config
        self._count = metrics.events
        self._transport: asyncio.BaseTransport | None = None

    def happened(self, source: str) -> None:
        """Something happened that a round should see soon."""
        self._count.labels(source=source).inc()
        if self._config.wake and self._welcome():
            self.wake.set()

    def pause(self, took: float) -> float:
        """Seconds from an event to the round for it, after a round that took so long."""
        return self._config.debounce + took * (1 / SHARE - 1)

    async def open(self) -> None:
        """Listen to the hooks. Without the socket there are still the rounds' own times."""
        path = Path(self._config.socket)
        try:
            path.unlink(missing_ok=True)
            receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            receiver.bind(str(path))
            path.chmod(
                0o666
            )  # slurmctld runs as another user; see above for what a forged one does
        except OSError as fault:
            log.error("%s: %s; events of Slurm are not heard", path, fault.strerror)
            return
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Hooks(self), sock=receiver
        )

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            Path(self._config.socket).unlink(missing_ok=True)


class _Hooks(asyncio.DatagramProtocol):
    def __init__(self, events: Events) -> None:
        self._events = events

    def datagram_received(self, data: bytes, _: object) -> None:
        word = data[:64].decode("ascii", errors="replace").split(" ")[0]
        self._events.happened(_HOOKS.get(word, "other"))


def unsettled(snapshot: Snapshot) -> bool:
    """Whether a job has just ended of which Slurm has not given everything back: look again."""
    return any(
        "COMPLETING" in job.flags and 0 <= snapshot.taken - job.ended < SETTLING
        for job in snapshot.jobs.values()
    )
