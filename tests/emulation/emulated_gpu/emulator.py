"""gpu-emulator: one per emulated node; turns what its processes do into what NVML shows of it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from emulated_gpu import faults, loads
from emulated_gpu.cluster import ETC, devices_of, own_node
from emulated_gpu.loads import Load
from emulated_gpu.physics import Gpu, Kind, kind_of

WINDOW = 1.0  # seconds over which utilisation is measured
LINKS_PER_PEER = 2
P2P_YES, P2P_CHIPSET_NOT_SUPPORTED = 0, 1
ON_ONE_BRIDGE, ON_ONE_NODE = 30, 40  # NVML's topology levels


class Usage:
    """How busy each process kept its GPU during the last second."""

    def __init__(self) -> None:
        self._past: dict[int, list[tuple[float, float]]] = {}  # pid -> (time, busy seconds)

    def measure(self, found: Mapping[int, Load], now: float) -> dict[int, float]:
        """Pid -> the share of the last second in which it worked, 0..1."""
        shares = {}
        self._past = {pid: past for pid, past in self._past.items() if pid in found}
        for pid, load in found.items():
            busy = load.busy_at(now)
            past = self._past.setdefault(pid, [])
            # The last point before the window stays, as the window's beginning.
            while len(past) > 1 and past[1][0] <= now - WINDOW:
                past.pop(0)
            if past and now > past[0][0]:
                share = (busy - past[0][1]) / (now - past[0][0])
            else:
                share = 1.0 if load.until > now else 0.0
            shares[pid] = min(1.0, max(0.0, share))
            past.append((now, busy))
        return shares


class Emulator:
    """The GPUs of one node."""

    def __init__(
        self,
        node: str,
        devices: Mapping[int, str],
        root: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._kinds = {minor: kind_of(name) for minor, name in sorted(devices.items())}
        self._gpus = {minor: Gpu() for minor in self._kinds}
        self._root = root
        self._clock = clock
        self._usage = Usage()
        self._last = clock()

    @property
    def state(self) -> Path:
        return self._root / "gpu.state"

    def prepare(self) -> None:
        """Make the folders; every user may leave loads and logs, only root may break GPUs."""
        for name, mode in (("load", 0o1777), ("log", 0o1777), (faults.FOLDER, 0o755)):
            (self._root / name).mkdir(parents=True, exist_ok=True)
            (self._root / name).chmod(mode)

    def tick(self) -> None:
        """Look at the processes and replace the state."""
        now = self._clock()
        elapsed, self._last = now - self._last, now
        found = {
            pid: load
            for pid, load in loads.read_all(self._root / "load").items()
            if load.minor in self._kinds
        }
        shares = self._usage.measure(found, now)
        lines = [f"count {len(self._kinds)}"]
        for index, (minor, kind) in enumerate(self._kinds.items()):
            mine = {pid: load for pid, load in found.items() if load.minor == minor}
            utilization = min(1.0, sum(shares[pid] for pid in mine))
            gpu = self._gpus[minor] = self._gpus[minor].after(elapsed, utilization, kind)
            values = {
                **self._identity(minor, kind),
                **_reading(kind, gpu, utilization, mine),
                **{f"sm.{pid}": round(100 * shares[pid]) for pid in mine},
                **dict(_links(index, len(self._kinds), kind)),
                **faults.read(self._root, minor),
            }
            lines += [f"{index}.{key} {value}" for key, value in values.items()]
        beside = self.state.with_suffix(".new")
        beside.write_text("\n".join(lines) + "\n")
        beside.chmod(0o644)
        beside.replace(self.state)

    def unload(self) -> None:
        """No driver any more."""
        self.state.unlink(missing_ok=True)

    def _identity(self, minor: int, kind: Kind) -> dict[str, object]:
        # The same after a restart, different on every node.
        own = uuid.uuid5(uuid.NAMESPACE_DNS, f"gpu{minor}.{self._node}")
        identity: dict[str, object] = {
            "name": kind.name,
            "uuid": f"GPU-{own}",
            "minor": minor,
            "pci": f"00000000:{0x10 + minor:02X}:00.0",
            "numa": 0,
        }
        if kind.mig:
            identity["mig"] = 0
            identity["remapped"] = "0 0 0 0"
        return identity


def _reading(
    kind: Kind, gpu: Gpu, utilization: float, mine: Mapping[int, Load]
) -> dict[str, object]:
    held = min(kind.memory, sum(load.memory for load in mine.values()))
    running = {f"clock_{name}": clock for name, clock in kind.clocks.items()}
    reading: dict[str, object] = {
        "mem_total": kind.memory,
        "mem_used": held,
        "util_gpu": round(100 * utilization),
        "util_mem": round(60 * utilization),
        "power": round(1000 * kind.power(utilization)),
        "power_limit": round(1000 * kind.most),
        "energy": round(1000 * gpu.joules),
        "temp": round(gpu.celsius),
        "throttle": 0 if utilization else 1,  # 1: idle
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "clock_graphics": kind.clocks["sm"],
        **running,
    }
    if mine:
        reading["procs"] = ",".join(
            f"{pid}:{min(kind.memory, load.memory)}" for pid, load in mine.items()
        )
    return reading


def _links(index: int, count: int, kind: Kind) -> Iterator[tuple[str, object]]:
    """Every two GPUs of a node reach each other alike: by NVLink where the kind has it."""
    yield "topo", ON_ONE_NODE if kind.nvlink else ON_ONE_BRIDGE
    yield "p2p", P2P_YES if kind.nvlink else P2P_CHIPSET_NOT_SUPPORTED
    if kind.nvlink:
        peers = [other for other in range(count) if other != index] * LINKS_PER_PEER
        yield from ((f"nvlink.{link}", f"1 {peer}") for link, peer in enumerate(sorted(peers)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpu-emulator", description=__doc__)
    parser.add_argument("--node", default=own_node(), help="default: this host's name")
    parser.add_argument("--etc", type=Path, default=ETC, help="the folder with gres.conf")
    parser.add_argument("--type", help="GPU type, in place of gres.conf's")
    parser.add_argument("--count", type=int, help="number of GPUs, in place of gres.conf's")
    parser.add_argument("--root", type=Path, default=loads.root(), help="default: %(default)s")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two states")
    given = parser.parse_args()
    devices = devices_of(given.node, given.etc)
    if given.count is not None:
        kind = next(iter(devices.values()), "v100")
        devices = dict.fromkeys(range(given.count), kind)
    if given.type is not None:
        devices = dict.fromkeys(devices, given.type)
    if not devices:
        sys.exit(
            f"gpu-emulator: error: {given.etc / 'gres.conf'} names no GPU of node {given.node};"
            " give --type and --count"
        )
    emulator = Emulator(given.node, devices, given.root)
    emulator.prepare()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.umask(0o022)
    with suppress(KeyboardInterrupt):
        while True:
            emulator.tick()
            time.sleep(given.interval)
    emulator.unload()


if __name__ == "__main__":
    main()
