"""On the controller: CPU of slurmctld, and what its RPCs took.

sdiag tells counts and sums alone, each since its last reset, and no worst one. From one look to the
next most kinds have one RPC, or a few: the largest mean of a look is told as the worst, and the
smallest as the least. An RPC's time includes its waiting for the locks that slurmctld's own
schedulers hold; in the least there is hardly any of that.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

_RPC = re.compile(r"^\s*(REQUEST_\w+)\s*\(\s*\d+\)\s*count:(\d+).*?total_time:(\d+)", re.M)
Rpcs = dict[str, dict[str, float]]


def cpu_of_slurmctld() -> float:
    """CPU seconds of slurmctld so far."""
    pid = subprocess.run(["pgrep", "-ox", "slurmctld"], capture_output=True, text=True, check=True)
    fields = Path(f"/proc/{pid.stdout.strip()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watched:
    """slurmctld's CPU since this was made, and its RPCs: how many, and seconds of each kind."""

    def __init__(self) -> None:
        self._began, self._cpu = time.monotonic(), cpu_of_slurmctld()
        self._first = self._last = _rpcs()
        self._least: dict[str, float] = {}
        self._worst: dict[str, float] = {}

    def look(self) -> None:
        now = _rpcs()
        for name, (count, seconds) in now.items():
            before = self._last.get(name, (0, 0.0))
            if count > before[0]:
                mean = (seconds - before[1]) / (count - before[0])
                self._least[name] = min(mean, self._least.get(name, mean))
                self._worst[name] = max(mean, self._worst.get(name, mean))
        self._last = now

    def cpu(self) -> float:
        return cpu_of_slurmctld() - self._cpu

    def share(self) -> float:
        """Of a core."""
        return self.cpu() / (time.monotonic() - self._began)

    def rpcs(self) -> Rpcs:
        """Up to the last look."""
        found: Rpcs = {}
        for name, worst in self._worst.items():
            first = self._first.get(name, (0, 0.0))
            count, seconds = (a - b for a, b in zip(self._last[name], first, strict=True))
            found[name] = {
                "count": count,
                "mean_s": round(seconds / count, 4),
                "least_mean_s": round(self._least[name], 4),
                "worst_mean_s": round(worst, 4),
            }
        return found


def _rpcs() -> dict[str, tuple[int, float]]:
    """Count and sum of seconds of each kind since sdiag counts."""
    said = subprocess.run(["sdiag"], capture_output=True, text=True, check=True).stdout
    by_type = said.partition("by user")[0]
    return {name: (int(count), int(total) / 1e6) for name, count, total in _RPC.findall(by_type)}
