"""A small world for replays: one application with a plain law of speed, and jobs of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ones.daemon.replay.simulation import World
from ones.daemon.replay.workload import Gradient, OutsideProfile, Step, TraceJob, Workload
from ones.policies.model import Batch, Floats, Node
from ones.policies.sizes import Sizes


@dataclass(frozen=True, slots=True, eq=False)
class PlainApplication:
    """A pass takes 10 ms a sample and GPU, 50 ms to synchronise, 50 ms more across nodes."""

    name: str = "plain"
    batches: Batch | None = field(
        default_factory=lambda: Batch(
            submitted=64,
            most_per_gpu=64,
            most=1024,
            least_per_gpu=8,
            initial=64,
            accumulates=True,
            tunes=True,
        )
    )
    sizes: Sizes = field(default_factory=lambda: Sizes(tuple(range(1, 17))))
    length: int = 10  # epochs of 100 steps at B0
    noise: float = 640.0
    restart_seconds: float | None = None
    only: str | None = None

    @property
    def epochs(self) -> Floats:
        return 100.0 * np.arange(1, self.length + 1)

    def runs_on(self, gpu_type: str) -> bool:
        return self.only in (None, gpu_type)

    def step(self, gpu_type: str, gpus_on: tuple[int, ...], local_batch: int) -> Step:
        if self.batches is not None and local_batch > self.batches.most_per_gpu:
            raise OutsideProfile(f"{local_batch} samples do not fit a GPU")
        sync = 0.05 * (sum(gpus_on) > 1) + 0.05 * (len(gpus_on) > 1)
        return Step(0.01 * local_batch + sync, sync)

    def gradient(self, batch: float, epoch: int) -> Gradient | None:
        return Gradient(sqr=1.0, var=self.noise / 64.0)


def a_trace_job(name: str = "j", submitted: float = 0.0, **changes: object) -> TraceJob:
    application = changes.pop("application", None) or PlainApplication()
    given: dict[str, object] = {
        "name": name,
        "user": "ada",
        "family": "plain",
        "account": "lab",
        "submitted": submitted,
        "application": application,
        "requested": 4,
        "batch": 64,
        "sizes": application.sizes,  # type: ignore[attr-defined]
    }
    return TraceJob(**{**given, **changes})  # type: ignore[arg-type]


def a_workload(*jobs: TraceJob) -> Workload:
    return Workload(jobs)


def a_world(nodes: int = 4, gpus: int = 4, **changes: object) -> World:
    cluster = tuple(Node(name=f"n{i}", gpu_type="t4", gpus=gpus) for i in range(1, nodes + 1))
    return World(nodes=cluster, **changes)  # type: ignore[arg-type]
