"""Parts of onesd on a database of the test's, with nothing behind them."""

from __future__ import annotations

from typing import Any

from ones.daemon.config import Config
from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics


def the_books(store: Store, cluster: Any = None) -> Books:
    """All books; a test that asks Slurm by them gives a cluster."""
    return Books.open(Config(), store, cluster, Metrics())
