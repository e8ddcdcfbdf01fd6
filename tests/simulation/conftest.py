"""What the stories of the simulation share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: an onesd that dies again and again has much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
