"""Who may steer onesd: those whom Slurm knows as Operator or Administrator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ones.daemon.onesd.refresh import Refresher
from ones.slurm_ext.cluster import Cluster

LIFETIME = 60.0  # seconds for which an answer of sacctmgr is believed
PATIENCE = 2.0  # seconds for which anybody waits for sacctmgr


class Operators:
    """Slurm's operators, asked for once in a while; where Slurm doesn't answer, its last answer."""

    def __init__(self, cluster: Cluster, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._names: frozenset[str] = frozenset()
        self._refresher = Refresher(
            "sacctmgr", self._ask, fresh=LIFETIME, patience=PATIENCE, clock=clock
        )

    def include(self, user: str) -> bool:
        """Whether the user is one."""
        self._refresher.refresh("operators")
        return user in self._names

    def _ask(self, _: Sequence[str]) -> None:
        self._names = self._cluster.operators()
