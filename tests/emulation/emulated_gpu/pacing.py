"""Pacing of optimiser steps, and the load that a process puts on its GPU."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from emulated_gpu.node import gpu_types, switches_of
from emulated_gpu.speed import step_seconds

LOAD = Path("/run/emulation/load")
REPORT_EVERY = 0.5  # seconds
FIXED_MEMORY, MEMORY_PER_SAMPLE = 1 << 30, 16 << 20  # bytes


class Pacer:
    """Sees batches go into the model and steps come out of the optimiser, and waits between."""

    def __init__(
        self, torch: ModuleType, clock: Any = time.monotonic, sleep: Any = time.sleep
    ) -> None:
        self._torch = torch
        self._clock = clock
        self._sleep = sleep
        self._depth = 0
        self._samples = 0
        self._step_began = clock()
        self._reported = 0.0
        self._busy = 0.0
        self._since = clock()
        self._where: tuple[str, int, int] | None = None
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
        local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
        self.minor = int(devices[local % len(devices)])
        self.file = LOAD / str(os.getpid())

    def before_forward(self, _: Any, inputs: Any) -> None:
        """The outermost module's first tensor tells the batch."""
        self._depth += 1
        if self._depth == 1:
            self._samples += next((len(x) for x in inputs if hasattr(x, "shape") and x.dim()), 0)

    def after_forward(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def after_step(self, *_: Any) -> None:
        """Wait until the emulated GPUs would have ended this step."""
        samples, self._samples, self._depth = self._samples, 0, 0
        needed = self.seconds(samples)
        left = self._step_began + needed - self._clock()
        if left > 0:
            self._sleep(left)
        self._step_began = self._clock()
        self._busy += needed
        self._tell(samples)

    def seconds(self, samples: int) -> float:
        """Time of one step with so many samples on this GPU, wherever its group is."""
        gpus = self._world()
        gpu_type, nodes, switches = self._placement()
        return step_seconds(gpu_type, samples, gpus=gpus, nodes=nodes, switches=switches)

    def _world(self) -> int:
        group = self._torch.distributed
        return group.get_world_size() if group.is_available() and group.is_initialized() else 1

    def _placement(self) -> tuple[str, int, int]:
        if self._where is None:
            types, switches, slowest = gpu_types(), switches_of(), "v100"
            names = _job_nodes()
            from emulated_gpu.speed import SLOWER_THAN_V100  # noqa: PLC0415

            slowest = max(
                (types.get(name, "v100") for name in names),
                key=lambda kind: SLOWER_THAN_V100.get(kind, 1.0),
            )
            self._where = slowest, len(names), len({switches.get(name, "") for name in names})
        return self._where

    def _tell(self, samples: int) -> None:
        now = self._clock()
        if now - self._reported < REPORT_EVERY:
            return
        window = max(now - self._since, 1e-6)
        said = {
            "minor": self.minor,
            "busy": min(1.0, self._busy / window),
            "memory": FIXED_MEMORY + MEMORY_PER_SAMPLE * samples,
        }
        self._busy, self._since, self._reported = 0.0, now, now
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(said))
        beside.replace(self.file)


def _job_nodes() -> list[str]:
    """The nodes of the job's present allocation."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415

    folded = os.environ.get("SLURM_JOB_NODELIST") or os.uname().nodename
    return list(NodeSet(folded, resolver=RESOLVER_NOGROUP))


def start(torch: ModuleType) -> None:
    """Hook all modules and optimisers of this process."""
    pacer = Pacer(torch)
    modules = torch.nn.modules.module
    modules.register_module_forward_pre_hook(pacer.before_forward)
    modules.register_module_forward_hook(pacer.after_forward)
    torch.optim.optimizer.register_optimizer_step_post_hook(pacer.after_step)
