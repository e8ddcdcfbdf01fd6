"""What a web server logs of those who speak no HTTP to it, or hang up in the midst of a request.

aiohttp writes a traceback for each, and whoever reaches a port can send as many as he likes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError

from ones.daemon.pace import Pace

EVERY = 60.0  # seconds between two lines of it


class Strangers(logging.Filter):
    """Lets through what is our own fault; of theirs one line a minute, which counts them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._telling = Pace(rate=1 / EVERY, burst=1, tokens=1)
        self._untold = 0

    def filter(self, record: logging.LogRecord) -> bool:
        fault = record.exc_info[1] if record.exc_info else None
        if not isinstance(fault, HttpProcessingError | ConnectionError):
            return True
        if not self._telling.take(self._clock()):
            self._untold += 1
            return False
        others = f" (and {self._untold} others before)" if self._untold else ""
        what = "no HTTP" if isinstance(fault, HttpProcessingError) else "a request broken off"
        record.msg, record.args = f"{record.getMessage()[:200]}: {what}{others}", ()
        record.exc_info, record.exc_text = None, None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        self._untold = 0
        return True


def quiet(name: str) -> logging.Logger:
    """The logger of a server with such a filter."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, Strangers) for each in logger.filters):
        logger.addFilter(Strangers())
    return logger
