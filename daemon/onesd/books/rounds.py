"""The tables `rounds` and `decisions`: what each round came to."""

from __future__ import annotations

from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.outcome import Round

HOUR = 3600.0


class RoundsBook:
    """Every round, and what it decided about each job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._forgot = 0.0

    def keep(
        self, done: Round, *, policy: str, mode: str, keep_seconds: float, keep_bytes: float
    ) -> float | None:
        """Write a round with its decisions; once an hour, forget what is too old, or too much.

        Returns the time before which nothing is left then.
        """
        with self._store.transaction():
            number = self._store.write(
                "INSERT INTO rounds(at, seconds, policy, mode, outcome) VALUES(?, ?, ?, ?, ?)",
                done.at,
                done.seconds,
                policy,
                mode,
                done.outcome,
            )
            for one in done.decisions:
                self._store.write(
                    "INSERT INTO decisions VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
                    number,
                    int(one.job),
                    one.kind,
                    ",".join(f"{node}:{gpus}" for node, gpus in one.target.gpus_on)
                    if one.target
                    else None,
                    one.batch,
                    one.gpus,
                    one.reason,
                    one.verdict,
                )
        if 0 <= done.at - self._forgot <= HOUR:  # or the clock was set back since
            return None
        self._forgot = done.at
        before = done.at - keep_seconds
        self._store.forget(before)
        return max(before, self._store.keep_within(int(keep_bytes), now=done.at))
