"""What a GPU of each kind is, and how its energy and temperature follow its use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30
ROOM = 28.0  # Celsius
SETTLING = 20.0  # seconds in which a GPU comes 63 % nearer to its new temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One type of GPU."""

    name: str  # as NVML tells it
    memory: int  # bytes
    idle: float  # watts
    most: float  # watts
    heat: float = 50.0  # degrees above the room's, at full power
    clocks: Mapping[str, int] = field(default_factory=dict)  # MHz at full speed
    nvlink: bool = False
    mig: bool = False

    def power(self, utilization: float) -> float:
        """Watts."""
        return self.idle + utilization * (self.most - self.idle)


KINDS: Mapping[str, Kind] = {
    "k80": Kind(
        name="Tesla K80", memory=12 * GIB, idle=26, most=149, clocks={"sm": 875, "mem": 2505}
    ),
    "t4": Kind(
        name="Tesla T4", memory=16 * GIB, idle=10, most=70, clocks={"sm": 1590, "mem": 5001}
    ),
    "p100": Kind(
        name="Tesla P100-SXM2-16GB",
        memory=16 * GIB,
        idle=30,
        most=300,
        clocks={"sm": 1480, "mem": 715},
        nvlink=True,
    ),
    "v100": Kind(
        name="Tesla V100-SXM2-16GB",
        memory=16 * GIB,
        idle=40,
        most=300,
        clocks={"sm": 1530, "mem": 877},
        nvlink=True,
    ),
    "a100": Kind(
        name="NVIDIA A100-SXM4-40GB",
        memory=40 * GIB,
        idle=55,
        most=400,
        clocks={"sm": 1410, "mem": 1215},
        nvlink=True,
        mig=True,
    ),
    "h100": Kind(
        name="NVIDIA H100 80GB HBM3",
        memory=80 * GIB,
        idle=70,
        most=700,
        clocks={"sm": 1980, "mem": 2619},
        nvlink=True,
        mig=True,
    ),
}


def kind_of(gpu_type: str) -> Kind:
    """An unknown type has a V100's body, as it has its speed."""
    return KINDS.get(gpu_type, KINDS["v100"])


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one GPU remembers of its past."""

    joules: float = 0.0
    celsius: float = ROOM

    def after(self, seconds: float, utilization: float, kind: Kind) -> Gpu:
        """The GPU after it was used so much for so long."""
        watts = kind.power(utilization)
        goal = ROOM + kind.heat * watts / kind.most
        kept = math.exp(-seconds / SETTLING)
        return Gpu(self.joules + watts * seconds, goal + (self.celsius - goal) * kept)
