"""Threads for what onesd's doors ask, apart from those of the rounds, and bounds on what waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
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
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._threads.submit(self._do, work, loop, answer)
        # Work whose asker has gone still occupies its thread until it ends.
        self._at_work += 1
        return await answer

    def _do(
        self, work: Callable[[], T], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T]
    ) -> None:
        """In a thread: what comes of the work is told in the loop, which is woken once for it."""
        try:
            told = partial(answer.set_result, work())
        except BaseException as fault:  # the asker's to deal with
            told = partial(answer.set_exception, fault)
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(self._done, answer, told)

    def _done(self, answer: asyncio.Future[T], told: Callable[[], None]) -> None:
        self._at_work -= 1
        if not answer.done():
            told()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


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


def is_there(request: web.Request) -> bool:
    """Whether the request's body has come with it, and takes memory already."""
    return request.content.is_eof()


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
