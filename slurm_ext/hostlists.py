"""Hostlists as Slurm writes and reads them: folded by ClusterShell, expanded here.

ClusterShell takes digits beside a bracket for a part of its numbers: in `n1[8-12]` it reads 95
names, Slurm n18, n19, n110, n111 and n112.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from math import prod
from string import digits

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # type: ignore[import-untyped]

from ones.slurm_ext.errors import in_a_line

MOST_NAMES = 65_536  # of one hostlist; as many nodes as Slurm can have
REMEMBERED = 256  # names of one that is kept in memory
MOST_BRACKETS = 16  # of one part of it
LONGEST_NAME = 100  # letters, without what stands in brackets; of hosts, Linux allows 64
_ITEM = r"[0-9]{1,18}(?:-[0-9]{1,18}(?:/[0-9]{1,18})?)?"
_PART = re.compile(rf"(?:[\w.:+-]|\[{_ITEM}(?:,{_ITEM})*\])+", re.ASCII)
_BRACKET = re.compile(r"\[([^\]]*)\]")
LAST_NUMBER = (-1,)  # fold one bracket only: Slurm does not read every pattern with several


def fold(names: Iterable[str]) -> str:
    """`n1 n2 n3 m7 n1-ib` -> `m7,n[1-3],n1-ib`; empty for no names."""
    nodes, alone = NodeSet(resolver=RESOLVER_NOGROUP), set()
    for name in names:
        if name[-1:] in digits:
            nodes.update(NodeSet(name, resolver=RESOLVER_NOGROUP))
        else:
            alone.add(name)  # Slurm reads nothing behind a bracket
    nodes.fold_axis = LAST_NUMBER
    return ",".join([*filter(None, [str(nodes)]), *sorted(alone)])


def expand(text: str) -> tuple[str, ...]:
    """The names of a hostlist in the order in which they are written.

    Raises ValueError with one line for text that is no hostlist, or stands for too many names.
    """
    known = _short(text)
    return _expanded(text) if known is None else known


@lru_cache(maxsize=16384)
def _short(text: str) -> tuple[str, ...] | None:
    """Most are read in every round, and never change; long ones would fill the memory."""
    return _expanded(text) if sum(map(_count, _sound_parts(text))) <= REMEMBERED else None


def _expanded(text: str) -> tuple[str, ...]:
    parts = _sound_parts(text)
    if sum(map(_count, parts)) > MOST_NAMES:
        shown = in_a_line(text, longest=80)
        raise ValueError(f"'{shown}' stands for more than {MOST_NAMES} names")
    return tuple(dict.fromkeys(name for part in parts for name in _names(part)))


def _names(part: str) -> Iterator[str]:
    words = _BRACKET.split(part)  # what stands between brackets, and every second time in one
    choices = [_numbers(word) if at % 2 else [word] for at, word in enumerate(words)]
    return map("".join, product(*choices))


def _numbers(bracket: str) -> list[str]:
    """`08-10,12` -> 08, 09, 10, 12: as wide as the first of each range is written."""
    found: list[str] = []
    for item in bracket.split(","):
        first, last, step = _range(item)
        found += (f"{number:0{len(first)}d}" for number in range(int(first), last + 1, step))
    return found


def _range(item: str) -> tuple[str, int, int]:
    """Of 08-12/2, the first as it is written, the last, and the step."""
    numbers, _, step = item.partition("/")
    first, _, last = numbers.partition("-")
    return first, int(last or first), int(step or 1)


def _sound_parts(text: str) -> list[str]:
    """Its parts, all of which can be read."""
    parts = _parts(text)
    strange = next((part for part in parts if not _is_part(part)), None)
    if strange is not None:
        shown, named = in_a_line(text, longest=80), in_a_line(strange, longest=40)
        raise ValueError(f"'{shown}' is not a hostlist: '{named}' can't be read")
    return parts


def _is_part(part: str) -> bool:
    if part.count("[") > MOST_BRACKETS or not _PART.fullmatch(part):
        return False
    if len(_BRACKET.sub("", part)) > LONGEST_NAME:
        return False
    ranges = [_range(item) for each in _BRACKET.findall(part) for item in each.split(",")]
    return all(int(first) <= last and step >= 1 for first, last, step in ranges)


def _count(part: str) -> int:
    """The names that a part of a hostlist stands for, without making them."""
    counts = (
        sum((last - int(first)) // step + 1 for first, last, step in map(_range, each.split(",")))
        for each in _BRACKET.findall(part)
    )
    return prod(counts)


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
