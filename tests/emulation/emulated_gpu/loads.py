"""What each training process says of its GPU, in ROOT/load/PID, and the emulator's reading of it.

Users' processes write there, so nothing in it is believed that /proc can contradict.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path("/run/emulation")
MOST_BYTES = 4096  # of a load file


def root() -> Path:
    """Where the emulation of this node lives."""
    return Path(os.environ.get("ONES_EMULATION_DIR") or ROOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one process does to its GPU."""

    minor: int  # /dev/nvidiaN
    model: int  # bytes held whatever the batch
    per_sample: int  # bytes
    batch: int  # samples of one pass
    busy: float  # seconds the GPU has worked for this process, the present step counted in full
    until: float  # monotonic time at which the present step ends
    started: int  # the process's start, field 22 of /proc/PID/stat

    @property
    def memory(self) -> int:
        return self.model + self.per_sample * self.batch

    def busy_at(self, now: float) -> float:
        """Seconds of work done by now."""
        return max(0.0, self.busy - max(0.0, self.until - now))


def parse(text: str) -> Load:
    """Raises ValueError for anything but finite numbers under the right names."""
    given = json.loads(text)
    if not isinstance(given, dict) or set(given) != set(Load.__dataclass_fields__):
        raise ValueError("a load has other fields")
    numbers = {name: float(value) for name, value in given.items()}
    if not all(math.isfinite(number) and 0 <= number < 2**63 for number in numbers.values()):
        raise ValueError("a load has numbers out of bounds")
    whole = {name: int(number) for name, number in numbers.items() if name not in ("busy", "until")}
    return Load(busy=numbers["busy"], until=numbers["until"], **whole)


def write(load: Load, folder: Path, pid: int) -> None:
    """Replace this process's load at once."""
    beside = folder / f".{pid}"
    beside.write_text(json.dumps(asdict(load)))
    beside.replace(folder / str(pid))


def start_of(pid: int, proc: Path = Path("/proc")) -> int:
    """When the process started, in clock ticks since the boot; ProcessLookupError if it is gone."""
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        raise ProcessLookupError(f"no process {pid}") from None


def read_all(folder: Path, proc: Path = Path("/proc")) -> dict[int, Load]:
    """Pid -> load of every living process; the files of the dead are removed."""
    found = {}
    for file, pid in _files(folder):
        try:
            started = start_of(pid, proc)
        except ProcessLookupError:
            with suppress(OSError):
                file.unlink()
            continue
        if file.name.startswith("."):
            continue
        try:
            load = _read(file, (proc / str(pid)).stat().st_uid)
        except (OSError, ValueError, TypeError, RecursionError):
            continue
        if load.started == started:
            found[pid] = load
    return found


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for file in sorted(folder.iterdir()):
        name = file.name.removeprefix(".")
        if name.isascii() and name.isdigit() and len(name) < 10:
            yield file, int(name)


def _read(file: Path, owner: int) -> Load:
    """A load file of this owner; neither a link nor a pipe is followed or waited for."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor)
        if not stat.S_ISREG(kind.st_mode) or kind.st_uid != owner:
            raise ValueError(f"{file} is not the process's own file")
        return parse(os.read(descriptor, MOST_BYTES).decode())
    finally:
        os.close(descriptor)
