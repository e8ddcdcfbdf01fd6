"""How much a job would lose by sitting apart: the weight of its distances (Liquid §1.3)."""

from __future__ import annotations

import numpy as np

from ones.policies.forecast import own_batch
from ones.policies.model import Job, Outlook

LEAST = 0.01  # of a job that seems to lose nothing: its place still counts for something
MOST = 100.0


def sensitivity(job: Job, outlook: Outlook, gpu_type: str, *, nodes: int, gpus: int) -> float:
    """By how much a step takes longer on twice these nodes than on one, as its speed has it.

    0 for a job that has nobody to talk to. It stands in for the bandwidth class that Liquid
    predicts: what counts is the time that traffic costs, not how much of it there is.
    """
    if gpus < 2:
        return 0.0
    spread = np.array([1, nodes, min(2 * nodes, gpus)])
    seconds = outlook.speed.step_seconds(
        gpu_type, spread, np.full(3, gpus), np.full(3, own_batch(job, outlook))
    )
    together = seconds[0] if np.isfinite(seconds[0]) else seconds[1]  # no node may be so large
    if not (np.isfinite(together) and np.isfinite(seconds[2])):
        return LEAST
    return float(np.clip(seconds[2] / together - 1.0, LEAST, MOST))
