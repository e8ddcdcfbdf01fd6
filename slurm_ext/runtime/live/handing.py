"""What goes from worker to worker at a change of sharded models, beside their slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Baggage:
    """What goes along with the models: tracked objects, and a few bytes."""

    tracked: Sequence[Any]
    note: bytes
    checkpoint: Path | None  # from which the first generation reads its state
    finish_step: Callable[[], None]  # does the one that others have done and this worker has not

    def gradients_first(self, step: Callable[[], None]) -> None:
        """To finish it, the optimizers have to do this step first."""
        after = self.finish_step

        def both() -> None:
            step()
            after()

        self.finish_step = both


@dataclass(slots=True)
class Arrived:
    """What a change has brought."""

    note: bytes | None  # where this worker had no part of the state
    common: list[int]  # numbers that are the same for all from here on
    moved: int = 0  # bytes of slices that all have sent
    least: int = 0  # bytes that had to be sent
    again: int = 0  # samples that somebody had committed beyond what all go on from
    copied: bool = False  # the state is in part of copies that neighbours had kept
