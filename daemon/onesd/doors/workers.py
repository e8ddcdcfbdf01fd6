"""Threads for what onesd's doors ask, apart from those of the rounds, and bounds on what waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from aiohttp import web

from ones.slurm_ext.errors import OnesError

T = TypeVar("T")
BODY_PATIENCE = 10.0  # seconds in which a body must be there


class Busy(OnesError):
    """There is too much to do already; asking again later helps."""


class Workers:
    """A few threads, and a bound on the work that waits for them."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._name = name
        self._most = threads + waiting
        self._at_work = 0
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """What the work returns. Raises Busy at once where too much waits."""
        if self._at_work >= self._most:
            raise Busy(f"onesd has too many {self._name} to answer; try again in a while")
        self._at_work += 1
        future = self._threads.submit(work)
        # Work whose asker has gone still occupies its thread until it ends.
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _told(loop, self._done))
        return await asyncio.wrap_future(future)

    def _done(self) -> None:
        self._at_work -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _told(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(what)


class Bodies:
    """The bodies of all requests under way, with a bound on their bytes together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0

    @asynccontextmanager
    async def of(self, request: web.Request, most: int) -> AsyncIterator[bytes]:
        """The request's body, of `most` bytes at most; it counts until the block is left."""
        declared = request.content_length
        if declared is not None and declared > most:
            raise web.HTTPRequestEntityTooLarge(most, declared)
        room = most if declared is None else declared
        if self._held + room > self._most:
            raise Busy("onesd is taking too many bodies at once; try again in a while")
        self._held += room
        try:
            yield await _whole(request, most)
        finally:
            self._held -= room


async def _whole(request: web.Request, most: int) -> bytes:
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_PATIENCE):
            while piece := await request.content.readany():
                found += piece
                if len(found) > most:
                    raise web.HTTPRequestEntityTooLarge(most, len(found))
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            reason=f"the body did not come within {BODY_PATIENCE:g} s"
        ) from None
    return bytes(found)
