"""How much memory a worker can still have."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def give_back() -> None:
    """Return what was freed to the system: glibc keeps much of it, in pieces, for the next time."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def available(device: Any) -> int | None:
    """Bytes that are free on the device, within the job's limit; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found: list[int] = []
    with suppress(OSError):
        if match := re.search(r"^MemAvailable: +([0-9]+) kB", MEMINFO.read_text(), re.MULTILINE):
            found.append(int(match[1]) << 10)
    with suppress(OSError, ValueError):
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::/")[2]
        limit = int((CGROUP / own / "memory.max").read_text())  # "max" is no number
        found.append(limit - int((CGROUP / own / "memory.current").read_text()))
    return min(found, default=None)
