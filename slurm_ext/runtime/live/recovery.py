"""What a job that has lost workers went on from, and what it had to do again.

The base launcher keeps the last few, tells onesd of them with every word of its own, and whoever
asks for the job's status. Nothing here knows a clock, a process or a socket.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ones.slurm_ext.runtime.live.terms import Loss, Number

Source = Literal["memory", "neighbour", "checkpoint"]
KEPT = 16  # that a word to onesd may have: `Live.recoveries` in ones.daemon.wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A generation that came because the one before had lost workers."""

    generation: Number
    at: float  # seconds since the epoch
    lost: int  # workers
    source: Source
    """Where the state came from: the memory of those who were left, slices that neighbours had kept
    of an earlier state, or the last confirmed checkpoint."""
    samples: int | None  # of committed steps that are done again; None: nobody is left to say
    steps: int | None  # that these are


class Recoveries:
    """Makes them out of what workers say before and after."""

    def __init__(self) -> None:
        self._known: list[Recovery] = []
        self._reached: int | None = None
        self._from_copies = False
        self._batch = self._epoch = 0

    def broken(self, committed: int | None) -> None:
        """A worker has lost its group after so many samples; None: it has no part of the state."""
        if committed is not None:
            self._reached = max(committed, self._reached or 0)

    def switched(self, *, batch: int, epoch: int, copies: bool) -> None:
        """A worker has the new generation's state; samples of a step and of an epoch from then on.

        `copies`: the state is an earlier one, of which neighbours had kept slices.
        """
        self._batch, self._epoch = batch, epoch
        self._from_copies |= copies

    def changed(
        self, number: Number, loss: Loss | None, *, samples: int, at: float
    ) -> Recovery | None:
        """The generation is the present one after so many samples; None where nothing was lost."""
        reached, copies = self._reached, self._from_copies
        self._reached, self._from_copies = None, False
        if loss is None:
            return None
        source: Source = "neighbour" if copies else "memory"
        again = steps = None
        if reached is not None:
            again = max(0, reached - samples)
            steps = steps_between(samples, samples + again, batch=self._batch, epoch=self._epoch)
        found = Recovery(
            generation=number,
            at=at,
            lost=loss.workers,
            source="checkpoint" if loss.restarted else source,
            samples=again,
            steps=steps,
        )
        self._known = [*self._known, found][-KEPT:]
        return found

    def told(self) -> list[dict[str, Any]]:
        """The last ones, as they are said."""
        return [asdict(each) for each in self._known]


def steps_between(begin: int, end: int, *, batch: int, epoch: int) -> int:
    """How many steps lie between two numbers of samples, an epoch's last one being what is left."""
    if batch < 1 or epoch < 1:
        return 0

    def steps(samples: int) -> int:
        whole, part = divmod(samples, epoch)
        return whole * -(-epoch // batch) + -(-part // batch)

    return steps(end) - steps(begin)
