"""Hostlists as Slurm writes and reads them, through ClusterShell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from ClusterShell.NodeSet import (  # type: ignore[import-untyped]
    RESOLVER_NOGROUP,
    NodeSet,
    NodeSetException,
)

from ones.slurm_ext.errors import in_a_line

MOST_NAMES = 65_536  # of one hostlist; as many nodes as Slurm can have
REMEMBERED = 256  # names of one that is kept in memory
MOST_BRACKETS = 16  # of one part of it
_ITEM = r"[0-9]{1,9}(?:-[0-9]{1,9}(?:/[0-9]{1,9})?)?"
_PART = re.compile(rf"(?:[\w.:+-]|\[{_ITEM}(?:,{_ITEM})*\])+", re.ASCII)
_BRACKET = re.compile(r"\[([^\]]*)\]")
LAST_NUMBER = (-1,)  # fold one bracket only: Slurm does not read every pattern with several


def fold(names: Iterable[str]) -> str:
    """`n1 n2 n3 m7` -> `m7,n[1-3]`; empty for no names."""
    nodes = NodeSet(resolver=RESOLVER_NOGROUP)
    for name in names:
        nodes.update(NodeSet(name, resolver=RESOLVER_NOGROUP))
    nodes.fold_axis = LAST_NUMBER
    return str(nodes)


def expand(text: str) -> tuple[str, ...]:
    """The names of a hostlist in the order in which they are written.

    Raises ValueError with one line for text that is no hostlist, or stands for too many names.
    """
    try:
        known = _short(text)
        return _expanded(text) if known is None else known
    except (NodeSetException, AssertionError) as fault:  # of a bracket beside other digits, say
        raise _no_hostlist(text, str(fault)) from None


@lru_cache(maxsize=16384)
def _short(text: str) -> tuple[str, ...] | None:
    """Most are read in every round, and never change; long ones would fill the memory."""
    return _expanded(text) if sum(map(_count, _sound_parts(text))) <= REMEMBERED else None


def _expanded(text: str) -> tuple[str, ...]:
    parts = _sound_parts(text)
    if sum(map(_count, parts)) > MOST_NAMES:
        shown = in_a_line(text, longest=80)
        raise ValueError(f"'{shown}' stands for more than {MOST_NAMES} names")
    names: list[str] = []
    for part in parts:
        names += NodeSet(part, resolver=RESOLVER_NOGROUP)
    return tuple(dict.fromkeys(names))


def _sound_parts(text: str) -> list[str]:
    """Its parts, all of which can be read."""
    parts = _parts(text)
    strange = next((part for part in parts if not _is_part(part)), None)
    if strange is not None:
        raise _no_hostlist(text, f"'{in_a_line(strange, longest=40)}' can't be read")
    return parts


def _no_hostlist(text: str, why: str) -> ValueError:
    shown = in_a_line(text, longest=80)
    return ValueError(f"'{shown}' is not a hostlist: {in_a_line(why, longest=200)}")


def _is_part(part: str) -> bool:
    return part.count("[") <= MOST_BRACKETS and _PART.fullmatch(part) is not None


def _count(part: str) -> int:
    """The names that a part of a hostlist stands for, without making them."""
    product = 1
    for bracket in _BRACKET.findall(part):
        count = 0
        for item in bracket.split(","):
            numbers, _, step = item.partition("/")
            first, _, last = numbers.partition("-")
            count += max(0, int(last or first) - int(first)) // max(1, int(step or 1)) + 1
        product *= count
    return product


def _parts(text: str) -> list[str]:
    """Split at the commas outside brackets: ClusterShell would sort what it reads as one."""
    parts, depth, begun = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[begun:at])
            begun = at + 1
    parts.append(text[begun:])
    return [stripped for part in parts if (stripped := part.strip())]
