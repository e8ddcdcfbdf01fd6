"""CPUs and memory of nodes: what jobs hold of them, and what is left for those that opted in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from ones.slurm_ext.limits import SiteLimits
from ones.slurm_ext.snapshot import JobRecord, NodeRecord
from ones.slurm_ext.tres import memory_in


@dataclass(frozen=True, slots=True)
class CpusAndMemory:
    """Of one node; infinite where it is not shared out, or not known."""

    cpus: float = 0.0
    memory: float = 0.0  # MiB


NONE = CpusAndMemory()


def held_of_nodes(jobs: Iterable[JobRecord]) -> dict[str, CpusAndMemory]:
    """What these running jobs hold on each node of theirs, in the shares in which they hold its
    GPUs: Slurm tells it of all nodes together, and jobs that opted in are the same on each."""
    held: dict[str, CpusAndMemory] = {}
    for job in jobs:
        gpus, memory = sum(job.gpus_on.values()), memory_in(job.tres)
        for name, here in job.gpus_on.items():
            before, share = held.get(name, NONE), here / gpus
            held[name] = CpusAndMemory(
                before.cpus + share * job.cpus, before.memory + share * memory
            )
    return held


def left_of_node(
    node: NodeRecord, held: Mapping[str, CpusAndMemory], limits: SiteLimits
) -> CpusAndMemory:
    """What jobs outside our hands leave of the node, with what ours have `held` of it."""
    ours = held.get(node.name, NONE)
    return CpusAndMemory(
        cpus=_left(node.cpus, node.cpus_used - ours.cpus) if _one_each(node, limits) else inf,
        memory=_left(node.memory, node.memory_used - ours.memory),
    )


def _left(has: int, others: float) -> float:
    return max(0.0, has - max(0.0, others)) if has else inf


def _one_each(node: NodeRecord, limits: SiteLimits) -> bool:
    """Whether each CPU of the node is one job's."""
    there = (limits.partitions.get(name) for name in node.partitions)
    return limits.shares_out_cpus and not any(
        one is not None and one.oversubscribes for one in there
    )
