"""Who holds shards of which GPU.

Of a node's GPUs Slurm gives a new shard to one of which shards are held already, the first such,
and only then to a free one; nobody can name the GPU. So two jobs meet on a GPU if each takes half
of its shards and the node has no other GPU that is half taken, and no third can then join them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ones.slurm_ext.snapshot import JobRecord, NodeRecord

Gpu = tuple[str, int]  # node, and Slurm's index there


def half(node: NodeRecord) -> int:
    """The shards that one of two jobs on a GPU takes; 0 where GPUs can't be shared by two."""
    return node.shards_per_gpu // 2 if node.shards_per_gpu % 2 == 0 else 0


def gpus_held(jobs: Iterable[JobRecord]) -> dict[str, int]:
    """GPUs that the jobs hold of each node; one that several of them share counts once."""
    held: dict[str, int] = {}
    shared: set[Gpu] = set()
    for job in jobs:
        shared |= {(node, gpu) for node, gpus in job.shares.items() for gpu in gpus}
        for node, gpus in job.gpus_on.items():
            held[node] = held.get(node, 0) + gpus - len(job.shares.get(node, ()))
    for node, _ in shared:
        held[node] = held.get(node, 0) + 1
    return held


def holders(jobs: Mapping[int, JobRecord]) -> dict[Gpu, tuple[int, ...]]:
    """The jobs, whosoever, that hold shards of each GPU."""
    found: dict[Gpu, list[int]] = {}
    for job in jobs.values():
        for node, gpus in job.shares.items():
            for gpu in gpus:
                found.setdefault((node, gpu), []).append(job.id)
    return {gpu: tuple(sorted(ids)) for gpu, ids in found.items()}


def alone(jobs: Mapping[int, JobRecord]) -> dict[str, frozenset[int]]:
    """Node -> the jobs there that hold shards of a GPU of which nobody else does."""
    found: dict[str, frozenset[int]] = {}
    for (node, _), ids in holders(jobs).items():
        if len(ids) == 1:
            found[node] = found.get(node, frozenset()) | {*ids}
    return found


def beside(jobs: Mapping[int, JobRecord]) -> dict[int, frozenset[int]]:
    """Job -> the others on its GPU, for each that isn't alone there."""
    found: dict[int, frozenset[int]] = {}
    for ids in holders(jobs).values():
        for job in ids if len(ids) > 1 else ():
            found[job] = found.get(job, frozenset()) | {other for other in ids if other != job}
    return found
