"""What the jobs of a soak train: a model that each worker has whole, or one that is sharded."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

COPIED = 5  # steps between two copies of a slice, in counted_digits.py
BACK = COPIED + 2  # steps that a lost worker may cost: an epoch's end and a change put copies off
ROUNDING = 1e-2  # relative, of the parameters' norms: sums over workers in another order each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A kind of training, and how long anything may take with it."""

    environment: str  # the folder of the Python environment that it needs
    checkpoint_seconds: float
    patience: float  # seconds for a size to be reached, whatever was killed
    standstill: float  # seconds between two steps, where all workers begin anew even
    live_timeout: float  # seconds for one order
    seen_late: float  # seconds in which Slurm ends a job, and we see it
    gate: float  # seconds for which it is held up in its last steps, at most
    shards: Sequence[int] = ()  # over how many workers a model is cut; 0: over all

    @property
    def sharded(self) -> bool:
        return bool(self.shards)

    def words(self, epochs: int, chance: random.Random) -> list[str]:
        """Of one job of counted_digits.py, drawn by chance."""
        words = [str(epochs), str(self.checkpoint_seconds)]
        if self.sharded:  # nothing else slows it down: only Debian's PyTorch has a GPU's pace
            words += [str(chance.choice(self.shards)), "0.2"]
        return words

    def alone(self, epochs: int) -> list[str]:
        """The command of the same training by one process."""
        script = [f"{self.environment}/bin/python", "/home/jobs/counted_digits.py"]
        return [*script, str(epochs), "0", "0", "0"]


PLAIN = Training(
    environment="/opt/ones",
    checkpoint_seconds=0.3,
    patience=90.0,
    standstill=25.0,
    live_timeout=60.0,
    seen_late=3.0,
    gate=7.0,
)
SHARDED = Training(
    environment="/opt/sharded",
    checkpoint_seconds=0.3,
    patience=300.0,
    standstill=90.0,
    live_timeout=200.0,
    seen_late=20.0,
    gate=40.0,
    shards=(0, 2),
)


def digests(notes: Iterable[dict[str, Any]]) -> list[list[float]]:
    """The norms of the parameters that each worker came to."""
    return [note["digest"] for note in notes if "digest" in note]
