"""Who is signed in at the page: links that can be used once, and sessions that end by themselves.

The secret of a link is drawn by `onesctl web`, which tells onesd only its digest, proved to be the
user's as any question is: whoever listens on the network learns nothing that he could use. A
session has two secrets, a cookie and a proof. The browser keeps the proof apart for each port,
which it does not do with cookies: another server on the same host is shown the cookie alone.
Only digests are kept, in memory: a restart of onesd ends all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MOST_LINKS, MOST_SESSIONS = 4, 16  # of one user; the oldest one goes
MOST = 8192  # of all users, of either
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Opened:
    """The two secrets of a session that has begun."""

    uid: int
    cookie: str
    proof: str


@dataclass(frozen=True, slots=True)
class _Session:
    uid: int
    until: float
    proof: bytes


class Sessions:
    """Links and sessions of all users; times in seconds. May be used by any thread."""

    def __init__(
        self, *, link: float, session: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.link = link
        self.session = session
        self.offered: Callable[[], None] = lambda: None
        """Called after each offer: somebody is about to come."""
        self._clock = clock
        self._lock = threading.Lock()
        self._links: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._open: OrderedDict[bytes, _Session] = OrderedDict()

    def offer(self, uid: int, digest: str, *, lasts: float | None = None) -> None:
        """Sign this user in who comes with the secret of the digest. Raises ValueError."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError("digest: the SHA-256 digest of a secret, in 64 hexadecimal digits")
        key = bytes.fromhex(digest)
        with self._lock:
            if key in self._links:
                raise ValueError("digest: it is another link's; draw a secret at random")
            self._links[key] = uid, self._clock() + (self.link if lasts is None else lasts)
            mine = [one for one, (whose, _) in self._links.items() if whose == uid]
            for one in mine[:-MOST_LINKS]:
                del self._links[one]
            while len(self._links) > MOST:
                self._links.popitem(last=False)
        self.offered()

    @property
    def awaited(self) -> bool:
        """Whether there is a link that can still be used."""
        now = self._clock()
        with self._lock:
            return any(now < until for _, until in self._links.values())

    def begin(self, secret: str) -> Opened | None:
        """A session for a link's secret, which is of no use any more; None: it is not valid."""
        with self._lock:
            uid, until = self._links.pop(digest(secret), (0, float("-inf")))
        if self._clock() >= until:
            return None
        opened = Opened(uid, secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        kept = _Session(uid, self._clock() + self.session, digest(opened.proof))
        with self._lock:
            self._open[digest(opened.cookie)] = kept
            mine = [one for one, session in self._open.items() if session.uid == uid]
            for one in mine[:-MOST_SESSIONS]:
                del self._open[one]
            while len(self._open) > MOST:
                self._open.popitem(last=False)
        return opened

    def whose(self, cookie: str, proof: str) -> int | None:
        """The user of a session; None: there is no such session, or it has ended."""
        key = digest(cookie)
        session = self._open.get(key)
        if session is None or not hmac.compare_digest(session.proof, digest(proof)):
            return None
        if self._clock() >= session.until:
            self._open.pop(key, None)
            return None
        return session.uid

    def end(self, cookie: str) -> None:
        """Sign out."""
        self._open.pop(digest(cookie), None)


def digest(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()
