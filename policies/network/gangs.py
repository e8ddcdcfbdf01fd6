"""What is to be placed: gangs of tasks that start together, and the nodes that are free for them.

Liquid's placement knows tasks, not shapes: a task needs some GPUs of one node, and the tasks of a
gang may share nodes. An answer is the node of every task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Ints
from ones.policies.network.topology import Topology

Pattern = Literal["ring", "tree", "servers"]
NOWHERE = -1  # the node of a task whose gang found no room


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Gang:
    """A job's tasks and how they talk to each other."""

    tasks: tuple[int, ...]  # GPUs of each; servers first
    servers: int = 0  # parameter servers; 0: the tasks reduce among themselves
    bandwidth: float = 1.0  # predicted traffic, in whatever unit; 0: its place is of no matter
    tree: bool = False  # of an all-reduce: over a tree instead of a ring
    apart: bool = False  # every task on a node of its own
    where: NDArray[np.bool_] | None = None  # the nodes it may use; None: all

    def __post_init__(self) -> None:
        if not self.tasks or min(self.tasks) < 1:
            raise ValueError(f"tasks {self.tasks}: a gang has tasks of at least 1 GPU each")
        if not 0 <= self.servers < len(self.tasks):
            raise ValueError(f"{self.servers} of {len(self.tasks)} tasks are servers; none works")
        if not 0 <= self.bandwidth < np.inf:
            raise ValueError(f"bandwidth {self.bandwidth} is not a finite number from 0")

    @property
    def pattern(self) -> Pattern:
        return "servers" if self.servers else "tree" if self.tree else "ring"

    @property
    def gpus(self) -> int:
        return sum(self.tasks)


@dataclass(frozen=True)
class Batch:
    """Gangs in the order of their arrival, and the free GPUs of each node."""

    topology: Topology
    free: Ints
    gangs: tuple[Gang, ...]

    def __post_init__(self) -> None:
        if self.free.shape != (len(self.topology.nodes),) or (self.free < 0).any():
            raise ValueError("the free GPUs are not one number from 0 for every node")

    @cached_property
    def gpus_of(self) -> Ints:
        """[tasks] GPUs."""
        return np.array([gpus for gang in self.gangs for gpus in gang.tasks], dtype=np.int64)

    @cached_property
    def gang_of(self) -> Ints:
        """[tasks] the gang's number."""
        return np.repeat(np.arange(len(self.gangs)), [len(gang.tasks) for gang in self.gangs])

    @cached_property
    def starts(self) -> Ints:
        """[gangs + 1] the first task of each."""
        return np.cumsum([0, *(len(gang.tasks) for gang in self.gangs)])

    @cached_property
    def pairs(self) -> tuple[Ints, Ints]:
        """Every server with every worker of its gang."""
        servers: list[Ints] = [np.zeros(0, dtype=np.int64)]
        workers: list[Ints] = [np.zeros(0, dtype=np.int64)]
        for number, gang in enumerate(self.gangs):
            first, last = int(self.starts[number]), int(self.starts[number + 1])
            middle = first + gang.servers
            servers.append(np.repeat(np.arange(first, middle), last - middle))
            workers.append(np.tile(np.arange(middle, last), gang.servers))
        return np.concatenate(servers), np.concatenate(workers)

    def tasks_of(self, gang: int) -> slice:
        return slice(int(self.starts[gang]), int(self.starts[gang + 1]))

    def nowhere(self) -> Ints:
        """The answer that places nobody."""
        return np.full(len(self.gang_of), NOWHERE, dtype=np.int64)


class Placer(Protocol):
    """A way of placing; gangs that find no room stay nowhere, all their tasks or none."""

    def __call__(self, batch: Batch) -> Ints: ...


def faults(batch: Batch, sites: Ints) -> Iterator[str]:
    """What is wrong with an answer; nothing: it can be carried out."""
    if sites.shape != batch.gang_of.shape:
        yield f"{len(sites)} nodes for {len(batch.gang_of)} tasks"
        return
    placed = sites != NOWHERE
    for number, gang in enumerate(batch.gangs):
        nodes = sites[batch.tasks_of(number)]
        if (nodes == NOWHERE).any():
            if not (nodes == NOWHERE).all():
                yield f"gang {number} is placed in part"
        elif gang.apart and len(np.unique(nodes)) < len(nodes):
            yield f"gang {number} shares nodes"
        elif gang.where is not None and not gang.where[nodes].all():
            yield f"gang {number} is where it may not be"
    held = np.bincount(
        sites[placed], weights=batch.gpus_of[placed], minlength=len(batch.free)
    ).astype(np.int64)
    for node in np.flatnonzero(held > batch.free):
        name = batch.topology.nodes[node].name
        yield f"node {name} would hold {held[node]} GPUs and has {batch.free[node]}"


def hosts_of(gang: Gang, free: Ints, gpus: int) -> NDArray[np.bool_]:
    """The nodes that could take a task of so many GPUs."""
    able = free >= gpus
    return able if gang.where is None else able & gang.where


def interleaved(gang: Gang) -> Sequence[int]:
    """The tasks with servers and workers mixed in the ratio of their counts (Liquid §2.2)."""
    servers, workers = gang.servers, len(gang.tasks) - gang.servers
    after = [(number + 0.5) / max(servers, 1) for number in range(servers)]
    after += [(number + 0.5) / workers for number in range(workers)]
    # A server goes before the workers that it is due with.
    return sorted(range(len(gang.tasks)), key=lambda task: (after[task], task))
