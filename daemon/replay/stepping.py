"""Step times by interpolation between the configurations that were measured (Pollux's simulator).

A placement that was measured itself is interpolated over the local batch alone; any other one over
nodes, GPUs and local batch together, from averages. Outside of what was measured there is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, isnan

import numpy as np
from scipy.interpolate import LinearNDInterpolator  # type: ignore[import-untyped]

from ones.daemon.replay.workload import Step

MOST_NODES = 16  # more nodes count as so many
Point = tuple[float, float, float]  # local batch, seconds of a step, seconds of its sync


@dataclass(frozen=True)
class Measured:
    """Rows of one GPU type's profile."""

    placements: Mapping[tuple[int, ...], tuple[Point, ...]]  # by local batch, ascending
    wide: tuple[tuple[float, float, float, float, float], ...]  # nodes, GPUs, then as a Point

    @cached_property
    def least_local(self) -> float:
        return min(points[0][0] for points in self.placements.values())

    @cached_property
    def most_local(self) -> float:
        return max(points[-1][0] for points in self.placements.values())

    @cached_property
    def most_gpus(self) -> int:
        return int(max([*map(sum, self.placements), *(row[1] for row in self.wide)]))

    @cached_property
    def interpolator(self) -> LinearNDInterpolator:
        """Over (nodes, GPUs, local batch). Point order matters: it settles ties of Delaunay's."""
        grouped: dict[tuple[float, float, float], list[tuple[float, float]]] = {}
        for placement, points in self.placements.items():
            for local, seconds, sync in points:
                key = (float(len(placement)), float(sum(placement)), local)
                grouped.setdefault(key, []).append((seconds, sync))
        means = [(*key, *np.mean(grouped[key], axis=0)) for key in sorted(grouped)]
        every = np.array([*means, *self.wide], dtype=np.float64)
        return LinearNDInterpolator(every[:, :3], every[:, 3:])


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one application on one GPU type."""

    measured: Measured
    slowdown: float = 1.0  # of real runs against these measurements
    memory_splits: bool = False  # a local batch beyond the memory is done in several passes
    most_local: float = inf

    def step(self, gpus_on: tuple[int, ...], local_batch: int) -> Step | None:
        """A pass with so many samples on each GPU; None outside of what was measured."""
        rotation = min(gpus_on[at:] + gpus_on[:at] for at in range(len(gpus_on)))
        local, passes = float(local_batch), 1
        if self.memory_splits:
            most = self._holds(rotation)
            if most < self.measured.least_local:
                return None
            passes = ceil(local / most - 1e-8)
            local /= passes
        found = self._one_pass(rotation, local)
        if found is None:
            return None
        seconds, sync = found
        return Step(
            seconds=self.slowdown * (seconds + (passes - 1) * (seconds - sync)),
            sync=self.slowdown * sync,
        )

    def _one_pass(self, rotation: tuple[int, ...], local: float) -> tuple[float, float] | None:
        points = self.measured.placements.get(rotation)
        if points is not None:
            at = [point[0] for point in points]
            if not at[0] <= local <= at[-1]:
                return None
            return (
                float(np.interp(local, at, [point[1] for point in points])),
                float(np.interp(local, at, [point[2] for point in points])),
            )
        nodes, gpus = min(len(rotation), MOST_NODES), sum(rotation)
        seconds, sync = self.measured.interpolator([[nodes, gpus, local]])[0]
        return None if isnan(seconds) or isnan(sync) else (float(seconds), float(sync))

    def _holds(self, rotation: tuple[int, ...]) -> float:
        """Samples that one GPU's memory holds: the most that was measured there (Sia)."""
        points = self.measured.placements.get(rotation)
        if points is not None:
            most = points[-1][0]
        else:
            nodes, gpus = len(rotation), sum(rotation)
            most = max(
                (row[2] for row in self.measured.wide if row[0] >= nodes and row[1] >= gpus),
                default=0.0,
            )
        return min(most, self.most_local)
