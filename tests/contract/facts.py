"""What claims are made of: a job as a Slurm has it, real or simulated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A job, but for what nobody claims anything about."""

    state: str
    reason: str
    held: bool
    restarts: int
    nodes: str
    required: str
    tres_per_node: str
    comment: str
    gres: list[str]  # of each of its nodes, such as gpu:v100:2 and shard:1(1/2,0/2)
