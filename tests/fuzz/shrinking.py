"""The smallest input that finds the same, as far as a while's trying gets."""

from __future__ import annotations

import time
from collections.abc import Callable


def shrunk(data: bytes, same: Callable[[bytes], bool], *, seconds: float = 20.0) -> bytes:
    """Cut away pieces, ever smaller ones, for as long as the rest still finds the same."""
    until = time.monotonic() + seconds
    size = max(1, len(data) // 2)
    while size and time.monotonic() < until:
        at = smaller = 0
        while at < len(data) and time.monotonic() < until:
            rest = data[:at] + data[at + size :]
            if same(rest):
                data, smaller = rest, 1
            else:
                at += size
        if not smaller or size > len(data):
            size = min(size // 2, len(data))
    return data
