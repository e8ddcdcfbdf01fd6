"""The files that browsers are given, as they lie in the package."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

_FOLDER = resources.files("ones.daemon.web") / "static"


def names() -> Iterator[str]:
    """Of all of them."""
    return (file.name for file in _FOLDER.iterdir() if file.is_file())


def read(name: str) -> bytes:
    """One of `names()`."""
    return (_FOLDER / name).read_bytes()
