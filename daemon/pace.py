"""How often something may happen: so many at once, so many a second in the long run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

DOUBLINGS = 64  # more than it takes from a second to any rest, and far from what no number holds


def doubled(first: float, times: int, *, most: float) -> float:
    """`first`, doubled so many times, but not more than `most`: a rest after failures in a row."""
    return min(most, first * 2.0 ** min(times, DOUBLINGS))


@dataclass(slots=True)
class Pace:
    """A token bucket: `burst` messages at once, `rate` a second in the long run."""

    rate: float
    burst: float
    tokens: float
    at: float = 0.0

    def take(self, now: float) -> bool:
        self.tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.rate)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Paces:
    """The same pace for each of many, such as users; the longest unheard are forgotten."""

    def __init__(self, *, rate: float, burst: float, most: int = 4096) -> None:
        self._rate = rate
        self._burst = burst
        self._most = most
        self._of: OrderedDict[Hashable, Pace] = OrderedDict()

    def take(self, who: Hashable, now: float) -> bool:
        pace = self._of.get(who)
        if pace is None:
            pace = self._of[who] = Pace(self._rate, self._burst, self._burst, now)
        self._of.move_to_end(who)
        while len(self._of) > self._most:
            self._of.popitem(last=False)
        return pace.take(now)
