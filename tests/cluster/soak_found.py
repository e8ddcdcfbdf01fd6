"""What a soak comes to."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from soak_faults import CARDS

CHANGES = ("growth", "shrink", "both at once", "in the last three steps", "during a checkpoint")
ENOUGH = 100  # resizes in which everything happens


@dataclass(slots=True)
class Found:
    """What a soak comes to."""

    resizes: int = 0
    jobs: int = 0
    completed: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # seconds from a job's end to its last trace
    standstill: float = 0.0
    lost: int = 0
    repeated: int = 0
    hangs: int = 0
    leftovers: int = 0
    fallbacks: int = 0
    unequal: int = 0
    undone: list[int] = field(default_factory=list)  # steps, each time that copies were taken
    recovered: Counter[str] = field(default_factory=Counter)
    apart: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def as_json(self) -> dict[str, Any]:
        later = quantiles(self.pauses, n=20)[-1] if len(self.pauses) > 1 else None
        return {
            "resizes": self.resizes,
            "pause_median_s": median(self.pauses) if self.pauses else None,
            "pause_p95_s": later,
            "lost_samples": self.lost,
            "repeated_samples": self.repeated,
            "hangs": self.hangs,
            "leftovers": self.leftovers,
            "unequal": self.unequal,
            "fallbacks": self.fallbacks,
            "pauses": len(self.pauses),
            "jobs": self.jobs,
            "jobs_completed": self.completed,
            "seconds": time.monotonic() - self.began,
            "longest_standstill_s": self.standstill,
            "longest_end_s": max(self.ends, default=0.0),
            "asked": dict(sorted(self.asked.items())),
            "exercised": dict(sorted(self.changes.items())),
            "killed": dict(sorted(self.faults.items())),
            "recovered_from": dict(sorted(self.recovered.items())),
            "went_back_steps": sorted(self.undone),
            "parameters_apart": self.apart,
        }

    @property
    def missing(self) -> list[str]:
        """What should have happened in a soak as long as this."""
        if self.resizes < ENOUGH:
            return []
        wanted = [(kind, self.changes) for kind in CHANGES]
        wanted += [(kind, self.faults) for kind in CARDS]
        return [kind for kind, happened in wanted if not happened[kind]]

    @property
    def good(self) -> bool:
        faults = self.lost, self.repeated, self.hangs, self.leftovers, self.fallbacks, self.unequal
        return not (any(faults) or self.missing)
