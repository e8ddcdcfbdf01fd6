"""Sampling in a thread of its own: a driver that hangs must not hang the agent."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ones.daemon.agent.nvml import Reading, Telemetry
from ones.daemon.wire import GpuSample

PATIENCE = 20.0  # seconds for one sample; a GPU that fell off the bus can block for ever


class Sampler:
    """The last readings of a telemetry source, one call of it at a time."""

    def __init__(self, telemetry: Telemetry, patience: float = PATIENCE) -> None:
        self.seconds = 0.0  # that the last sample took
        self._telemetry = telemetry
        self._patience = patience
        self._thread = ThreadPoolExecutor(1, "telemetry")
        self._pending: asyncio.Future[tuple[Reading, ...]] | None = None
        self._last: tuple[Reading, ...] = ()

    @property
    def stuck(self) -> bool:
        """Whether a call has not come back."""
        return self._pending is not None and not self._pending.done()

    async def sample(self) -> tuple[tuple[Reading, ...], str]:
        """Readings and a note. While the driver does not answer, every GPU is unhealthy."""
        begun = time.monotonic()
        loop = asyncio.get_running_loop()
        if not self.stuck:
            self._pending = loop.run_in_executor(self._thread, self._telemetry.sample)
        assert self._pending is not None
        try:
            async with asyncio.timeout(self._patience):
                self._last = await asyncio.shield(self._pending)
        except TimeoutError:
            unknown = tuple(Reading(_unknown(reading.gpu)) for reading in self._last)
            return unknown, f"NVML has not answered for {self._patience:g} s"
        finally:
            self.seconds = time.monotonic() - begun
        return self._last, self._telemetry.note

    async def poll_errors(self) -> bool:
        """Whether a GPU raised an XID since the last poll."""
        if self.stuck:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._telemetry.poll_errors)

    def close(self) -> None:
        self._thread.shutdown(wait=not self.stuck, cancel_futures=True)


def _unknown(gpu: GpuSample) -> GpuSample:
    return msgspec.structs.replace(
        gpu, healthy=False, utilization=None, memory_used=None, power=None, temperature=None
    )
