"""Links that several users ask for at once."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

from ones.daemon.onesd.doors.sessions import MOST_LINKS, Sessions


def test_links_are_offered_by_several_threads_at_once() -> None:
    sessions = Sessions(link=60.0, session=60.0)

    def offer(number: int) -> None:
        sessions.offer(number % 500, hashlib.sha256(str(number).encode()).hexdigest())

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(offer, range(4000)))
    opened = [sessions.begin(str(number)) for number in range(4000)]
    assert sum(one is not None for one in opened) == 500 * MOST_LINKS
