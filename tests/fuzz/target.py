"""What is fed, and what may come of it."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import msgspec

LARGEST = 65536  # bytes of an input
LONGEST_FAULT = 4096  # characters of what a parser says of bad input


class Broken(Exception):
    """An answer, or the door that gave it, is not as it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A parser or a door.

    `feed` gives it one input and returns its answer; it raises Broken where the answer is wrong.
    """

    name: str
    feed: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    faults: tuple[type[Exception], ...] = ()  # what its docstring says that it raises
    words: tuple[bytes, ...] = ()  # of its language
    seconds: float = 1.0  # of CPU, for one input
    most: int = 4_000_000  # what its answer may weigh; see `weight`
    largest: int = LARGEST
    says_in_a_line: bool = True  # whether what it says of bad input is to be one short line
    guided: bool = True  # whether coverage of its code tells anything
    open: Callable[[], AbstractContextManager[object]] = nullcontext
    """What has to stand while it is fed: a daemon, say."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an input did that it must not."""

    kind: str  # the same for inputs that find the same
    words: str


class Hang(BaseException):
    """The input took far longer than it may; raised by a signal in the midst of the work."""


def try_on(target: Target, data: bytes) -> Finding | None:
    """Feed it once, and stop it where it does not end; None where all is well."""
    begun = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, 4 * target.seconds)
        try:
            return _tried(target, data, begun)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except Hang:
        return Finding("hang", f"no end after {time.process_time() - begun:.1f} s of CPU")


def _tried(target: Target, data: bytes, begun: float) -> Finding | None:
    try:
        answer = target.feed(data)
    except target.faults as fault:
        if target.says_in_a_line and (found := _ill_said(fault)) is not None:
            return found
    except Broken as fault:
        return Finding(f"broken: {str(fault)[:40]}", str(fault)[:500])
    except Exception as fault:
        return Finding(f"crash: {_place(fault)}", f"{type(fault).__name__}: {str(fault)[:300]}")
    else:
        if weight(answer, target.most) > target.most:
            return Finding("answer", f"its answer is larger than {target.most}")
    took = time.process_time() - begun
    if took > target.seconds:
        return Finding("slow", f"{took:.2f} s of CPU, and {target.seconds:g} s may be taken")
    return None


@contextmanager
def watching() -> Iterator[None]:
    """So that an input without an end is stopped; in the main thread alone."""
    before = signal.signal(signal.SIGPROF, _give_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise Hang


def _ill_said(fault: Exception) -> Finding | None:
    said = str(fault)
    if not said.strip():
        return Finding("fault: silent", f"{type(fault).__name__} without a word")
    if len(said) > LONGEST_FAULT:
        return Finding("fault: long", f"{type(fault).__name__} of {len(said)} characters")
    if len(said.splitlines()) > 1:
        return Finding("fault: lines", f"{type(fault).__name__} of several lines: {said[:200]!r}")
    return None


def _place(fault: BaseException) -> str:
    """The fault's type, and where in our own code it arose."""
    at, where = fault.__traceback__, ""
    while at is not None:
        code = at.tb_frame.f_code
        if "tests/fuzz" not in code.co_filename:
            where = f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_name}"
            if "site-packages" in code.co_filename or "lib/python" in code.co_filename:
                break
        at = at.tb_next
    return f"{type(fault).__name__} in {where or 'the harness'}"


def weight(value: object, most: int) -> int:
    """Roughly the bytes of an answer; counted no further than just over `most`."""
    total, waiting = 0, [value]
    while waiting and total <= most:
        one = waiting.pop()
        total += 8
        if isinstance(one, str | bytes):
            total += len(one)
        elif isinstance(one, int) and not isinstance(one, bool):
            total += one.bit_length() // 8
        elif isinstance(one, Mapping):
            total += 8 * len(one)
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            total += 8 * len(one)
            waiting += one
        elif dataclasses.is_dataclass(one) and not isinstance(one, type):
            waiting += [getattr(one, each.name) for each in dataclasses.fields(one)]
        elif isinstance(one, msgspec.Struct):
            waiting += [getattr(one, name) for name in one.__struct_fields__]
    return total


def as_text(data: bytes) -> str:
    """As we read what Slurm's programs print."""
    return data.decode(errors="replace")


def must(holds: Any, words: str) -> None:
    """Raises Broken where it does not hold."""
    if not holds:
        raise Broken(words)
