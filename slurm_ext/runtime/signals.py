"""What signals ask of a worker, kept until the next step's end."""

from __future__ import annotations

import logging
import os
import signal
import threading
from enum import IntEnum
from pathlib import Path
from types import FrameType

log = logging.getLogger(__name__)
DEEPEST = 64  # processes between a worker and slurmstepd, at most


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

    def ignore_checkpoints(self) -> None:
        """Let nobody ask any more: at its end Python takes back a handler, and a signal that comes
        then would end the process as if it had failed."""
        if _in_main_thread():
            signal.signal(self.checkpoint_signal, signal.SIG_IGN)

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


def would_end(number: signal.Signals) -> str:
    """The name of a program above this process, within its job, that the signal would end; or ''.

    Slurm signals the batch script where no step runs, else what each task began with. A shell
    without a trap, or a torchrun, dies of it, and takes the training along.
    """
    pid, found = os.getppid(), ""
    for _ in range(DEEPEST):
        try:
            lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        except OSError:
            # Of others' processes, slurmstepd's too, some kernels tell nothing; 0 is no process.
            return found if pid > 1 else ""
        said = dict(line.partition(":")[::2] for line in lines)
        if said.get("Name", "").strip() == "slurmstepd":
            return found
        try:
            minded = int(said["SigCgt"], 16) | int(said["SigIgn"], 16)
            pid = int(said["PPid"])
        except (KeyError, ValueError):
            return ""
        if not minded >> (number - 1) & 1:
            found = said.get("Name", "").strip() or "its parent"
    return ""


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
