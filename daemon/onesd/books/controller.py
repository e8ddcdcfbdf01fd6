"""Which slurmctld answers, and whether it is another one than before: see slurm_ext.lapse."""

from __future__ import annotations

import logging

from ones.daemon.onesd.books.store import Store
from ones.slurm_ext.lapse import Lapse
from ones.slurm_ext.snapshot import Snapshot

log = logging.getLogger(__name__)
FACT = "slurmctld"
WRITTEN_EVERY = 10.0  # seconds; what was done is looked at for longer than that


class Controller:
    """Remembers by when the slurmctld that answers was started, across our own restarts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        known = store.fact(FACT) or {}
        self._started: str = known.get("started", "")
        self._answered: float = known.get("answered", 0.0)
        self._lapse = Lapse(*known["lapse"]) if known.get("lapse") else None

    def take(self, snapshot: Snapshot, *, now: float) -> None:
        """Learn from a snapshot who has answered."""
        if not snapshot.booted:
            return
        if self._started not in ("", snapshot.booted):
            log.warning("slurmctld was started anew: what was done last is looked at again")
            self._lapse = Lapse(self._answered, now)
        elif self._started and 0 <= now - self._answered < WRITTEN_EVERY:
            return
        self._started, self._answered = snapshot.booted, now
        lapse = None if self._lapse is None else (self._lapse.answered, self._lapse.noticed)
        fact = {"started": self._started, "answered": now, "lapse": lapse}
        self._store.set_fact(FACT, fact)

    def lapse(self, *, now: float) -> Lapse | None:
        """The change from which Slurm may not have settled yet."""
        return self._lapse if self._lapse is not None and self._lapse.settles(now) else None
