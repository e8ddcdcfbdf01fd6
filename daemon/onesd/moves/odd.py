"""Moves whose next step can't be taken, because something about them makes no sense."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ones.daemon.onesd.metrics import Metrics

log = logging.getLogger(__name__)
SENSELESS = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError)
GIVEN_UP = 120.0  # seconds after which such a move is ended


class OddMoves:
    """Names and counts them, and says when one has failed for so long that it is given up."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._since: dict[int, float] = {}

    def failed(self, move: int, job: int, fault: Exception) -> bool:
        """The move's step failed with this fault; whether it is to be ended."""
        log.exception("job %d: move %d makes no sense; the others go on", job, move, exc_info=fault)
        self._metrics.odd_moves.inc()
        now = self._clock()
        since = self._since.setdefault(move, now)
        if since <= now < since + GIVEN_UP:
            return False
        del self._since[move]
        return True

    def went_on(self, move: int) -> None:
        """The move's step was taken."""
        self._since.pop(move, None)
