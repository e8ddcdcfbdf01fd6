"""Keeps what a solver prints of its own accord out of our output."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STDOUT = 1


@contextmanager
def without_output() -> Iterator[None]:
    """What C code writes to standard output meanwhile is lost.

    HiGHS, which scipy brings, now and then prints a line whatever it is told; amidst JSON that
    would spoil the answer.
    """
    try:
        kept = os.dup(STDOUT)
    except OSError:  # there is no standard output
        yield
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, STDOUT)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # before it could reach the real output
        os.dup2(kept, STDOUT)
        os.close(sink)
        os.close(kept)
