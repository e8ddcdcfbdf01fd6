"""Builders with defaults for the tests of policies and estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ones.policies.guard import History, Limits
from ones.policies.model import (
    Floats,
    Ints,
    Job,
    JobId,
    Node,
    Outlook,
    Placement,
    Policy,
    Problem,
)
from ones.policies.registry import make
from ones.policies.round import Decided, decide
from ones.policies.shapes import realisable
from ones.policies.sizes import Sizes


@dataclass(frozen=True, slots=True)
class PlainSpeed:
    """A speed with a share that doesn't scale and a price for spreading over nodes."""

    sample_seconds: float = 1.0
    fixed: float = 0.1
    between_nodes: float = 0.1
    slow: tuple[str, float] = ("k80", 2.0)

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        factor = self.slow[1] if gpu_type == self.slow[0] else 1.0
        share = (1.0 - self.fixed) / gpus + self.fixed + np.where(nodes > 1, self.between_nodes, 0)
        return np.asarray(factor * self.sample_seconds * global_batch * share)


def a_cluster(nodes: int = 4, gpus: int = 4, *, types: tuple[str, ...] = ("v100",)) -> list[Node]:
    """Nodes n1, n2, ...; the types in equal blocks, each block under a leaf switch of its own."""
    block = -(-nodes // len(types))
    return [
        Node(f"n{i + 1}", types[i // block], gpus, (f"leaf{i // block}", "root"))
        for i in range(nodes)
    ]


def a_job(
    id_: int,
    sizes: str = "1-8",
    *,
    requested: int = 2,
    nodes: list[Node] | None = None,
    **more: Any,
) -> Job:
    nodes = a_cluster() if nodes is None else nodes
    accepted = Sizes.parse(sizes)
    fields = {
        "name": f"job{id_}",
        "user": "ada",
        "account": "lab",
        "submitted": float(id_),
        "shapes": realisable(accepted, [node.gpus for node in nodes]),
        "nodes": frozenset(node.name for node in nodes),
        "started": 0.0 if more.get("placement") else None,
    }
    return Job(id=JobId(id_), sizes=accepted, requested=requested, **(fields | more))


def an_outlook(remaining: float = 1000.0, **more: Any) -> Outlook:
    """By default a job that has shown a tenth of its way, with a restart cost of 10 s."""
    done = more.pop("processed", remaining / 9)
    share = done / (done + remaining)
    fields = {
        "speed": PlainSpeed(),
        "processed": done,
        "alpha": 1 + 50 * share,
        "beta": 1 + 50 * (1 - share),
        "restart_cost": 10.0,
        "points": 3,
    }
    return Outlook(remaining=remaining, **(fields | more))


def a_problem(
    jobs: list[Job],
    nodes: list[Node] | None = None,
    *,
    left: dict[int, float] | None = None,
    now: float = 1000.0,
    restart_cost: float = 10.0,
    **more: Any,
) -> Problem:
    """A problem in which job J has left[J] seconds to go on one fast GPU (1000 where not said)."""
    return Problem(
        now=now,
        nodes=tuple(a_cluster() if nodes is None else nodes),
        jobs=tuple(jobs),
        outlooks={
            job.id: an_outlook((left or {}).get(job.id, 1000.0), restart_cost=restart_cost)
            for job in jobs
        },
        **more,
    )


def decided(problem: Problem, policy: str | Policy = "fifo", memory: object = None) -> Decided:
    """A round's decision, where neither grace nor gain is in a move's way."""
    chosen = make(policy) if isinstance(policy, str) else policy
    limits = Limits(grace=0.0, exempt=0.0, min_gain=None)
    rng = np.random.default_rng(0)
    return decide(problem, chosen, memory, rng, history=History(), limits=limits)


def on(**gpus: int) -> Placement:
    return Placement.of(gpus)


def unusable(node: Node) -> Node:
    return replace(node, usable=False)
