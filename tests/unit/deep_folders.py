"""Folders with more levels than Python has stack frames, which pytest can't remove by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def deepened(folder: Path, levels: int = 1500) -> Iterator[None]:
    """So many levels below the folder, while the context lasts."""
    above = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
