"""Python's garbage collector, and what onesd remembers: thousands of jobs, again with each reading.

It holds everybody up while it goes through all that there is: a quarter of a second with 5,000
jobs, and as so much is new after each reading of Slurm, it would do so every other second.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ones.policies.model import Seconds

EVERY: Seconds = 3600.0  # from one time that it goes through everything to the next


class Collecting:
    """What is left after a round or a tick is gone through once an hour, not each time.

    What nobody refers to any more is freed at once in any case; this is about cycles, of which
    onesd makes few.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Without it; then it forgets what there is, or goes through it, once an hour."""
        was = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            now = self._clock()
            if not 0 <= now - self._last < EVERY:
                self._last = now
                gc.unfreeze()
                gc.collect()
            gc.freeze()
            if was:
                gc.enable()
