"""When and where GPUs will be free for a job that waits, as far as anybody knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ones.policies.forecast import seconds_left_on
from ones.policies.model import Job, Problem, Seconds, Shape, node_order
from ones.policies.renewal import ended_in

Ends = Sequence[tuple[Seconds, int]]  # (from now, GPUs) of what will be given back
NEVER = float("inf")


def vacancy(
    problem: Problem, job: Job, others: Mapping[str, Ends]
) -> tuple[Seconds, tuple[str, ...]] | None:
    """Seconds until the job's own size is free, and the nodes; None where it never will be.

    `others`: what jobs outside our hands give back, by node, at their time limits at the latest.
    Jobs in our hands are taken to run on as they are.
    """
    ends = {name: list(found) for name, found in others.items()}
    held: dict[str, int] = {}
    for other in problem.jobs:
        if other.placement is None or other.id == job.id:
            continue
        limit = ended_in(other, problem.outlooks.get(other.id), problem.now)
        left = min(limit, seconds_left_on(problem, other, other.placement))
        for name, gpus in other.placement.gpus_on:
            ends.setdefault(name, []).append((left, gpus))
            held[name] = held.get(name, 0) + gpus
    nodes = [node for node in node_order(problem.nodes) if node.usable and node.name in job.nodes]
    best: tuple[Seconds, int, tuple[str, ...]] | None = None
    for shape in _own(job):
        for kind in sorted({node.gpu_type for node in nodes}):
            times = []
            for place, node in enumerate(nodes):
                if node.gpu_type == kind and node.gpus >= shape.gpus_per_node:
                    free = node.gpus - node.taken - held.get(node.name, 0)
                    at = _when(free, ends.get(node.name, ()), shape.gpus_per_node)
                    times.append((at, place, node.name))
            chosen = sorted(times)[: shape.nodes]
            if len(chosen) < shape.nodes or chosen[-1][0] == NEVER:
                continue
            names = tuple(name for _, _, name in chosen)
            found = (chosen[-1][0], shape.nodes, names)
            best = found if best is None else min(best, found)
    return None if best is None else (best[0], best[2])


def _own(job: Job) -> list[Shape]:
    """The shapes of the size it asked for, else of the next that it can have."""
    sizes = sorted({shape.gpus for shape in job.shapes}, key=lambda gpus: abs(gpus - job.requested))
    return [shape for shape in job.shapes if sizes and shape.gpus == sizes[0]]


def _when(free: int, ends: Ends, wanted: int) -> Seconds:
    for at, gpus in [(0.0, 0), *sorted(ends)]:
        free += gpus
        if free >= wanted:
            return max(0.0, at)
    return NEVER
