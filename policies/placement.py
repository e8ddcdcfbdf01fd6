"""Where a shape goes: fewest switches, then fewest nodes, whole nodes first, else the best fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ones.policies.model import Job, Node, Placement, Shape, node_order

_Fit = Callable[[Node], tuple[bool, int]]


@dataclass(slots=True)
class Room:
    """The free GPUs of each usable node while a plan is being drawn up."""

    nodes: tuple[Node, ...]  # topology order
    free: dict[str, int]

    @classmethod
    def of(cls, nodes: Sequence[Node], held: Iterable[Placement] = ()) -> Room:
        """What is free on usable nodes once jobs that did not opt in, and `held`, have theirs."""
        ordered = tuple(node_order(nodes))
        free = {node.name: max(0, node.gpus - node.taken) for node in ordered if node.usable}
        room = cls(ordered, free)
        for placement in held:
            room.take(placement)
        return room

    def copy(self) -> Room:
        return Room(self.nodes, dict(self.free))

    def fits(self, placement: Placement) -> bool:
        return all(self.free.get(name, 0) >= gpus for name, gpus in placement.gpus_on)

    def take(self, placement: Placement) -> None:
        """Book the GPUs; a node that is not usable, or fuller than it can be, stays at nothing."""
        for name, gpus in placement.gpus_on:
            if name in self.free:
                self.free[name] = max(0, self.free[name] - gpus)

    def give_back(self, placement: Placement) -> None:
        for name, gpus in placement.gpus_on:
            if name in self.free:
                self.free[name] += gpus

    def place(
        self,
        shape: Shape,
        allowed: Collection[str],
        *,
        gpu_type: str | None = None,
        near: Placement | None = None,
    ) -> Placement | None:
        """Nodes for `shape` among `allowed`, all of one GPU type; None where it doesn't fit.

        Nodes that `near` (usually the job's present placement) uses are taken first.
        """
        if near is not None and near.shape == shape and self._suits(near, allowed, gpu_type):
            return near
        hosts: dict[str, list[Node]] = {}
        for node in self.nodes:
            fits = self.free.get(node.name, 0) >= shape.gpus_per_node
            if fits and node.name in allowed and gpu_type in (None, node.gpu_type):
                hosts.setdefault(node.gpu_type, []).append(node)
        own = frozenset(near.nodes if near else ())
        found = [
            self._closest(nodes, shape, own)
            for nodes in hosts.values()
            if len(nodes) >= shape.nodes
        ]
        if not found:
            return None
        best = min(found, key=lambda nodes: (_switches(nodes), self._left_over(nodes, shape)))
        return Placement.of({node.name: shape.gpus_per_node for node in best})

    def place_job(
        self, job: Job, shapes: Iterable[Shape], *, gpu_type: str | None = None
    ) -> Placement | None:
        """The first of `shapes` that finds room on the job's nodes."""
        for shape in shapes:
            placement = self.place(shape, job.nodes, gpu_type=gpu_type, near=job.placement)
            if placement is not None:
                return placement
        return None

    def _suits(self, placement: Placement, allowed: Collection[str], gpu_type: str | None) -> bool:
        kinds = {node.gpu_type for node in self.nodes if node.name in placement.nodes}
        return (
            len(kinds) == 1
            and gpu_type in (None, *kinds)
            and all(name in allowed for name in placement.nodes)
            and self.fits(placement)
        )

    def _closest(self, hosts: list[Node], shape: Shape, own: frozenset[str]) -> list[Node]:
        """`shape.nodes` of the hosts under the lowest switch that has enough of them."""

        def fit(node: Node) -> tuple[bool, int]:
            return node.name not in own, self.free[node.name] - shape.gpus_per_node

        depth = max(len(node.switches) for node in hosts)
        for level in range(depth):
            groups = _under_one_switch(hosts, level)
            enough = [group for group in groups if len(group) >= shape.nodes]
            if enough:
                # The fullest switch that holds it, so that larger gaps stay whole.
                group = min(enough, key=lambda group: (*_best(group, fit), len(group)))
                return self._fewest_leaves(group, shape, fit)
        return self._fewest_leaves(hosts, shape, fit)

    def _fewest_leaves(self, hosts: list[Node], shape: Shape, fit: _Fit) -> list[Node]:
        chosen: list[Node] = []
        leaves = _under_one_switch(hosts, 0)
        while len(chosen) < shape.nodes:
            missing = shape.nodes - len(chosen)
            holding = [leaf for leaf in leaves if len(leaf) >= missing]
            leaf = min(holding, key=len) if holding else max(leaves, key=len)
            leaves.remove(leaf)
            chosen += sorted(leaf, key=fit)[:missing]
        return chosen

    def _left_over(self, nodes: list[Node], shape: Shape) -> int:
        return sum(self.free[node.name] - shape.gpus_per_node for node in nodes)


def _under_one_switch(hosts: Sequence[Node], level: int) -> list[list[Node]]:
    """Hosts grouped by their switch at `level` (0 is the leaf); no switch is a group of its own."""
    groups: dict[str, list[Node]] = {}
    for node in hosts:
        above = node.switches[level] if level < len(node.switches) else ""
        groups.setdefault(above, []).append(node)
    return list(groups.values())


def _switches(nodes: Sequence[Node]) -> int:
    return len({node.switches[0] if node.switches else "" for node in nodes})


def _best(group: Sequence[Node], fit: _Fit) -> tuple[bool, int]:
    return min(fit(node) for node in group)
