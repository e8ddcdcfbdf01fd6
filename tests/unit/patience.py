"""How long tests wait for what is sure to come; only what never comes takes so long."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds: on a machine with far more to do than cores a minute is little


def eventually(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
