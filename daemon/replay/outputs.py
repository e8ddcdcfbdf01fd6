"""The files that a replay writes: looked at before it runs, put in place whole after it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES
from pathlib import Path

from ones.daemon.replay.faults import ReplayError, TraceError

STDOUT = 1


def check(option: str, target: Path, others: Mapping[str, Path]) -> None:
    """Raise ReplayError or TraceError where nothing can be written, or one of the others would be
    written over: what the replay reads and writes, by the words that name it."""
    for what, other in others.items():
        if _same(target, other):
            raise ReplayError(f"{option}: {target} is the file of {what}; name another")
    with _faults_of(target):
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        if not _special(target):
            _beside(target).touch()
            _beside(target).unlink()


def write(target: Path, text: str) -> None:
    """What is there already stays whole until all of the text is. Raises TraceError."""
    # A file's name that is no UTF-8 may stand in the text.
    content = text.encode(errors="replace")
    with _faults_of(target):
        if _special(target):
            with target.open("ab") as opened:
                opened.write(content)
            return
        beside = _beside(target)
        try:
            beside.write_bytes(content)
            if target.exists():
                beside.chmod(target.stat().st_mode & 0o777)
            beside.replace(target.resolve())
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise


def _special(target: Path) -> bool:
    """Whether nothing can stand in for it: a pipe, a terminal or another device, or the file that
    standard output goes into, where the answer already stands."""
    if not target.exists():
        return False
    with suppress(OSError):  # there may be no standard output
        if os.path.samestat(target.stat(), os.fstat(STDOUT)):
            return True
    return not target.is_file()


def _beside(target: Path) -> Path:
    return target.resolve().with_name(f".onesctl-replay-{os.getpid()}")


def _same(target: Path, other: Path) -> bool:
    """Of terminals and devices one may be read and written."""
    if target.exists() and other.exists():
        return target.is_file() and target.samefile(other)
    return target.resolve() == other.resolve()


@contextmanager
def _faults_of(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise TraceError(target, f"can't be written: {fault.strerror}") from None
