"""On which nodes a job may run and in which shapes, worked out once for all jobs that ask the same.

On a large cluster nearly all jobs do, and each answer goes through all nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ones.policies.model import Shape
from ones.policies.shapes import realisable
from ones.policies.sizes import Sizes
from ones.slurm_ext.hostlists import expand
from ones.slurm_ext.layout import Layout
from ones.slurm_ext.snapshot import JobRecord, Snapshot

_FEATURE = re.compile(r"[\w.:+-]+")
_Names = frozenset[str]


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


def features_of(text: str) -> tuple[frozenset[str], ...] | None:
    """`a&b` -> one set, `a|b` -> two of one; () for none; None for Slurm's richer expressions."""
    if not text:
        return ()
    names = re.split(r"[&,|]", text)
    mixed = "|" in text and ("&" in text or "," in text)
    if mixed or not all(_FEATURE.fullmatch(name) for name in names):
        return None
    return tuple(frozenset({name}) for name in names) if "|" in text else (frozenset(names),)
