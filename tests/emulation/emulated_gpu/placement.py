"""Which GPUs a training process and its group have, from the environment that Slurm gave it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from emulated_gpu.cluster import ETC, devices_of, expand, leaf_switches, own_node
from emulated_gpu.speed import Group, slowness

DEFAULT_TYPE = "v100"


def minor_of(environ: Mapping[str, str]) -> int | None:
    """This process's /dev/nvidiaN; None where the environment has no number for it."""
    visible = [gpu.strip() for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    local = environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID") or "0"
    if not local.isdigit():
        return None
    chosen = visible[int(local) % len(visible)]
    return int(chosen) if chosen.isdigit() else None


def nodes_of(environ: Mapping[str, str], world: int) -> list[str]:
    """The nodes that a group of so many processes stands on."""
    per_node = environ.get("LOCAL_WORLD_SIZE", "")
    if world <= (int(per_node) if per_node.isdigit() else 1):
        return [own_node()]
    folded = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or own_node()
    return expand(folded)[:world]


def group_of(environ: Mapping[str, str], world: int, etc: Path = ETC) -> Group:
    """What a group of so many processes has to train on."""
    nodes = nodes_of(environ, world)
    types = [kind or DEFAULT_TYPE for node in nodes for kind in devices_of(node, etc).values()]
    switches = leaf_switches(etc)
    return Group(
        gpu_type=max(types, key=slowness, default=DEFAULT_TYPE),
        gpus=world,
        nodes=len(nodes),
        switches=len({switches.get(node, "") for node in nodes}),
    )
