"""Nodes that were down a while ago: what was left there of lost jobs may only now be ending."""

from __future__ import annotations

from collections.abc import Iterable

from ones.daemon.onesd.books.store import Store
from ones.policies.words import lasting
from ones.slurm_ext.snapshot import NodeRecord

AFTERMATH = 120.0  # seconds, for which Slurm, too, lets the job of a lost node wait


class Outages:
    """Which nodes are down, and since when the others are back.

    A node that comes back ends what it still has of a lost job, and says so. Slurm (24.11) takes
    that for word of a new run of the same job on this node, if there is one, takes the node away
    from it, and slurmctld dies by a segmentation fault at the next question of its srun.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._back: dict[str, float | None] = store.fact("outages") or {}  # None: it is down

    def take(self, nodes: Iterable[NodeRecord], *, now: float) -> None:
        """Learn from Slurm's records of all nodes."""
        down = {node.name for node in nodes if "DOWN" in node.states}
        since = {
            name: now if at is None else min(at, now)
            for name, at in self._back.items()
            if name not in down and (at is None or now < at + AFTERMATH)
        }
        found = dict.fromkeys(sorted(down)) | since
        if found != self._back:
            self._back = found
            self._store.set_fact("outages", found)

    def note(self, node: str, *, now: float) -> str:
        """Why nothing new is placed on a node that is back, or ''."""
        at = self._back.get(node)
        if at is None or now >= at + AFTERMATH:
            return ""
        return f"down until {lasting(now - at)} ago; used again {lasting(AFTERMATH)} after that"
