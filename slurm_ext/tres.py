"""GPUs in Slurm's resource strings: `gres/gpu:v100:4`, `gpu:v100:2(IDX:0-1)`, `gres/gpu=2`."""

from __future__ import annotations

import re
from collections.abc import Iterator

_IN_PARENTHESES = re.compile(r"\([^)]*\)")
_GPU = re.compile(r"(?:gres[/:])?gpu(?::(?P<type>[^:=,]+))??(?:[:=](?P<count>[0-9]{1,9}))?")


def gpus_by_type(text: str) -> dict[str, int]:
    """GPUs of each type; the type is '' where the string names none."""
    found: dict[str, int] = {}
    for match in _gpu_items(text):
        count = int(match["count"] or 1)
        if count:
            found[match["type"] or ""] = found.get(match["type"] or "", 0) + count
    return found


def gpus_in(text: str) -> int:
    """GPUs of all types. Not for allocation totals, which name typed GPUs twice."""
    return sum(gpus_by_type(text).values())


def replace_gpus(text: str, gpu: str) -> str:
    """The same resources with the GPUs' part replaced by `gpu`, such as gres/gpu:v100:2."""
    others = [part for part in text.split(",") if part and _GPU.fullmatch(part) is None]
    return ",".join([*others, gpu])


def _gpu_items(text: str) -> Iterator[re.Match[str]]:
    for part in _IN_PARENTHESES.sub("", text).split(","):
        match = _GPU.fullmatch(part.strip())
        if match is not None:
            yield match
