"""What operators have said: whether onesd acts, and who paused it."""

from __future__ import annotations

import logging
from typing import Any

from ones.daemon.config import Config
from ones.daemon.onesd.books.store import Store

log = logging.getLogger(__name__)


class Steering:
    """Mode, pause and admission; a pause outlives a restart of onesd."""

    def __init__(self, config: Config, store: Store) -> None:
        self.mode = config.mode
        self.admission = config.admission
        self._store = store

    @property
    def paused(self) -> dict[str, Any] | None:
        """Who paused and why, or None."""
        said = self._store.fact("paused")
        return said if isinstance(said, dict) else None

    def pause(self, by: str, reason: str) -> None:
        """Begin nothing any more; what is under way is finished."""
        self._store.set_fact("paused", {"by": by, "reason": reason or "no reason given"})
        log.warning("paused by %s: %s", by, reason)

    def resume(self, by: str) -> None:
        """Begin moves again."""
        self._store.set_fact("paused", None)
        log.warning("resumed by %s", by)

    def obstacle(self) -> str:
        """Why no move is begun, as a decision's verdict has it, or ''."""
        if self.mode == "observe":
            return "observe mode: nothing is done"
        return "paused: nothing is begun" if self.paused else ""

    def acts(self) -> bool:
        """Whether we begin moves."""
        return not self.obstacle()

    def holds(self) -> bool:
        """Whether Slurm may hold new jobs for us."""
        return self.acts() and self.admission == "hold"
