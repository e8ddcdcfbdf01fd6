"""When somebody who gave no answer is asked again: less and less often."""

from __future__ import annotations

from ones.daemon.pace import doubled
from ones.policies.model import Seconds

FIRST: Seconds = 60.0  # after the first question without an answer
MOST: Seconds = 600.0


class Rest:
    """Between two questions to one who is asked by rounds, which wait for it.

    Where the host of slurmdbd is gone each of them takes as long as a command may.
    """

    def __init__(self) -> None:
        self._asked: Seconds | None = None  # when the last one was that got no answer
        self._failures = 0

    def over(self, now: Seconds) -> bool:
        """Whether to ask now; a clock that is set back makes nobody wait longer."""
        rest = doubled(FIRST, self._failures - 1, most=MOST) if self._failures else 0.0
        return self._asked is None or not 0 <= now - self._asked < rest

    def told(self, now: Seconds, *, answered: bool) -> None:
        """Whether the question of this time got an answer."""
        self._asked = None if answered else now
        self._failures = 0 if answered else self._failures + 1
