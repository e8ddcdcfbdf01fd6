"""The tree of switches above the nodes, and how far apart two nodes are in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ones.policies.model import Floats, Ints, Node, node_order
from ones.policies.network.links import inside_costs


@dataclass(frozen=True, slots=True)
class Distances:
    """What a unit of traffic costs between two GPUs, by the lowest thing that joins them.

    The defaults are Liquid's: same node 0, same rack 1, same domain 4, else 40 (Liquid §2.1).
    """

    linked: float = 0.0  # in one node, over NVLink
    node: float = 0.0  # in one node, without
    switches: tuple[float, ...] = (1.0, 4.0, 40.0)
    """Leaf switch, the one above it, and so on; the last holds for all above as well."""

    def __post_init__(self) -> None:
        steps = (self.linked, self.node, *self.switches)
        if not self.switches or list(steps) != sorted(steps) or not 0 <= steps[0] < np.inf:
            raise ValueError(
                f"distances {steps} do not grow from NVLink to node, leaf switch and further up"
            )
        if not np.isfinite(steps[-1]):
            raise ValueError(f"distances {steps} are not all finite")

    def at(self, level: int) -> float:
        """Between two nodes whose lowest common switch is at this level, 0 being the leaves."""
        return self.switches[min(level, len(self.switches) - 1)]


@dataclass(frozen=True)
class Topology:
    """Nodes in topology order, and the switch above each at every level.

    Switches of a level are numbered in the same order, so that the nodes below a switch are
    neighbours. The last level is one switch for the whole cluster, real or not.
    """

    nodes: tuple[Node, ...]
    above: Ints  # [levels, nodes]
    steps: Floats  # [levels] the distance of two nodes that meet there
    within: float  # the distance of two GPUs of one node, where nothing is known of NVLink
    inside: tuple[Floats, ...] | None = None
    """[nodes][GPUs] the cost of joining so many of its GPUs; None: nothing is known of NVLink."""
    _hosts: dict[tuple[frozenset[str], str], NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        nodes: Sequence[Node],
        distances: Distances | None = None,
    ) -> Topology:
        """From the switches of each node, and its NVLink pairs where they are known.

        A node with fewer switches above it than others hangs from its last one.
        """
        far = distances or Distances()
        ordered = tuple(node_order(nodes))
        depth = max((len(node.switches) for node in ordered), default=0)
        rows = [
            _numbered([_path(node, level, depth) for node in ordered]) for level in range(depth)
        ]
        if not rows or (ordered and rows[-1].max() > 0):
            rows.append(np.zeros(len(ordered), dtype=np.int64))
        return cls(
            ordered,
            np.array(rows, dtype=np.int64).reshape(len(rows), len(ordered)),
            np.array([far.at(level) for level in range(len(rows))]),
            far.node,
            None
            if far.linked == far.node or all(node.links is None for node in ordered)
            else tuple(
                inside_costs(node.gpus, node.links or frozenset(), near=far.linked, far=far.node)
                for node in ordered
            ),
        )

    @cached_property
    def index(self) -> Mapping[str, int]:
        return {node.name: at for at, node in enumerate(self.nodes)}

    @cached_property
    def gpus(self) -> Ints:
        return np.array([node.gpus for node in self.nodes], dtype=np.int64)

    @property
    def levels(self) -> int:
        return len(self.steps)

    def distance(self, one: Ints, other: Ints) -> Floats:
        """Between nodes, given by number; broadcasts."""
        found = np.where(np.equal(one, other), self.within, self.steps[-1])
        undecided = np.not_equal(one, other)
        for level in range(self.levels - 1):
            switch = self.above[level]
            meet = undecided & (switch[one] == switch[other])
            found = np.where(meet, self.steps[level], found)
            undecided = undecided & ~meet
        return np.asarray(found)

    def hosts(self, allowed: frozenset[str], gpu_type: str) -> NDArray[np.bool_]:
        """Which nodes are among these and of this type; remembered, since jobs share theirs."""
        key = allowed, gpu_type
        if key not in self._hosts:
            self._hosts[key] = np.array(
                [node.name in allowed and node.gpu_type == gpu_type for node in self.nodes],
                dtype=np.bool_,
            )
        return self._hosts[key]

    def capacity(self) -> Ints:
        """[nodes] GPUs that jobs which opted in could have, were all of them to end."""
        return np.array(
            [max(0, node.gpus - node.taken) if node.usable else 0 for node in self.nodes],
            dtype=np.int64,
        )


def _path(node: Node, level: int, depth: int) -> tuple[str, ...]:
    """The switches from this level up to the root: what names a switch without a doubt."""
    names = node.switches + (node.switches[-1:] or ("",)) * (depth - len(node.switches))
    return names[level:]


def _numbered(paths: Sequence[tuple[str, ...]]) -> Ints:
    numbers: dict[tuple[str, ...], int] = {}
    return np.array([numbers.setdefault(path, len(numbers)) for path in paths], dtype=np.int64)
