"""Nodes as sets of bits, and which of them Slurm's select plugin takes for a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ones.policies.model import Node, Placement, Shape

Nodes = int  # a set: bit i stands for node i


@dataclass(slots=True)
class Floor:
    """The nodes of a cluster in their order, and their switches."""

    nodes: tuple[Node, ...]
    index: dict[str, int] = field(init=False)
    every: Nodes = field(init=False)
    usable: Nodes = field(init=False)
    most: int = field(init=False)  # GPUs of the largest node
    kinds: tuple[Nodes, ...] = field(init=False)  # the nodes of each GPU type
    levels: tuple[tuple[Nodes, ...], ...] = field(init=False)
    """The nodes below each switch, leaves first; none where the site names no switches."""
    _known: dict[frozenset[str], Nodes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = {node.name: at for at, node in enumerate(self.nodes)}
        self.every = (1 << len(self.nodes)) - 1
        self.usable = sum(1 << at for at, node in enumerate(self.nodes) if node.usable)
        self.most = max((node.gpus for node in self.nodes), default=0)
        kinds: dict[str, Nodes] = {}
        depth = max((len(node.switches) for node in self.nodes), default=0)
        switches: list[dict[str, Nodes]] = [{} for _ in range(depth)]
        for at, node in enumerate(self.nodes):
            kinds[node.gpu_type] = kinds.get(node.gpu_type, 0) | 1 << at
            for level, name in enumerate(node.switches):
                switches[level][name] = switches[level].get(name, 0) | 1 << at
        self.kinds = tuple(kinds.values())
        self.levels = tuple(tuple(level.values()) for level in switches)

    def named(self, names: frozenset[str]) -> Nodes:
        """The nodes of these names; remembered, since jobs of a partition share theirs."""
        found = self._known.get(names)
        if found is None:
            found = sum(1 << self.index[name] for name in names if name in self.index)
            self._known[names] = found
        return found

    def choose(self, able: Nodes, wanted: int) -> Nodes | None:
        """So many of the able nodes, as near to each other as may be; None: there are too few.

        A group is a switch, or nodes that follow each other where nothing is known of switches:
        the smallest that has enough of them is taken, and in it the first nodes.
        """
        for kind in self.kinds if wanted > 1 else (self.every,):
            there = able & kind
            if there.bit_count() < wanted:
                continue
            for level in self.levels or (tuple(runs(there)),):
                inside = [there & group for group in level]
                enough = [group for group in inside if group.bit_count() >= wanted]
                if enough:
                    return first(min(enough, key=int.bit_count), wanted)
            return self._fullest(there, wanted)
        return None

    def _fullest(self, there: Nodes, wanted: int) -> Nodes:
        """Nodes of the groups that have most, where no single one has enough."""
        groups = self.levels[0] if self.levels else tuple(runs(there))
        taken = 0
        for group in sorted((there & group for group in groups), key=int.bit_count, reverse=True):
            taken |= first(group, wanted - taken.bit_count())
        return taken | first(there & ~taken, wanted - taken.bit_count())

    def placement(self, chosen: Nodes, per_node: int) -> Placement:
        return Placement.of({self.nodes[at].name: per_node for at in members(chosen)})


def members(nodes: Nodes) -> Iterator[int]:
    """The numbers of the nodes in the set, lowest first."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


def first(nodes: Nodes, count: int) -> Nodes:
    """The first so many of them."""
    taken = 0
    while count > 0 and nodes:
        lowest = nodes & -nodes
        taken |= lowest
        nodes ^= lowest
        count -= 1
    return taken


def runs(nodes: Nodes) -> Iterator[Nodes]:
    """The groups of nodes that follow each other without a gap."""
    while nodes:
        lowest = nodes & -nodes
        after = nodes + lowest  # carries over the run, whose bits are gone then
        run = nodes & ~after
        yield run
        nodes &= ~run


@dataclass(slots=True)
class Free:
    """The free GPUs of each node; `holding[k]` are the nodes that have k of them or more."""

    gpus: list[int]
    holding: list[Nodes]

    @classmethod
    def of(cls, gpus: Sequence[int], most: int) -> Free:
        holding = [
            sum(1 << at for at, free in enumerate(gpus) if free >= count)
            for count in range(most + 1)
        ]
        return cls(list(gpus), holding)

    def copy(self) -> Free:
        return Free(list(self.gpus), list(self.holding))

    def take(self, held: Iterable[tuple[int, int]]) -> None:
        """Book GPUs of nodes; a node fuller than it can be stays at nothing."""
        for at, count in held:
            before = self.gpus[at]
            self.gpus[at] = max(0, before - count)
            for level in range(self.gpus[at] + 1, before + 1):
                self.holding[level] &= ~(1 << at)

    def give(self, held: Iterable[tuple[int, int]]) -> None:
        for at, count in held:
            before = self.gpus[at]
            self.gpus[at] = min(len(self.holding) - 1, before + count)
            for level in range(before + 1, self.gpus[at] + 1):
                self.holding[level] |= 1 << at

    def fit(self, floor: Floor, able: Nodes, shapes: Iterable[Shape]) -> tuple[Shape, Nodes] | None:
        """Nodes for the first of the shapes that has room on the able ones."""
        for shape in shapes:
            if shape.gpus_per_node < len(self.holding):
                chosen = floor.choose(able & self.holding[shape.gpus_per_node], shape.nodes)
                if chosen is not None:
                    return shape, chosen
        return None
