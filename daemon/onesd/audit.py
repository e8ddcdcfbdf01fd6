"""The audit log: who was refused at onesd's doors, what operators did, and what was done to jobs.

One line each in the logger `ones.audit`, as NAME=VALUE behind the word `audit`; values with spaces
are quoted as in JSON:

    audit event=refused uid=1001 from=10.1.0.7 what="POST /v1/pause" why="bob is not an operator"

`uid` is - where nothing proves one; `from` is the address, or unix for the socket on onesd's host.
`more=N` on a refusal: so many others of the same address were not written since the last. What was
done to a job has its number and user instead, and of a move `by`, the policy that decided on it.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping

from ones.daemon.pace import Paces

log = logging.getLogger("ones.audit")
MOST_ADDRESSES = 1024  # that unwritten refusals are counted of
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)


class Audit:
    """Writes the lines; refusals of one address at a bounded pace, so that none fills a disk."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paces = Paces(rate=0.1, burst=10)
        self._unwritten: Counter[str] = Counter()

    def refused(self, *, uid: int | None, source: str, what: str, why: str) -> None:
        if not self._paces.take(source, self._clock()):
            if source in self._unwritten or len(self._unwritten) < MOST_ADDRESSES:
                self._unwritten[source] += 1
            return
        more = self._unwritten.pop(source, 0)
        fields = {"uid": uid, "from": source, "what": what, "why": why}
        log.warning("%s", line("refused", fields | ({"more": more} if more else {})))

    def did(self, event: str, *, uid: int, source: str, **fields: str) -> None:
        """Somebody has paused, resumed, set the policy, or signed in."""
        log.warning("%s", line(event, {"uid": uid, "from": source, **fields}))


def acted(event: str, *, job: int, **fields: object) -> None:
    """Something was done to a job, or is about to be."""
    log.info("%s", line(event, {"job": job, **fields}))


def line(event: str, fields: Mapping[str, object]) -> str:
    return " ".join(["audit", f"event={event}", *(f"{k}={_value(v)}" for k, v in fields.items())])


def _value(value: object) -> str:
    text = "-" if value is None else str(value)[:500]
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
