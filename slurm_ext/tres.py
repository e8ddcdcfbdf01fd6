"""Slurm's resource strings: GPUs as in `gres/gpu:v100:4`, `gpu:v100:2(IDX:0-1)`, `gres/gpu=2`.

And memory as in `mem=2000M`, licences as in `matlab:2`, and shards, the parts of GPUs that jobs
share: `gres/shard:v100:1` where they are asked for, `shard:1(1/2,0/2)` where they are held: of
which GPU how many of how many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from ones.slurm_ext.usage import size_in

NO_TYPE = ":(null)"  # stands in `gpu:(null):4(IDX:0-3)`, of GPUs without one that have cores
REMEMBERED = 128  # characters of a resource string that is kept in memory
_IN_PARENTHESES = re.compile(r"\([^()]*\)")  # without `(`, or the work would grow with its square
_GPU = re.compile(r"(?:gres[/:])?gpu(?::(?P<type>[^:=,]+))??(?:[:=](?P<count>[0-9]{1,9}))?")
_SHARD = re.compile(r"(?:gres[/:])?shard(?::(?P<type>[^:=,]+))??(?:[:=](?P<count>[0-9]{1,9}))?")
_PART = r"(?:-|[0-9]{1,9})/[0-9]{1,9}"  # of one GPU so many of so many; "-": it is taken whole
_MEMORY = re.compile(r"(?:^|,)mem=([^,]{1,32})")
_LICENSE = re.compile(r"(?P<name>[^:=|()\s]{1,128})(?:[:=](?P<count>[0-9]{1,9}))?")
_SHARDS_HELD = re.compile(rf"shard(?::[^:(,]{{1,64}}){{0,2}}\(({_PART}(?:,{_PART}){{0,255}})\)")


def gpus_by_type(text: str) -> dict[str, int]:
    """GPUs of each type; the type is '' where the string names none."""
    return _by_type(text, _GPU)


def shards_by_type(text: str) -> dict[str, int]:
    """Shards of each type; the type is '' where the string names none."""
    return _by_type(text, _SHARD)


def shards_in(text: str) -> int:
    """Shards of all types."""
    return sum(shards_by_type(text).values())


def shared_gpus(text: str) -> tuple[int, ...]:
    """The GPUs, by Slurm's index, of which the string holds shards.

    Not those that are taken whole, which 26.05 marks there, and 24.11 doesn't.
    """
    return tuple(
        index
        for match in _SHARDS_HELD.finditer(text.replace(NO_TYPE, ""))
        for index, part in enumerate(match[1].split(","))
        if part.split("/")[0].strip("-0")
    )


def _by_type(text: str, pattern: re.Pattern[str]) -> dict[str, int]:
    return dict(_short(text, pattern)) if len(text) <= REMEMBERED else _counted(text, pattern)


@lru_cache(maxsize=16384)
def _short(text: str, pattern: re.Pattern[str]) -> tuple[tuple[str, int], ...]:
    """Most jobs of a cluster ask in the same words, in every round."""
    return tuple(_counted(text, pattern).items())


def _counted(text: str, pattern: re.Pattern[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for match in _items(text, pattern):
        count = int(match["count"] or 1)
        if count:
            found[match["type"] or ""] = found.get(match["type"] or "", 0) + count
    return found


def gpus_in(text: str) -> int:
    """GPUs of all types. Not for allocation totals, which name typed GPUs twice."""
    return sum(gpus_by_type(text).values())


@lru_cache(maxsize=16384)
def memory_in(tres: str) -> int:
    """MiB in a list of TRES such as `cpu=4,mem=62.50G,node=2`; 0 where Slurm counts none there."""
    match = _MEMORY.search(tres)
    return round(size_in(match[1]) or 0) if match else 0


def licenses_in(text: str) -> dict[str, int] | None:
    """Licences by name in `matlab:2,ansys`; None where the job takes one or another of several."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        match = _LICENSE.fullmatch(part.strip())
        if match is None:
            return None
        found[match["name"]] = found.get(match["name"], 0) + int(match["count"] or 1)
    return found


def replace_gpus(text: str, gpu: str) -> str:
    """The same resources with the part of GPUs or shards replaced by `gpu`; empty: taken away."""
    others = [
        part
        for part in text.split(",")
        if part and _GPU.fullmatch(part) is None and _SHARD.fullmatch(part) is None
    ]
    return ",".join([*others, gpu] if gpu else others)


def _items(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    for part in _IN_PARENTHESES.sub("", text.replace(NO_TYPE, "")).split(","):
        match = pattern.fullmatch(part.strip())
        if match is not None:
            yield match
