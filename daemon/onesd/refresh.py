"""Slow questions to Slurm on behalf of those who ask us: one at a time, about all that is wanted by
then, and nobody waits for long.

What Slurm last said is good enough for a listing. A command that hangs keeps one thread, that of
the refresher, and whoever asks goes on with what is known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from ones.daemon.pace import doubled
from ones.slurm_ext.errors import SlurmError

log = logging.getLogger(__name__)
LEAST_REST = 5.0  # seconds after a question that failed
MOST_REST = 300.0
SHARE = 10  # a question that failed or was slow rests for so many times what it took
SLOW = 5.0  # seconds
PAUSE = 0.5  # seconds at most between two questions that were answered
MOST_KEYS = 4096  # whose answers' times are remembered
MOST_AT_ONCE = 100  # that one question is about

K = TypeVar("K")


class Refresher(Generic[K]):
    """Asks one question at a time, about each thing at most once every `fresh` seconds.

    `ask` does the asking and keeps the answers; False, or SlurmError, says that there were none.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[Sequence[K]], object],
        *,
        fresh: float,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._ask = ask
        self._fresh = fresh
        self._patience = patience
        self._clock = clock
        self._changed = threading.Condition()
        self._busy = False
        self._begun = 0.0
        self._rests_until = float("-inf")
        self._failures = 0
        self._answered: OrderedDict[K, float] = OrderedDict()
        self._wanted: dict[K, None] = {}  # what the next question is about, the oldest first
        self._asked: tuple[K, ...] = ()  # what the question under way is about

    def refresh(self, key: K) -> float | None:
        """Seconds since this was last answered, asking again where that is due; None: never.

        Waits no longer than the question under way may take for anybody.
        """
        with self._changed:
            if self._failures and self._clock() < self._rests_until:
                return self._age(key)
            until = time.monotonic() + self._patience
            while not self._known(key):
                if key not in self._asked and len(self._wanted) < MOST_KEYS:
                    self._wanted[key] = None
                if self._wanted and not self._busy and self._clock() >= self._rests_until:
                    self._begin()
                if self._busy:
                    until = min(until, self._begun + self._patience)
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, PAUSE))
                if self._failures:
                    break
            return self._age(key)

    def _age(self, key: K) -> float | None:
        at = self._answered.get(key)
        return None if at is None else max(0.0, self._clock() - at)

    def _known(self, key: K) -> bool:
        at = self._answered.get(key)
        return at is not None and self._clock() - at < self._fresh

    def _begin(self) -> None:
        self._busy, self._begun = True, time.monotonic()
        self._asked = tuple(islice(self._wanted, MOST_AT_ONCE))
        for key in self._asked:
            del self._wanted[key]
        # A daemon's: a command that hangs does not hold up the end of onesd.
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        good = False
        try:
            good = self._ask(self._asked) is not False
        except SlurmError as fault:
            if not self._failures:
                log.warning("%s: %s; the last answer counts", self._name, fault)
        finally:
            with self._changed:
                now, took = self._clock(), time.monotonic() - self._begun
                for key in self._asked if good else ():
                    self._answered[key] = now
                    self._answered.move_to_end(key)
                    while len(self._answered) > MOST_KEYS:
                        self._answered.popitem(last=False)
                self._failures = 0 if good else self._failures + 1
                again = self._failures - 1
                rest = doubled(LEAST_REST, again, most=MOST_REST) if self._failures else 0.0
                if took > SLOW:
                    rest = max(rest, SHARE * took)
                # Where all goes well, Slurm still has as long a pause as its answer took.
                self._rests_until = now + min(MOST_REST, max(rest, min(took, PAUSE)))
                self._busy, self._asked = False, ()
                self._changed.notify_all()
