"""How much memory a worker can still have."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)
MOST = 1 << 25  # bytes: the largest threshold that glibc allows
NEVER = -1
OWN_CGROUP = Path("/proc/self/cgroup")
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def keep() -> None:
    """Have glibc keep what is freed for the next time, until `give_back`.

    A page that is new to a process costs more than to fill it, in each step and in each change.
    """
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MOST)
        libc.mallopt(M_TRIM_THRESHOLD, NEVER)


def give_back() -> None:
    """Return to the system what was freed and is kept. Who wants memory meanwhile waits."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def available(device: Any) -> int | None:
    """Bytes that are free on the device, within the job's limit; None where nobody says."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + kept)
    found: list[int] = []
    with suppress(OSError):
        if match := re.search(r"^MemAvailable: +([0-9]+) kB", MEMINFO.read_text(), re.MULTILINE):
            found.append(int(match[1]) << 10)
    with suppress(OSError):
        own = Path(OWN_CGROUP.read_text().strip().rpartition("::/")[2])
        # Slurm limits the job and its step, which are above the cgroup of a task.
        for each in (own, *own.parents):
            with suppress(OSError, ValueError):
                found.append(_left(CGROUP / each))
    return min(found, default=None)


def _left(cgroup: Path) -> int:
    """Bytes that a cgroup may still have. Raises ValueError where it has no limit."""
    limit = int((cgroup / "memory.max").read_text())  # "max" is no number
    taken = int((cgroup / "memory.current").read_text())
    with suppress(OSError):
        # What is kept of files is given back where memory is wanted.
        stat = (cgroup / "memory.stat").read_text()
        taken -= sum(map(int, re.findall(r"^(?:in)?active_file ([0-9]+)", stat, re.MULTILINE)))
    return limit - taken
