"""How fast and how well a worker trains, between two reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Means since the last report; None where nothing was measured."""

    loss: float | None
    accuracy: float | None
    step_seconds: float | None
    sync_seconds: float | None  # of a step, in which it only waited for the other workers
    resumed_seconds: float | None  # from the program's start to the end of its first step


class Meter:
    """Counts steps and their time. What lies between epochs, and saving, is not a step's time."""

    def __init__(
        self,
        *,
        started: float,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._started = started
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._resumed: float | None = None
        self._mark: float | None = None  # when the step under way began
        self._last_read = clock()
        self._steps = 0
        self._step_time = 0.0
        self._waits = 0
        self._wait_time = 0.0
        self._loss: Any = None
        self._losses = 0
        self._accuracy: Any = None

    def resume(self) -> None:
        """Begin to time steps, here and not where the last step ended."""
        self._mark = self._clock()

    def step(self, *, loss: Any = None, accuracy: Any = None) -> None:
        """Take the end of a step. Both are kept as they are: reading them may wait for a GPU."""
        now = self._clock()
        if self._resumed is None:
            # The first step warms everything up, and says nothing about the others.
            self._resumed = max(0.0, self._wall() - self._started)
        elif self._mark is not None:
            self._step_time += now - self._mark
            self._steps += 1
        self._mark = now
        if loss is not None:
            detached = _summable(loss)
            self._loss = detached if self._loss is None else self._loss + detached
            self._losses += 1
        if accuracy is not None:
            self._accuracy = _detached(accuracy)

    def waited(self, seconds: float) -> None:
        """Take how long one of the steps has waited for the gradients of other workers."""
        self._waits += 1
        self._wait_time += seconds

    @property
    def due(self) -> bool:
        """Whether it is time to report again."""
        return self._clock() - self._last_read >= self._seconds

    def read(self) -> Measured:
        """What was measured since the last reading."""
        self._last_read = self._clock()
        timed = self._steps and self._step_time > 0
        measured = Measured(
            loss=float(self._loss) / self._losses if self._loss is not None else None,
            accuracy=float(self._accuracy) if self._accuracy is not None else None,
            step_seconds=self._step_time / self._steps if timed else None,
            sync_seconds=self._wait_time / self._waits if timed and self._waits else None,
            resumed_seconds=self._resumed,
        )
        self._reset()
        return measured

    def _reset(self) -> None:
        self._steps = 0
        self._step_time = 0.0
        self._waits = 0
        self._wait_time = 0.0
        self._loss = None
        self._losses = 0
        self._accuracy = None


def _detached(number: Any) -> Any:
    """The number without the graph that it was computed by, which would hold its memory."""
    return number.detach() if hasattr(number, "detach") else number


def _summable(number: Any) -> Any:
    """The same in a type that many can be added up in: those of 16 bits can't, nor hold the sum."""
    detached = _detached(number)
    size = getattr(getattr(detached, "dtype", None), "itemsize", 8)
    return detached.float() if size < 4 and hasattr(detached, "float") else detached
