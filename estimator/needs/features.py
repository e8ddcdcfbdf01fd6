"""What is known of a job before it runs, and what a run of it was seen to use (Liquid §1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import isfinite

LARGEST = 1e15  # a number beyond this is no measurement
SMALLEST = 1e-9


class Resource(StrEnum):
    """What is estimated. Memory in MiB, shares from 0 to 1, rates in bytes a second."""

    GPU_MEMORY = "gpu_memory"  # peak, of each GPU
    GPU_UTILIZATION = "gpu_utilization"  # mean, of each GPU
    HOST_MEMORY = "host_memory"  # peak, of each node
    CPU_CORES = "cpu_cores"  # mean, of each node
    NETWORK_IN = "network_in"  # mean, of each node
    NETWORK_OUT = "network_out"
    BEFORE_GPU = "before_gpu"  # seconds until the GPUs are first busy
    AFTER_GPU = "after_gpu"  # seconds after they were last busy
    TOTAL = "total"  # seconds of the whole run


class Precision(StrEnum):
    """What a number of the model takes: 4 bytes, or 2 where the GPU allows it (mixed)."""

    FULL = "full"
    HALF = "half"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is known of a job before it runs; None where it isn't known."""

    family: str  # jobs that run the same model
    dataset: str | None = None
    precision: Precision | None = None
    optimizer: str | None = None
    gpu_type: str | None = None
    parameters: float | None = None
    layers: float | None = None
    batch_per_gpu: float | None = None
    gpus: float | None = None
    nodes: float | None = None

    def __post_init__(self) -> None:
        for name in NUMBERS:
            value = getattr(self, name)
            if value is not None and not SMALLEST <= value <= LARGEST:
                raise ValueError(f"{name} {value:g} is not from {SMALLEST:g} to {LARGEST:g}")

    @property
    def gpus_per_node(self) -> float | None:
        return None if self.gpus is None else self.gpus / (self.nodes or 1.0)


CATEGORIES = ("family", "dataset", "precision", "optimizer", "gpu_type")
NUMBERS = tuple(one.name for one in fields(Traits) if one.name not in CATEGORIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run was seen to use. A run that shared a GPU teaches nothing: both would lie."""

    traits: Traits
    used: Mapping[Resource, float] = field(default_factory=dict)
    alone: bool = True
    killed_at: Mapping[Resource, float] = field(default_factory=dict)
    """Of what it was killed for wanting more, the limit: it needs more than that, nobody knows how
    much."""

    @property
    def sound(self) -> bool:
        """Whether it can be a measurement at all."""
        values = [*self.used.values(), *self.killed_at.values()]
        return bool(values) and all(isfinite(one) and 0 <= one <= LARGEST for one in values)
