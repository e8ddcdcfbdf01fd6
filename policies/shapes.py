"""Which shapes one Slurm allocation can promise a job: nodes x GPUs per node, uniform."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from ones.policies.model import Shape
from ones.policies.sizes import Sizes

SPREAD = 2  # a shape may use this many times the fewest nodes that could hold its GPUs


def realisable(
    sizes: Sizes,
    gpus_per_node: Sequence[int],
    *,
    per_node_fixed: int | None = None,
    node_limits: tuple[int, int] | None = None,
) -> tuple[Shape, ...]:
    """The shapes of each accepted size on nodes with these GPU counts, fewest nodes first.

    `per_node_fixed` is set where the job's form fixes its GPUs per node (--gpus-per-node);
    `node_limits` are the fewest and most nodes that its form or partition allows. Of each size the
    shape with the fewest nodes comes first; wider ones follow, for fragmented clusters. Thin
    spreads, such as 5 x 1 on nodes of 4 GPUs, are left out unless the job has no other shape.
    """
    fewest, most = node_limits or (1, len(gpus_per_node))
    return _realisable(sizes, tuple(sorted(gpus_per_node)), per_node_fixed, fewest, most)


@lru_cache(maxsize=4096)
def _realisable(
    sizes: Sizes,
    gpus_per_node: tuple[int, ...],
    per_node_fixed: int | None,
    fewest: int,
    most: int,
) -> tuple[Shape, ...]:
    """Most jobs of a cluster ask the same, in every round."""
    shapes: list[Shape] = []
    thin: list[Shape] = []
    largest, total = max(gpus_per_node, default=0), sum(gpus_per_node)
    holding = {
        per_node: sum(1 for have in gpus_per_node if have >= per_node)
        for per_node in range(1, largest + 1)
    }
    for gpus in sizes:
        if gpus > total:
            break
        for per_node in range(min(gpus, largest), 0, -1):
            if gpus % per_node or per_node_fixed not in (None, per_node):
                continue
            count = gpus // per_node
            if not fewest <= count <= min(most, holding[per_node]):
                continue
            tight = count <= SPREAD * -(-gpus // largest) or per_node == per_node_fixed
            (shapes if tight or fewest > 1 else thin).append(Shape(count, per_node))
    return tuple(shapes or thin)


def shapes_by_size(shapes: Sequence[Shape]) -> dict[int, list[Shape]]:
    """The shapes of each GPU count, fewest nodes first; counts ascending."""
    sizes: dict[int, list[Shape]] = {}
    for shape in sorted(shapes, key=lambda shape: (shape.gpus, shape.nodes)):
        sizes.setdefault(shape.gpus, []).append(shape)
    return sizes


def size_as_requested(shapes: Sequence[Shape], requested: int) -> int | None:
    """The realisable size nearest to the job's own request, the smaller one first."""
    return nearest({shape.gpus for shape in shapes}, requested)


def nearest(sizes: Iterable[int], requested: int) -> int | None:
    """The largest size within the request, or else the smallest; None: there is none."""
    there = sorted(sizes)
    return max((size for size in there if size <= requested), default=next(iter(there), None))


def own_forms(shapes: Sequence[Shape], requested: int, nodes: int = 0) -> tuple[Shape, ...]:
    """The forms in which a job can have what it asks for, fewest nodes first; those on so many
    nodes alone, where it asks for that and there is one."""
    size = size_as_requested(shapes, requested)
    found = shapes_by_size(shapes).get(size, []) if size else []
    return tuple([shape for shape in found if shape.nodes == nodes] or found)
