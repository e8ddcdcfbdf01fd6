"""The event log of the page: moves as the journal has them, and what was refused, latest last."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.outcome import Round

MOST = 2000  # that are kept; a page is shown fewer
Json = dict[str, Any]


class Events:
    """Brought up to date after each round; a refusal that comes again only counts up."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, Json] = OrderedDict()
        self._last = 0  # the newest move that was read
        self._under_way: set[int] = set()

    def take(self, books: Books, last: Round) -> None:
        """Read what has begun and ended since."""
        found = books.journal.recent(self._last, self._under_way, most=MOST)
        users = books.lives.users([move["job"] for move in found])
        for move in found:
            self._keep(f"m{move['id']}", _moved(move, users.get(move["job"], "")))
        self._last = max((move["id"] for move in found), default=self._last)
        self._under_way = {move["id"] for move in found if not move["outcome"]}
        names = {job.id: job.user for job in last.jobs}
        for one in last.decisions:
            if not one.verdict.startswith("refused"):
                continue
            key = f"r{one.job}:{one.kind}:{one.gpus_after}"
            times = self._rows.pop(key, {"times": 0})["times"] + 1
            self._keep(
                key,
                {
                    "job": int(one.job),
                    "user": names.get(one.job, ""),
                    "at": last.at,
                    "ended": last.at,
                    "kind": one.kind,
                    "gpus": one.gpus,
                    "gpus_after": one.gpus_after,
                    "reason": one.reason,
                    "outcome": one.verdict,
                    "times": times,
                },
            )
        while len(self._rows) > MOST:
            self._rows.popitem(last=False)

    def of(self, only: str | None, *, most: int) -> dict[str, Json]:
        """The latest, of one user or of all."""
        found: dict[str, Json] = {}
        for key in reversed(self._rows):
            if only is None or self._rows[key]["user"] == only:
                found[key] = self._rows[key]
                if len(found) == most:
                    break
        return found

    def _keep(self, key: str, row: Json) -> None:
        self._rows[key] = row


def _moved(move: Json, user: str) -> Json:
    target = move.get("target") or {}
    return {
        "job": move["job"],
        "user": user,
        "at": move["at"],
        "ended": move["ended"],
        "kind": move["kind"],
        "gpus": move.get("ran") or None,
        "gpus_after": sum(target.values()),
        "reason": move.get("reason", ""),
        "outcome": move["outcome"] or f"under way: {move.get('step', '')}",
        "times": 1,
    }
