"""How fast an emulated GPU trains: the truth that onesd has to learn from reports.

Nothing outside tests/ may import this. The form is that of Pollux (OSDI21, 3.2):

    t_grad = FIXED + PER_SAMPLE x local batch                     on a V100
    t_sync = 0                                on one GPU
             NODE + NODE_MORE x (n - 2)       within a node
             SWITCH + SWITCH_MORE x (n - 2)   across nodes of one leaf switch
             FAR x the last                   across switches
    t_step = (t_grad^OVERLAP + t_sync^OVERLAP)^(1/OVERLAP)

Seconds; n is the number of GPUs. The slowest member's GPU sets t_grad. The numbers are of no real
device: they are chosen so that real gradients of small models, computed by many processes on few
cores, fit into a step, and so that sizes, types and placement matter as they do on real clusters.
"""

from __future__ import annotations

from collections.abc import Iterable

FIXED = 0.07
PER_SAMPLE = 0.0030
NODE, NODE_MORE = 0.045, 0.010
SWITCH, SWITCH_MORE = 0.10, 0.008
FAR = 1.8
OVERLAP = 1.6

SLOWER_THAN_V100 = {"a100": 0.5, "v100": 1.0, "k80": 2.0}


def gradient_seconds(gpu_type: str, local_batch: float) -> float:
    """Time of one forward and backward pass. An unknown type is as fast as a V100."""
    return _slowness(gpu_type) * (FIXED + PER_SAMPLE * local_batch)


def sync_seconds(gpus: int, nodes: int, switches: int) -> float:
    """Time of one all-reduce of the gradients."""
    if gpus <= 1:
        return 0.0
    if nodes <= 1:
        return NODE + NODE_MORE * (gpus - 2)
    near = SWITCH + SWITCH_MORE * (gpus - 2)
    return near * FAR if switches > 1 else near


def step_seconds(
    gpu_type: str, local_batch: float, *, gpus: int, nodes: int = 1, switches: int = 1
) -> float:
    """Time of one optimiser step, gradients and synchronisation partly overlapped."""
    gradient = gradient_seconds(gpu_type, local_batch)
    sync = sync_seconds(gpus, nodes, switches)
    return float((gradient**OVERLAP + sync**OVERLAP) ** (1 / OVERLAP))


def slowest(gpu_types: Iterable[str]) -> str:
    """The type that all others of a group have to wait for."""
    return max(gpu_types, key=_slowness)


def _slowness(gpu_type: str) -> float:
    return SLOWER_THAN_V100.get(gpu_type, 1.0)
