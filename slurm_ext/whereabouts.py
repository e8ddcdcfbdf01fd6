"""On which nodes a job may run and in which shapes, worked out once for all jobs that ask the same.

On a large cluster nearly all jobs do, and each answer goes through all nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from ones.policies.model import Shape, Take
from ones.policies.shapes import realisable
from ones.policies.sizes import Sizes
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.layout import Layout
from ones.slurm_ext.snapshot import JobRecord, Snapshot

_FEATURE = re.compile(r"[\w.:+-]+")
_Names = frozenset[str]
_Kind = tuple[int, int, int]  # of node: its GPUs, CPUs and MiB
SLACK = 1e-6  # as amounts per GPU are quotients


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The GPU nodes of one snapshot, as its jobs ask for them."""

    snapshot: Snapshot
    _nodes: dict[tuple[str, str, str, str], _Names] = field(default_factory=dict)
    _parts: dict[tuple[_Names, str], _Names] = field(default_factory=dict)
    _kinds: dict[_Names, _Names] = field(default_factory=dict)
    _counts: dict[_Names, list[list[int]]] = field(default_factory=dict)
    _shapes: dict[tuple[Sizes, Layout, _Names], tuple[Shape, ...]] = field(default_factory=dict)
    _whole: dict[tuple[Sizes, Layout, _Names], tuple[Shape, ...]] = field(default_factory=dict)
    _room: dict[_Names, Counter[_Kind]] = field(default_factory=dict)
    _without: dict[tuple[_Names, frozenset[_Kind]], _Names] = field(default_factory=dict)

    def nodes(self, job: JobRecord, gpu_type: str) -> _Names:
        """By partition, type, exclusion and features; constraints that are more count as none."""
        key = job.partition, job.excluded_nodes, gpu_type, job.features
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = self._nodes_for(job, gpu_type)
        return found

    def _nodes_for(self, job: JobRecord, gpu_type: str) -> _Names:
        partitions = set(job.partition.split(","))
        excluded = frozenset(expand(job.excluded_nodes))
        features = features_of(job.features)
        return frozenset(
            node.name
            for node in self.snapshot.nodes.values()
            if node.gpus
            and node.partitions & partitions
            and gpu_type in ("", node.gpu_type)
            and node.name not in excluded
            and (not features or any(one <= node.features for one in features))
        )

    def part(self, nodes: _Names, partition: str) -> _Names:
        """Those of the nodes that are in the partition."""
        key = nodes, partition
        found = self._parts.get(key)
        if found is None:
            there = self.snapshot.nodes
            found = frozenset(name for name in nodes if partition in there[name].partitions)
            # The same set where it is all of them: to compare equal ones goes through all nodes.
            found = self._parts[key] = nodes if len(found) == len(nodes) else found
        return found

    def kinds(self, nodes: _Names) -> _Names:
        """The GPU types of the nodes."""
        found = self._kinds.get(nodes)
        if found is None:
            found = frozenset(self.snapshot.nodes[name].gpu_type for name in nodes)
            self._kinds[nodes] = found
        return found

    def shapes(self, sizes: Sizes, layout: Layout, nodes: _Names) -> tuple[Shape, ...]:
        """What an allocation on one type of GPU can promise; a job is never spread over two."""
        key = sizes, layout, nodes
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = self._shapes_for(sizes, layout, nodes)
        return found

    def _shapes_for(self, sizes: Sizes, layout: Layout, nodes: _Names) -> tuple[Shape, ...]:
        shapes: dict[Shape, None] = {}
        for counts in self._gpus(nodes):
            found = realisable(sizes, counts, per_node_fixed=layout.per_node_fixed)
            whole = set(counts) if layout.whole_nodes else set()
            shapes |= {
                shape: None
                for shape in found
                if layout.suits(shape)
                and (shape.nodes == 1 or not whole or whole == {shape.gpus_per_node})
            }
        return tuple(sorted(shapes, key=lambda shape: (shape.gpus, shape.nodes)))

    def whole(self, sizes: Sizes, layout: Layout, nodes: _Names) -> tuple[Shape, ...]:
        """Those of the shapes that take all GPUs of each node, where all nodes have as many.

        With others a job that has its nodes for itself would get more than it was given. Raises
        ValueError where there is none.
        """
        key = sizes, layout, nodes
        found = self._whole.get(key)
        if found is None:
            each = {self.snapshot.nodes[name].gpus for name in nodes}
            found = tuple(one for one in self.shapes(*key) if each == {one.gpus_per_node})
            if not found:
                raise ValueError(
                    "its partition gives a job whole nodes (OverSubscribe=EXCLUSIVE), and none of"
                    f" its sizes is of nodes with {' or '.join(map(str, sorted(each)))} GPUs"
                )
            self._whole[key] = found
        return found

    def with_room(
        self, shapes: tuple[Shape, ...], nodes: _Names, cpus: Take | None, memory: Take | None
    ) -> tuple[tuple[Shape, ...], _Names]:
        """Those of the shapes for which enough of the nodes have the CPUs and the memory, and those
        of the nodes that have them for any. Of a node that says neither nothing is known."""
        kinds = self._kinds_of(nodes)
        most = max((shape.gpus_per_node for shape in shapes), default=0)
        if all(_holds(kind, most, cpus, memory) for kind in kinds):
            return shapes, nodes
        left = tuple(shape for shape in shapes if self._suffices(shape, kinds, cpus, memory))
        each = {shape.gpus_per_node for shape in left}
        poor = frozenset(
            kind
            for kind in kinds
            if not any(kind[0] >= gpus and _holds(kind, gpus, cpus, memory) for gpus in each)
        )
        return left, self._but(nodes, poor) if left and poor else nodes

    def _suffices(
        self, shape: Shape, kinds: Counter[_Kind], cpus: Take | None, memory: Take | None
    ) -> bool:
        each = shape.gpus_per_node
        fit = (
            count
            for kind, count in kinds.items()
            if kind[0] >= each and _holds(kind, each, cpus, memory)
        )
        return sum(fit) >= shape.nodes

    def _kinds_of(self, nodes: _Names) -> Counter[_Kind]:
        found = self._room.get(nodes)
        if found is None:
            found = self._room[nodes] = Counter(self._kind(name) for name in nodes)
        return found

    def _kind(self, name: str) -> _Kind:
        node = self.snapshot.nodes[name]
        return node.gpus, node.cpus, node.memory

    def _but(self, nodes: _Names, poor: frozenset[_Kind]) -> _Names:
        """The nodes without those kinds, as the same set for all who ask."""
        key = nodes, poor
        found = self._without.get(key)
        if found is None:
            left = frozenset(name for name in nodes if self._kind(name) not in poor)
            found = self._without[key] = left
        return found

    def _gpus(self, nodes: _Names) -> list[list[int]]:
        """The GPUs of each node, type by type."""
        found = self._counts.get(nodes)
        if found is None:
            types: dict[str, list[int]] = {}
            for name in nodes:
                node = self.snapshot.nodes[name]
                types.setdefault(node.gpu_type, []).append(node.gpus)
            found = self._counts[nodes] = [counts for _, counts in sorted(types.items())]
        return found


def _holds(kind: _Kind, gpus: int, cpus: Take | None, memory: Take | None) -> bool:
    """Whether a node of that kind has what a job takes beside so many of its GPUs."""
    return all(
        take is None or not has or take.node + take.gpu * gpus <= has + SLACK
        for take, has in ((cpus, kind[1]), (memory, kind[2]))
    )


def features_of(text: str) -> tuple[frozenset[str], ...] | None:
    """`a&b` -> one set, `a|b` -> two of one; () for none; None for Slurm's richer expressions."""
    if not text:
        return ()
    names = re.split(r"[&,|]", text)
    mixed = "|" in text and ("&" in text or "," in text)
    if mixed or not all(_FEATURE.fullmatch(name) for name in names):
        return None
    return tuple(frozenset({name}) for name in names) if "|" in text else (frozenset(names),)
