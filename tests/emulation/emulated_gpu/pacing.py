"""Pacing: gradients are real, and each optimizer step ends when the emulated GPU would end it."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulated_gpu import loads
from emulated_gpu.cluster import ETC
from emulated_gpu.hook import record
from emulated_gpu.loads import Load
from emulated_gpu.placement import group_of, minor_of
from emulated_gpu.speed import Group, Profile, profile_of, step_seconds

LONG_AGO = float("-inf")
HIDDEN = 0.1  # seconds between two steps that count as part of the second: loading is prefetched


@dataclass(frozen=True, slots=True)
class Samples:
    """What one process has computed for one step."""

    total: int
    passes: int
    largest: int  # of one pass


class Batches:
    """Sees the calls of modules, and tells how many samples went through the model."""

    def __init__(self) -> None:
        self._depth = 0
        self._seen = False  # whether the call under way has told its batch
        self._calls: dict[int, list[int]] = {}  # outermost module -> the batch of each call

    def enter(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """A module is called, perhaps by another one that is being called."""
        if self._depth == 0:
            self._outermost = id(module)
            # A loss is a module as well, and a validation need not be without gradients.
            self._seen = not module.training or next(module.parameters(), None) is None
        self._depth += 1
        if self._seen:
            return
        # The outermost may be called with keywords, which its first layers are not.
        batch = batch_of(inputs)
        if batch is not None:
            self._calls.setdefault(self._outermost, []).append(batch)
            self._seen = True

    def leave(self) -> None:
        self._depth = max(0, self._depth - 1)

    @property
    def idle(self) -> bool:
        return not self._calls

    def take(self) -> Samples | None:
        """What was seen since the last time; None if nothing was.

        Several calls of one module are gradient accumulation. A model of several modules that are
        called one after the other has computed its batch once, not once for each.
        """
        calls, self._calls, self._depth = self._calls, {}, 0
        if not calls:
            return None
        most = max(calls.values(), key=sum)
        return Samples(sum(most), len(most), max(most))


def batch_of(inputs: Any) -> int | None:
    """The length of the first tensor among a module's arguments; None where there is none."""
    for value in inputs.values() if isinstance(inputs, dict) else inputs:
        found = None
        if isinstance(value, dict | list | tuple):
            found = batch_of(value)
        elif getattr(value, "shape", None):
            found = int(value.shape[0])
        if found is not None:
            return found
    return None


class Pacer:
    """Paces one process. Everything it knows of its place it learns at the first step, because a
    launcher may fork its workers after it has imported torch."""

    def __init__(
        self,
        *,
        world: Callable[[], int],
        training: Callable[[], bool],
        environ: Mapping[str, str] = os.environ,
        etc: Path = ETC,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._world = world
        self._training = training
        self._environ = environ
        self._etc = etc
        self._clock = clock
        self._sleep = sleep
        self._pid = 0
        self._failed = False
        self._begun = self._end = LONG_AGO  # of the step under way, of the last one
        self._busy = 0.0
        self._profile: Profile | None = None
        self._group: Group | None = None

    def before_forward(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """Hook of every module."""
        try:
            if self._failed or not self._training():
                return
            if self._pid != os.getpid():
                self._wake()
            if self._batches.idle:
                self._begun = self._clock()
            self._batches.enter(module, inputs)
        except Exception:
            self._give_up()

    def after_forward(self, *_: object) -> None:
        """Hook of every module, also when it raises."""
        if not self._failed and self._pid == os.getpid() and self._training():
            self._batches.leave()

    def after_step(self, optimizer: Any, *_: object) -> None:
        """Hook of every optimizer: wait until the emulated GPUs would have ended this step."""
        try:
            left = self._left(optimizer)
        except Exception:
            self._give_up()
            return
        # Out of the try: what a program's signal handler raises here is the program's.
        if left > 0:
            self._sleep(left)

    def _left(self, optimizer: Any) -> float:
        """Seconds of this step still to go."""
        if self._failed or self._pid != os.getpid():
            return 0.0
        samples = self._batches.take()
        if samples is None:
            return 0.0
        profile, group = self._known(optimizer)
        needed = step_seconds(profile, group, samples.total, samples.passes)
        # Where the last step's end was planned, not where it was: what one step slept too long the
        # next one gives back.
        if self._begun - self._end < HIDDEN:
            self._begun = self._end
        now = self._clock()
        self._end = self._begun + needed
        self._busy += needed
        self._tell(profile, samples)
        return self._end - now

    def _wake(self) -> None:
        """This process's first step, or the first after a fork."""
        self._pid = os.getpid()
        self._started = loads.start_of(self._pid)
        self._minor = minor_of(self._environ)
        self._folder = loads.root() / "load"
        self._batches = Batches()
        self._begun = self._end = LONG_AGO
        self._busy = 0.0
        self._profile = self._group = None

    def _known(self, optimizer: Any) -> tuple[Profile, Group]:
        world = self._world()
        if self._profile is None:
            parameters = sum(
                parameter.numel()
                for group in optimizer.param_groups
                for parameter in group["params"]
            )
            self._profile = profile_of(self._environ.get("ONES_EMULATION_PROFILE"), parameters)
        if self._group is None or self._group.gpus != world:
            self._group = group_of(self._environ, world, self._etc)
        return self._profile, self._group

    def _tell(self, profile: Profile, samples: Samples) -> None:
        if self._minor is None:
            return
        load = Load(
            minor=self._minor,
            model=profile.memory,
            per_sample=profile.memory_per_sample,
            batch=samples.largest,
            busy=self._busy,
            until=max(0.0, self._end),
            started=self._started,
        )
        try:
            loads.write(load, self._folder, self._pid)
        except OSError:
            # No emulator here: nobody sees this GPU at work, which still takes its time.
            self._minor = None
            record()

    def _give_up(self) -> None:
        self._failed = True
        record()


def start(torch: Any) -> None:
    """Hook all modules and all optimizers of this process, present and future."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(1)
    distributed = torch.distributed

    def world() -> int:
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_world_size())
        return 1

    pacer = Pacer(world=world, training=torch.is_grad_enabled)
    modules = torch.nn.modules.module
    modules.register_module_forward_pre_hook(pacer.before_forward)
    modules.register_module_forward_hook(pacer.after_forward, always_call=True)
    # torch.optim hides its own module `optimizer`.
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    optimizers.register_optimizer_step_post_hook(pacer.after_step)
