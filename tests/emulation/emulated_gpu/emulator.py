"""Turns what the processes on an emulated node do into the state that NVML shows."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulated_gpu.node import gpu_count, gpu_types

ROOT = Path("/run/emulation")
PERIOD = 0.5  # seconds
STALE = 5.0  # seconds without a step after which a process is idle, though it holds its memory
STALE_STEPS = 3.0  # or so many of its steps, if they are long
COOLEST, HOTTEST, INERTIA = 30.0, 75.0, 5.0  # degrees Celsius, seconds


@dataclass(frozen=True, slots=True)
class Model:
    """A type of GPU as NVML describes it."""

    name: str
    memory: int  # bytes
    idle_power: float  # W
    full_power: float


MODELS = {
    "v100": Model("Tesla V100-SXM2-16GB", 16 << 30, 40, 300),
    "k80": Model("Tesla K80", 12 << 30, 25, 150),
    "a100": Model("NVIDIA A100-SXM4-40GB", 40 << 30, 55, 400),
}


@dataclass(frozen=True, slots=True)
class Load:
    """What one process does to its GPU."""

    pid: int
    minor: int
    busy: float  # 0 to 1
    memory: int  # bytes


def read_loads(folder: Path, now: float, proc: Path = Path("/proc")) -> list[Load]:
    """What live processes say; the files of dead ones are removed."""
    found = []
    for file in folder.iterdir():
        if not file.name.isdigit():
            continue
        try:
            if not (proc / file.name).exists():
                file.unlink()
                continue
            said = json.loads(file.read_text())
            fresh = now - file.stat().st_mtime <= max(STALE, STALE_STEPS * said.get("step", 0))
            busy = min(1.0, max(0.0, float(said["busy"])))
            memory = max(0, int(said["memory"]))
            found.append(Load(int(file.name), int(said["minor"]), busy if fresh else 0.0, memory))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            continue  # written by a user's process: whatever it is, the next one counts
    return found


def read_fault(folder: Path, minor: int) -> dict[str, str]:
    """What gpu-fault has left for a GPU."""
    try:
        fault = json.loads((folder / str(minor)).read_text())
    except (OSError, ValueError):
        return {}
    return fault if isinstance(fault, dict) else {}


class Node:
    """The GPUs of a node: their heat and energy outlive the processes on them."""

    def __init__(self, name: str, model: Model, count: int) -> None:
        self._name = name
        self._model = model
        self._energy = [0.0] * count  # J
        self._heat = [COOLEST] * count

    def tick(
        self, loads: Sequence[Load], faults: Sequence[Mapping[str, str]], seconds: float
    ) -> str:
        """The state after so many seconds under these loads, as the NVML library reads it."""
        model = self._model
        lines = [
            f"count {len(self._heat)}",
            f"*.name {model.name}",
            f"*.mem_total {model.memory}",
            f"*.power_limit {round(model.full_power * 1000)}",
            "*.topo 40",
            "*.p2p 0",
            "*.mig 0",
            "*.throttle 0",
            "*.clock_sm 1380",
        ]
        for minor, fault in enumerate(faults):
            mine = [load for load in loads if load.minor == minor]
            values = {**self._advance(minor, mine, seconds), **fault}
            lines += [f"{minor}.{key} {value}" for key, value in values.items() if value != ""]
        return "\n".join(lines) + "\n"

    def _advance(self, minor: int, mine: Sequence[Load], seconds: float) -> dict[str, object]:
        model = self._model
        busy = min(1.0, sum(load.busy for load in mine))
        power = model.idle_power + busy * (model.full_power - model.idle_power)
        aim = COOLEST + busy * (HOTTEST - COOLEST)
        self._energy[minor] += power * seconds
        self._heat[minor] += (aim - self._heat[minor]) * min(1.0, seconds / INERTIA)
        return {
            "minor": minor,
            "uuid": f"GPU-{self._name}-{minor:012d}",
            "pci": f"00000000:{minor + 1:02X}:00.0",
            "util_gpu": round(100 * busy),
            "util_mem": round(60 * busy),
            "mem_used": min(model.memory, sum(load.memory for load in mine)),
            "power": round(power * 1000),
            "energy": round(self._energy[minor] * 1000),
            "temp": round(self._heat[minor]),
            "procs": ",".join(f"{load.pid}:{load.memory}" for load in mine),
        }


def replace_text(file: Path, text: str) -> None:
    """Write a file so that its readers see the old or the new text, and nothing between."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpu-emulator", description=__doc__)
    parser.add_argument("--node", default=os.uname().nodename, help="(default: this host)")
    name = parser.parse_args().node
    count = gpu_count(name)
    node = Node(name, MODELS.get(gpu_types().get(name, ""), MODELS["v100"]), count)
    load, faults = ROOT / "load", ROOT / "faults"
    for folder in (ROOT, load, faults):
        folder.mkdir(exist_ok=True)
    load.chmod(0o1777)
    while True:
        found = [read_fault(faults, minor) for minor in range(count)]
        replace_text(ROOT / "gpu.state", node.tick(read_loads(load, time.time()), found, PERIOD))
        time.sleep(PERIOD)
