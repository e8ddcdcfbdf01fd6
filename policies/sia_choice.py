"""Sia's choice: the configurations on offer, and which job gets which (SOSP'23 §3.3, §3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]
from scipy.optimize import (  # type: ignore[import-untyped]
    Bounds,
    LinearConstraint,
    milp,
)

from ones.policies.model import Floats, Ints, Job, Shape
from ones.policies.placement import Room

Bools = NDArray[np.bool_]
GAP = 1e-4  # how far from the optimum the solver may stop
SOLVER_SECONDS = 20.0
TABLE = 50_000_000  # cells over all jobs: more are left to the solver


@dataclass(frozen=True, slots=True)
class Menu:
    """The forms in which GPUs are handed out: a part of a node, or whole nodes (Sia §3.3).

    Powers of two within a node, then whole nodes, of each GPU type; after these the least forms of
    jobs that take none of them.
    """

    kinds: tuple[str, ...]
    free: Ints  # [K] GPUs of each type
    kind: Ints  # [C] index into kinds
    shapes: tuple[Shape, ...]  # [C]
    nodes: Ints  # [C]
    gpus: Ints  # [C]
    extra: Bools  # [C] only for who takes nothing else
    kind_of: Mapping[str, str]  # node -> its type

    @classmethod
    def of(cls, room: Room, jobs: Sequence[Job], *, most: int) -> Menu:
        """What the usable nodes offer, up to the first size that holds `most` GPUs."""
        free = room.free
        usable = [node for node in room.nodes if node.usable]
        kinds = tuple(sorted({node.gpu_type for node in usable}))
        offers: list[tuple[int, Shape]] = []
        for number, kind in enumerate(kinds):
            nodes = [node for node in usable if node.gpu_type == kind]
            size = max(node.gpus for node in nodes)
            within = [Shape(1, 2**k) for k in range(size.bit_length()) if 2**k < size]
            whole = min(sum(1 for node in nodes if node.gpus == size), -(-most // size))
            shapes = [*within, *(Shape(count, size) for count in range(1, whole + 1))]
            offers += [(number, shape) for shape in shapes]
        plain = {shape for _, shape in offers}
        others = {_least(job) for job in jobs if not any(takes(job, shape) for shape in plain)}
        rest = sorted(shape for shape in others if shape is not None)
        extra = [(number, shape) for shape in rest for number in range(len(kinds))]
        offers += extra
        return cls(
            kinds=kinds,
            free=np.array(
                [sum(free[node.name] for node in usable if node.gpu_type == kind) for kind in kinds]
            ),
            kind=np.array([number for number, _ in offers], dtype=np.int64),
            shapes=tuple(shape for _, shape in offers),
            nodes=np.array([shape.nodes for _, shape in offers], dtype=np.int64),
            gpus=np.array([shape.gpus for _, shape in offers], dtype=np.int64),
            extra=np.arange(len(offers)) >= len(offers) - len(extra),
            kind_of={node.name: node.gpu_type for node in room.nodes},
        )

    def has(self, job: Job) -> Bools:
        """[C] Which of them the job runs on now."""
        if job.placement is None or self.kind_of[job.placement.nodes[0]] not in self.kinds:
            return np.zeros(len(self.gpus), dtype=np.bool_)
        kind = self.kinds.index(self.kind_of[job.placement.nodes[0]])
        return np.asarray((self.kind == kind) & (self.gpus == job.placement.gpus))

    def named(self, choice: int) -> str:
        return f"configuration {self.shapes[choice]} {self.kinds[self.kind[choice]]}".rstrip()


def takes(job: Job, shape: Shape) -> bool:
    return shape.gpus in job.sizes if job.uneven else shape in job.shapes


def _least(job: Job) -> Shape | None:
    """The job's smallest form, on as few nodes as that takes."""
    return min(job.shapes, key=lambda shape: (shape.gpus, shape.nodes), default=None)


def solve(cost: Floats, menu: Menu) -> list[int]:
    """The choice of each job, or -1, of the least sum of costs that the GPUs suffice for.

    `cost` [J, C] is that of a choice less that of none. Exact by table where GPUs are few enough,
    else by HiGHS, which is as published, but slower, and now and then prints a line of its own.
    """
    cost = np.where(menu.gpus <= menu.free[menu.kind], cost, np.inf)
    states = prod(free + 1 for free in menu.free.tolist())
    if len(cost) * states <= TABLE:
        return by_table(cost, menu)
    return by_integer_programme(cost, menu)


def by_table(cost: Floats, menu: Menu) -> list[int]:
    """By dynamic programming over the GPUs of each type that the jobs so far have taken."""
    least = np.zeros(tuple(menu.free + 1))
    picks = []
    everything = (slice(None),) * len(menu.kinds)
    for row in cost:
        before, least = least, least.copy()
        pick = np.full(least.shape, -1, dtype=np.int16)
        for choice in np.flatnonzero(row < 0):
            kind, gpus = int(menu.kind[choice]), int(menu.gpus[choice])
            taken = (*everything[:kind], slice(gpus, None), *everything[kind + 1 :])
            left = (*everything[:kind], slice(None, -gpus), *everything[kind + 1 :])
            found = before[left] + row[choice]
            better = found < least[taken]
            least[taken] = np.where(better, found, least[taken])
            pick[taken] = np.where(better, choice, pick[taken])
        picks.append(pick)
    at = [int(taken) for taken in np.unravel_index(int(least.argmin()), least.shape)]
    chosen: list[int] = []
    for pick in reversed(picks):
        chosen.append(int(pick[tuple(at)]))
        if chosen[-1] >= 0:
            at[int(menu.kind[chosen[-1]])] -= int(menu.gpus[chosen[-1]])
    return chosen[::-1]


def by_integer_programme(cost: Floats, menu: Menu) -> list[int]:
    """With a variable for each job and choice, by branch and bound."""
    job, choice = np.nonzero(cost < 0)
    chosen = [-1] * len(cost)
    if len(job) == 0:
        return chosen
    columns = np.arange(len(job))
    one_each = sparse.csr_array((np.ones(len(job)), (job, columns)), shape=(len(cost), len(job)))
    in_use = sparse.csr_array(
        (menu.gpus[choice], (menu.kind[choice], columns)), shape=(len(menu.kinds), len(job))
    )
    solved = milp(
        cost[job, choice],
        integrality=np.ones(len(job)),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(one_each, ub=1), LinearConstraint(in_use, ub=menu.free)],
        options={"mip_rel_gap": GAP, "time_limit": SOLVER_SECONDS},
    )
    if solved.x is not None:
        for place in np.nonzero(solved.x > 0.5)[0]:
            chosen[job[place]] = int(choice[place])
    return chosen
