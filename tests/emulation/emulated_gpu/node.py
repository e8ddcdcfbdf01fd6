"""What the emulation knows of the cluster, from the files that Slurm itself reads."""

from __future__ import annotations

import re
from pathlib import Path

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

ETC = Path("/etc/slurm")


def expand(folded: str) -> list[str]:
    """The names in a list such as n[1-2,4]."""
    return list(NodeSet(folded, resolver=RESOLVER_NOGROUP))


def gpu_types(etc: Path = ETC) -> dict[str, str]:
    """Node -> GPU type, from gres.conf."""
    return {
        node: line["type"].lower()
        for line in _lines(etc / "gres.conf")
        if line.get("name") == "gpu" and "nodename" in line and "type" in line
        for node in expand(line["nodename"])
    }


def gpu_count(node: str, etc: Path = ETC) -> int:
    """How many GPUs gres.conf gives a node: as many as device files it names there."""
    return sum(
        len(expand(line["file"]))
        for line in _lines(etc / "gres.conf")
        if line.get("name") == "gpu" and "file" in line and node in expand(line.get("nodename", ""))
    )


def switches_of(etc: Path = ETC) -> dict[str, str]:
    """Node -> its leaf switch, from topology.conf."""
    return {
        node: line["switchname"]
        for line in _lines(etc / "topology.conf")
        if "nodes" in line and "switchname" in line
        for node in expand(line["nodes"])
    }


def _lines(file: Path) -> list[dict[str, str]]:
    """The settings of each line of one of Slurm's files, keys in small letters."""
    text = file.read_text() if file.exists() else ""
    return [
        {key.lower(): value for key, value in re.findall(r"(\w+)=(\S+)", line)}
        for line in text.splitlines()
        if not line.lstrip().startswith("#")
    ]
