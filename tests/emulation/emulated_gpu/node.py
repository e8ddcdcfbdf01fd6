"""What the emulation knows of the cluster, from the files that Slurm itself reads."""

from __future__ import annotations

import re
from pathlib import Path

ETC = Path("/etc/slurm")


def _lines(name: str, etc: Path) -> list[dict[str, str]]:
    text = (etc / name).read_text() if (etc / name).exists() else ""
    return [
        {key.lower(): value for key, value in re.findall(r"(\w+)=(\S+)", line)}
        for line in text.splitlines()
        if not line.lstrip().startswith("#")
    ]


def _expand(folded: str) -> list[str]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415

    return list(NodeSet(folded, resolver=RESOLVER_NOGROUP))


def gpu_types(etc: Path = ETC) -> dict[str, str]:
    """Node -> GPU type, from gres.conf."""
    return {
        node: line["type"].lower()
        for line in _lines("gres.conf", etc)
        if line.get("name") == "gpu" and "nodename" in line and "type" in line
        for node in _expand(line["nodename"])
    }


def gpu_count(node: str, etc: Path = ETC) -> int:
    """How many GPUs gres.conf gives a node."""
    for line in _lines("gres.conf", etc):
        if line.get("name") == "gpu" and node in _expand(line.get("nodename", "")):
            listed = re.search(r"\[(\d+)-(\d+)\]", line.get("file", ""))
            return int(listed[2]) - int(listed[1]) + 1 if listed else 1
    return 0


def switches_of(etc: Path = ETC) -> dict[str, str]:
    """Node -> its leaf switch, from topology.conf."""
    return {
        node: line["switchname"]
        for line in _lines("topology.conf", etc)
        if "nodes" in line and "switchname" in line
        for node in _expand(line["nodes"])
    }
