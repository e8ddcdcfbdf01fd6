"""What there is to do of many things in a limited time, so that none of them is passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ones.policies.model import Seconds


class Turns:
    """Goes through numbers in their order, each time from where the last time ended.

    What fails again and again, and takes its time for it, so holds up nothing else.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reached = -1  # -1: all had their turn

    def of(self, numbers: Iterable[int], *, most: Seconds) -> Iterator[int]:
        """Those of them that come to their turn within so many seconds."""
        begun = self._clock()
        for number in sorted(numbers, key=lambda one: (one <= self._reached, one)):
            if self._clock() - begun > most:
                return
            self._reached = number
            yield number
        self._reached = -1
