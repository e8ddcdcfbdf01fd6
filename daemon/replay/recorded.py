"""Jobs of which nothing but their duration was recorded, on the GPUs that they had."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import lcm

import numpy as np

from ones.daemon.replay.workload import OutsideProfile, Step
from ones.policies.model import Batch, Floats, Seconds
from ones.policies.sizes import Sizes

SERIAL = 0.05  # share of a job's work that more GPUs don't speed up (Amdahl): our assumption
SAMPLES = 64  # of a GPU at least; the figure is of no matter
MOST_SAMPLES = 2**40
MOST_EPOCHS = 1000
EPOCH: Seconds = 60.0  # of a job that tells nothing of its epochs


def speedup(gpus: int) -> float:
    """How much faster than on one GPU a job is taken to run."""
    return gpus / (1.0 + SERIAL * (gpus - 1))


@lru_cache(maxsize=4096)
def equal_epochs(total: float, each: float) -> Floats:
    """Ends of epochs of about `each`, not more than can be looked through."""
    count = int(min(max(round(total / each), 1), MOST_EPOCHS))
    found = np.linspace(total / count, total, count)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=4096)
def one_batch(gpus: int, sizes: Sizes) -> Batch:
    """The batch of a job of which nothing is known but its speed: the same on any of its sizes.

    Samples are small enough to be shared out evenly, but where very many sizes are accepted.
    """
    even = lcm(*sizes)
    if even <= MOST_SAMPLES:
        batch = even * -(-SAMPLES * gpus // even)
        return Batch(submitted=batch, most_per_gpu=batch, most=batch, initial=batch)
    return Batch(
        submitted=MOST_SAMPLES,
        most_per_gpu=MOST_SAMPLES,
        most=MOST_SAMPLES,
        least_per_gpu=MOST_SAMPLES // sizes.most,
        accumulates=True,  # rounds down where a batch can't be shared out evenly
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recorded:
    """A job that takes `seconds` on `gpus` GPUs, wherever they are, and scales by Amdahl's law."""

    name: str
    gpus: int
    seconds: Seconds
    sizes: Sizes
    gpu_types: frozenset[str] = frozenset()  # empty: any
    restart_seconds: Seconds | None = None
    batches: Batch = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", one_batch(self.gpus, self.sizes))

    @property
    def epochs(self) -> Floats:
        """Made when asked for: a month's jobs have too many to keep."""
        return equal_epochs(self.seconds, EPOCH)

    def runs_on(self, gpu_type: str) -> bool:
        return not self.gpu_types or gpu_type in self.gpu_types

    def step(self, gpu_type: str, gpus_on: tuple[int, ...], local_batch: int) -> Step:
        """A step a second as recorded."""
        count = sum(gpus_on)
        if count not in self.sizes or not self.runs_on(gpu_type):
            raise OutsideProfile(f"{self.name} does not run on {count} GPUs of type {gpu_type}")
        share = local_batch * count / self.batches.submitted
        alone = share * speedup(self.gpus) / count
        seconds = share * speedup(self.gpus) / speedup(count)
        return Step(seconds=seconds, sync=seconds - alone)

    def gradient(self, batch: float, epoch: int) -> None:
        """Nothing is known of it: every sample counts fully."""
