"""Pacing of optimiser steps, and the load that a process puts on its GPU."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from emulated_gpu.node import expand, gpu_types, switches_of
from emulated_gpu.speed import slowest, step_seconds

LOAD = Path("/run/emulation/load")
REPORT_EVERY = 0.5  # seconds
FIXED_MEMORY, MEMORY_PER_SAMPLE = 1 << 30, 16 << 20  # bytes
LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the cluster this process trains."""

    minor: int  # its GPU on this node
    gpu_type: str  # the slowest of the job
    nodes: int
    switches: int


def place_of(
    environ: Mapping[str, str], types: Mapping[str, str], switches: Mapping[str, str]
) -> Place:
    """The place of a process with this environment."""
    names = expand(environ.get("SLURM_JOB_NODELIST") or os.uname().nodename)
    # Slurm restricts no devices here, so these are minors, of the whole node or of this task alone.
    visible = [int(each) for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    local = int(environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID") or 0)
    return Place(
        minor=visible[local % len(visible)] if visible else 0,
        gpu_type=slowest(types.get(name, "v100") for name in names),
        nodes=len(names),
        switches=len({switches.get(name, "") for name in names}),
    )


class Pacer:
    """Sees batches go into the model and steps come out of the optimiser, and waits between.

    A step is counted from the end of the one before, as a GPU is fed while the next batch is
    loaded. When more than a step lies between (a validation, a checkpoint), the GPU was idle and
    the step begins with its first forward pass.
    """

    def __init__(
        self,
        grad_enabled: Callable[[], bool],
        world: Callable[[], int],
        place: Callable[[], Place],
        *,
        load: Path = LOAD,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grad_enabled = grad_enabled
        self._world = world
        self._find_place = place
        self._load = load
        self._clock = clock
        self._sleep = sleep
        self._depth = 0  # of nested modules
        self._searching = False  # for the batch of the forward pass that goes on
        self._model: Any = None  # what this step trains
        self._samples = 0
        self._needed = 0.0  # by the step before
        self._busy = 0.0  # since the last report
        self._ended = self._since = self._reported = LONG_AGO
        self._process = 0
        self._place = Place(0, "v100", 1, 1)

    def before_forward(self, module: Any, inputs: Any) -> None:
        """The first tensor that goes into the model tells the batch."""
        self._depth += 1
        if self._depth == 1:
            self._searching = self._trains(module)
            if self._searching and self._model is None:
                self._model = module
                self._begin()
        if self._searching:
            batch = batch_of(inputs)
            if batch is not None:
                self._samples += batch
                self._searching = False

    def after_forward(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def after_step(self, *_: Any) -> None:
        """Wait until the emulated GPUs would have ended this step."""
        if self._model is None:
            return  # nothing was computed: a step to restore a state, a second optimiser
        samples, self._samples, self._model = self._samples, 0, None
        self._needed = self.seconds(samples)
        end = self._ended + self._needed
        late = self._clock() - end
        if late < 0:
            self._sleep(-late)
        # A late awakening is made good by the next step, late arithmetic is not.
        self._ended = end if late < 0 else end + late
        self._busy += self._needed
        self._tell(samples)

    def seconds(self, samples: int) -> float:
        """Time of one step with so many samples on this GPU, wherever its group is."""
        place = self._place
        return step_seconds(
            place.gpu_type, samples, gpus=self._world(), nodes=place.nodes, switches=place.switches
        )

    def _trains(self, module: Any) -> bool:
        """Whether this outermost module is the model: no validation, loss or recomputation."""
        # A wrapper may be left in evaluation mode around a model that trains, as Lightning does.
        if not (self._grad_enabled() and any(each.training for each in module.modules())):
            return False
        if self._model is not None:
            return module is self._model
        return next(module.parameters(), None) is not None

    def _begin(self) -> None:
        now = self._clock()
        if self._process != os.getpid():
            # At import it would be too early: launchers fork workers from a process with torch.
            self._process = os.getpid()
            self._place = self._find_place()
            self._ended = self._reported = LONG_AGO
            self._busy, self._since = 0.0, now
        if now - self._ended > self._needed:
            self._ended = now

    def _tell(self, samples: int) -> None:
        now = self._clock()
        if now - self._reported < REPORT_EVERY:
            return
        said = {
            "minor": self._place.minor,
            "busy": min(1.0, self._busy / max(now - self._since, 1e-6)),
            "memory": FIXED_MEMORY + MEMORY_PER_SAMPLE * samples,
            "step": self._needed,
        }
        self._busy, self._since, self._reported = 0.0, now, now
        file = self._load / str(self._process)
        with suppress(OSError):  # no emulator here
            beside = file.with_suffix(".new")
            beside.write_text(json.dumps(said))
            beside.replace(file)


def batch_of(inputs: Any) -> int | None:
    """The length of the first tensor in the arguments of a model; None where there is none."""
    for each in inputs:
        if isinstance(each, dict | list | tuple):
            inner = batch_of(each.values() if isinstance(each, dict) else each)
            if inner is not None:
                return inner
        elif hasattr(each, "shape") and len(each.shape) > 0:
            return int(each.shape[0])
    return None


def start(torch: ModuleType) -> None:
    """Hook all modules and optimisers of this process."""
    group = torch.distributed

    def world() -> int:
        joined = group.is_available() and group.is_initialized()
        return int(group.get_world_size()) if joined else 1

    pacer = Pacer(
        torch.is_grad_enabled, world, lambda: place_of(os.environ, gpu_types(), switches_of())
    )
    modules = torch.nn.modules.module
    modules.register_module_forward_pre_hook(pacer.before_forward)
    modules.register_module_forward_hook(pacer.after_forward, always_call=True)
    # An attribute of torch.optim it is not.
    importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(
        pacer.after_step
    )
