"""The GPUs of this node as NVML tells of them; the only importer of pynvml.

Whatever NVML does not say is None; a GPU that it has lost is unhealthy, never absent or idle.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pynvml  # type: ignore[import-untyped]

from ones.daemon.wire import GpuSample

log = logging.getLogger(__name__)
LEAST_BACKOFF = 10.0  # seconds between two attempts to start NVML
MOST_BACKOFF = 300.0
MOST_EVENTS = 64  # taken at once
_DOWN = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU, and the processes that compute on it."""

    gpu: GpuSample
    pids: tuple[int, ...] = ()


class Telemetry(Protocol):
    """Where readings come from."""

    note: str  # what whoever reads the readings must know, such as: no NVML here

    def sample(self) -> tuple[Reading, ...]: ...

    def poll_errors(self) -> bool:
        """Whether a GPU has raised an XID since the last poll; never waits."""
        ...


class _Down(Exception):
    """NVML as a whole does not answer any more."""


class _Lost(Exception):
    """This one GPU does not answer any more."""


class Nvml:
    """NVML, started when it can be, and again, ever more slowly, after it went away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.note = ""
        self._clock = clock
        self._handles: dict[str, Any] = {}  # uuid -> handle; empty: not started
        self._known: dict[str, GpuSample] = {}  # every GPU ever seen, by uuid; only who it is
        self._addresses: dict[int | None, str] = {}  # of handles -> uuid, also of lost GPUs
        self._unnamed = 0  # GPUs that did not say who they are when NVML was started
        self._xids: dict[str, int] = {}
        self._news = False  # an XID came since the last poll
        self._events: Any = None
        self._started = False
        self._retry_at = 0.0
        self._backoff = LEAST_BACKOFF

    def sample(self) -> tuple[Reading, ...]:
        if (not self._started or self._incomplete()) and self._clock() >= self._retry_at:
            self._restart()
        readings = {}
        try:
            for uuid, handle in self._handles.items():
                with suppress(_Lost):
                    readings[uuid] = self._read(uuid, handle)
        except _Down:
            self._stop()
            readings.clear()
        for uuid in self._known:
            if uuid in self._handles and uuid not in readings:
                del self._handles[uuid]
                log.warning("GPU %s is lost", uuid)
        return tuple(
            readings.get(uuid) or Reading(self._who(uuid, healthy=False)) for uuid in self._known
        )

    def poll_errors(self) -> bool:
        self._take_events()
        news, self._news = self._news, False
        return news

    def _take_events(self) -> None:
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError:
                break  # a time-out: no more of them; anything else, the next sample finds out
            uuid = self._uuid_of(event.device)
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError and uuid is not None:
                self._xids[uuid] = event.eventData
                self._news = True
                log.warning("GPU %s: XID %d", uuid, event.eventData)

    def _incomplete(self) -> bool:
        return self._unnamed > 0 or not self._known.keys() <= self._handles.keys()

    def _restart(self) -> None:
        self._stop()
        try:
            pynvml.nvmlInit()
            self._started = True
            named = [self._add(index) for index in range(pynvml.nvmlDeviceGetCount())]
            self._unnamed = named.count(False)
            self._link()
        except pynvml.NVMLError as fault:
            self._stop()
            self._say(f"no NVML here ({fault}): GPUs are not measured")
        else:
            self._listen()
            self._say("" if self._handles else "NVML finds no GPU here")
        if self._started and not self._incomplete():
            self._backoff = LEAST_BACKOFF
            return
        self._retry_at = self._clock() + self._backoff
        self._backoff = min(MOST_BACKOFF, 2 * self._backoff)

    def _add(self, index: int) -> bool:
        """Whether the GPU says who it is."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            # Slurm's AutoDetect=nvml names a type by the same rule.
            name = pynvml.nvmlDeviceGetName(handle).lower().replace(" ", "_")
            minor = self._ask(pynvml.nvmlDeviceGetMinorNumber, handle)
        except pynvml.NVMLError as fault:
            if fault.value in _DOWN:
                raise
            log.warning("GPU %d does not say who it is: %s", index, fault)
            return False
        except _Lost:
            return False
        except _Down:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED) from None
        self._handles[uuid] = handle
        self._addresses[_address(handle)] = uuid
        self._known[uuid] = GpuSample(minor=index if minor is None else minor, uuid=uuid, type=name)
        return True

    def _link(self) -> None:
        """Which GPUs NVLink joins; that doesn't change while the driver runs."""
        nvlink = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        for uuid, handle in self._handles.items():
            others = {other: one for other, one in self._handles.items() if other != uuid}
            try:
                status = {
                    other: self._ask(pynvml.nvmlDeviceGetP2PStatus, handle, one, nvlink)
                    for other, one in others.items()
                }
            except (_Lost, _Down):
                continue  # the next sample finds out
            joined = [
                self._known[other].minor
                for other, found in status.items()
                if found == pynvml.NVML_P2P_STATUS_OK
            ]
            linked = None if None in status.values() else tuple(sorted(joined))
            self._known[uuid] = msgspec.structs.replace(self._known[uuid], linked=linked)

    def _listen(self) -> None:
        """Ask for XIDs; where the driver has none to give, samples have to do."""
        with suppress(pynvml.NVMLError):
            self._events = pynvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlDeviceRegisterEvents(
                        handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                    )

    def _stop(self) -> None:
        if self._events is not None:
            self._take_events()
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._events)
        if self._started:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self._events, self._started = None, False
        self._handles.clear()

    def _say(self, note: str) -> None:
        if note and note != self.note:
            log.warning("%s", note)
        elif self.note and not note:
            log.info("NVML answers: %d GPUs", len(self._handles))
        self.note = note

    def _who(self, uuid: str, *, healthy: bool) -> GpuSample:
        known = self._known[uuid]
        return GpuSample(
            minor=known.minor,
            uuid=uuid,
            type=known.type,
            healthy=healthy,
            xid=self._xids.get(uuid),
            linked=known.linked,
        )

    def _read(self, uuid: str, handle: Any) -> Reading:
        ask = self._ask
        used = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        # Its first version counts what the driver has reserved as used: 615 MiB of an idle H200.
        memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        if memory is None:
            memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        milliwatts = ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        celsius = ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
        processes = [
            *(ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()),
            *(ask(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, handle) or ()),
        ]
        known = self._known[uuid]
        gpu = GpuSample(
            minor=known.minor,
            uuid=uuid,
            type=known.type,
            utilization=None if used is None else min(1.0, used.gpu / 100),
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            power=None if milliwatts is None else milliwatts / 1000,
            temperature=None if celsius is None else float(celsius),
            xid=self._xids.get(uuid),
            linked=known.linked,
        )
        return Reading(gpu, tuple(sorted({process.pid for process in processes})))

    @staticmethod
    def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
        """One value; None where this driver, GPU, MIG mode or permission does not give it."""
        try:
            return function(*arguments)
        except pynvml.NVMLError as fault:
            if fault.value in _LOST:
                raise _Lost from None
            if fault.value in _DOWN:
                raise _Down from None
            return None

    def _uuid_of(self, device: Any) -> str | None:
        """Whose event it is: a lost GPU can't be asked for its uuid, so compare handles first."""
        known = self._addresses.get(_address(device))
        if known is None:
            with suppress(pynvml.NVMLError):
                known = pynvml.nvmlDeviceGetUUID(device)
        return known if known in self._known else None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
