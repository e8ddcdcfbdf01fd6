"""Logging of our daemons: standard error, one line each, with the journal's priority prefixes."""

from __future__ import annotations

import faulthandler
import logging
import sys

_PRIORITIES = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


class _Journal(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).replace("\n", "\n  ")
        return f"<{_PRIORITIES.get(record.levelno, 5)}>{text}"


def setup_logging() -> None:
    """For programs' entry points only; libraries just use their loggers."""
    faulthandler.enable()  # a fault in a library's C code names the Python lines it came from
    handler = logging.StreamHandler()
    stamp = "" if not sys.stderr.isatty() else "%(asctime)s "
    handler.setFormatter(_Journal(f"{stamp}%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
