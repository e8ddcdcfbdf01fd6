"""What signals ask of a worker, kept until the next step's end."""

from __future__ import annotations

import logging
import signal
import threading
from enum import IntEnum
from types import FrameType

log = logging.getLogger(__name__)


class Request(IntEnum):
    """What is asked for; where workers were asked differently, the greatest holds for all."""

    NOTHING = 0
    CHECKPOINT = 1
    STOP = 2


class Requests:
    """Turns signals into requests. The handlers only set a flag: a step is never cut in two."""

    def __init__(self, checkpoint_signal: signal.Signals) -> None:
        self.checkpoint_signal = checkpoint_signal
        self.pending = Request.NOTHING

    def listen_for_checkpoints(self) -> None:
        self._listen(self.checkpoint_signal)

    def listen_for_stop(self) -> None:
        self._listen(signal.SIGTERM)

    def ignore_stop(self) -> None:
        """Let SIGTERM end the process at once again: there is nothing left to save."""
        if _in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def clear(self, answered: Request) -> None:
        """Forget what has been answered, but not a stop that came meanwhile."""
        if self.pending <= answered:
            self.pending = Request.NOTHING

    def _listen(self, number: signal.Signals) -> None:
        if _in_main_thread():
            signal.signal(number, self._take)
        else:
            log.warning("ones: not called in the main thread, so %s is not heard", number.name)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        asked = Request.CHECKPOINT if number == self.checkpoint_signal else Request.STOP
        self.pending = max(self.pending, asked)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
