"""What has failed how often: whether a slot is tried again, and whether the job is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ones.slurm_ext.runtime.live.terms import Seconds, Slot

STABLE = 600.0  # seconds after which an earlier failure is forgotten
FAILURES = 3  # of a slot, or restarts of all workers, without success


@dataclass(slots=True)
class Faults:
    """The deaths of workers, by slot and in order."""

    failures: dict[Slot, int] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    """Exit codes of members and of those who failed, since the present generation began."""
    restarts: int = 0  # of all workers, in a row
    restarted: Seconds | None = None  # when that was last

    def blame(self, slot: Slot, code: int, *, lasted: Seconds) -> None:
        """A worker has failed by itself, after so long a time; with 0: ended before it joined."""
        self.failures[slot] = 1 if lasted > STABLE else self.failures.get(slot, 0) + 1
        if code:
            self.deaths.append(code)

    def forgive(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.failures.pop(slot, None)

    def is_hopeless(self, *, now: Seconds, nobody_left: bool) -> bool:
        """All workers are to begin again: whether that is in vain.

        It is where it was in vain before, or all of them failed by themselves.
        """
        # Not since the present generation began: a job that is resized often has no long ones.
        recent = self.restarted is not None and now - self.restarted <= STABLE
        self.restarts, self.restarted = (self.restarts + 1 if recent else 1), now
        failed = nobody_left and all(0 < code < 128 for code in self.deaths)
        return self.restarts > FAILURES or failed
