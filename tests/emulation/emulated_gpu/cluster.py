"""What the emulation knows of the cluster, from the files that Slurm itself reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ETC = Path("/etc/slurm")
_BRACKETS = re.compile(r"(.*?)\[([0-9,-]+)\](.*)", re.DOTALL)
_COMMA = re.compile(r",(?![^[]*\])")  # one that stands outside of brackets


def expand(folded: str) -> list[str]:
    """The names in a folded list such as `n[1-3,7],m04` or `/dev/nvidia[0-3]`, in its order."""
    return [name for part in _COMMA.split(folded) if part for name in _expand_part(part)]


def _expand_part(part: str) -> Iterator[str]:
    match = _BRACKETS.fullmatch(part)
    if match is None:
        yield part
        return
    before, ranges, after = match.groups()
    for span in ranges.split(","):
        least, _, most = span.partition("-")
        for number in range(int(least), int(most or least) + 1):
            for rest in _expand_part(after):
                yield f"{before}{number:0{len(least)}d}{rest}"


def own_node() -> str:
    """This node's name, as Slurm calls it where it says so."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def devices_of(node: str, etc: Path = ETC) -> dict[int, str]:
    """Minor number -> GPU type, from gres.conf; lines without NodeName are every node's."""
    found: dict[int, str] = {}
    for line in _lines(etc / "gres.conf"):
        if line.get("name") != "gpu" or node not in expand(line.get("nodename", node)):
            continue
        files = expand(line.get("file", ""))
        for position in range(len(files) or int(line.get("count", 1))):
            tail = re.search(r"\d+$", files[position]) if files else None
            found[int(tail[0]) if tail else len(found)] = line.get("type", "").lower()
    return found


def leaf_switches(etc: Path = ETC) -> dict[str, str]:
    """Node -> its leaf switch, from topology.conf; empty where there is none."""
    return {
        node: line["switchname"]
        for line in _lines(etc / "topology.conf")
        if "switchname" in line and "nodes" in line
        for node in expand(line["nodes"])
    }


def _lines(file: Path) -> list[dict[str, str]]:
    """The KEY=VALUE pairs of each line, keys in lower case."""
    text = file.read_text() if file.exists() else ""
    return [
        {key.lower(): value for key, value in re.findall(r"(\w+)=(\S+)", line.partition("#")[0])}
        for line in text.splitlines()
    ]
