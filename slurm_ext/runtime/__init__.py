"""What runs inside a job: from its place among the workers to its checkpoints.

    from ones.slurm_ext import runtime as ones

    job = ones.init()

The same script runs under ONES, under plain Slurm, under torchrun and as a single process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ones.slurm_ext.runtime.learning_rate import Rule

if TYPE_CHECKING:
    from ones.slurm_ext.runtime.job import Job

__all__ = ["Rule", "init"]


def init(
    *,
    seed: int = 0,
    checkpoints: str | Path | None = None,
    checkpoint_seconds: float | None = None,
    lr_rule: str = Rule.LINEAR,
    warmup_steps: int | None = None,
    backend: str | None = None,
) -> Job:
    """Join the other workers of this job, and find the checkpoint that this run goes on from.

    `checkpoints` is a folder that all nodes see; by default it is `ones-checkpoints/JOBID/SCRIPT`
    in the working directory of a Slurm job, and there are none outside Slurm. They are written
    when Slurm or ONES ask for one, and besides every `checkpoint_seconds` where that is given.
    `lr_rule` says how the learning rate follows the batch size (linear, sqrt, adascale, none), over
    `warmup_steps` steps (by default a tenth of an epoch). `backend` is torch.distributed's.
    """
    from ones.slurm_ext.runtime.start import start  # noqa: PLC0415 (keeps this import light)

    return start(
        seed=seed,
        checkpoints=None if checkpoints is None else Path(checkpoints),
        checkpoint_seconds=checkpoint_seconds,
        rule=Rule(lr_rule),
        warmup_steps=warmup_steps,
        backend=backend,
    )
