"""The last values of what is told again and again."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Latest(list[T]):
    """The last `most` values, in the order in which they were appended.

    A deque of that length would take 0.7 KB from its first value on, and each of thousands of
    families, and each of their configurations, has some of few values.
    """

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def append(self, value: T, /) -> None:
        super().append(value)
        if len(self) > self._most:
            del self[0]
