"""Hostlists as Slurm writes and reads them, through ClusterShell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ClusterShell.NodeSet import (  # type: ignore[import-untyped]
    RESOLVER_NOGROUP,
    NodeSet,
    NodeSetException,
)

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

    Raises ValueError with one line for text that is no hostlist.
    """
    names: list[str] = []
    try:
        for part in _parts(text):
            names += NodeSet(part, resolver=RESOLVER_NOGROUP)
    except NodeSetException as fault:
        raise ValueError(f"'{text[:80]}' is not a hostlist: {fault}") from None
    return tuple(dict.fromkeys(names))


def _parts(text: str) -> list[str]:
    """Split at the commas outside brackets: ClusterShell would sort what it reads as one."""
    parts, depth, begun = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[begun:at])
            begun = at + 1
    parts.append(text[begun:])
    return [part for part in parts if part]


def in_topology_order(
    names: Iterable[str], switches: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Names sorted by the switches above them from the root down, then as hostlists count."""
    counted = {name: at for at, name in enumerate(expand(",".join(sorted(set(names)))))}
    natural = {name: at for at, name in enumerate(NodeSet.fromlist(counted))}
    return tuple(
        sorted(
            counted,
            key=lambda name: (tuple(reversed(switches.get(name, ()))), natural[name]),
        )
    )
