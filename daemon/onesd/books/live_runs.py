"""The table `live`: which runs have said that they can be resized while they train, and when."""

from __future__ import annotations

from ones.daemon.onesd.books.store import Store


class LiveRuns:
    """The last word of live jobs' launchers, kept over a restart of onesd."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, job: int, restarts: int, *, heard: float) -> None:
        """The run's launcher was heard at this time; 0: it can't be resized any more."""
        self._store.put("live", [{"job": job, "restarts": restarts, "heard": heard}])

    def heard(self, job: int, restarts: int) -> float:
        """When this run's launcher last said that it can be resized; 0: it didn't."""
        row = self._store.row(
            "SELECT heard FROM live WHERE job = ? AND restarts = ?", job, restarts
        )
        return float(row["heard"]) if row is not None else 0.0
