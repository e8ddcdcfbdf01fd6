"""Sends what changes to all open pages: rendered once for each kind of viewer, not for each page.

A page first asks for the state, then listens: each message says from which state it leads to which.
A round is told in two: what is the same for all is drawn first, and is there at once on the largest
cluster; then the jobs. Whoever can't keep up is cut off, and asks for the state again.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ones.daemon.onesd.doors import views
from ones.daemon.onesd.doors.workers import Busy, Workers
from ones.daemon.onesd.page.parts import NOTHING, Part, change
from ones.daemon.onesd.page.rendering import Outline, Picture, Rendering
from ones.daemon.onesd.service import Service

log = logging.getLogger(__name__)
MOST_BEHIND = 16  # messages that wait for one reader; then it is cut off
MOST_OF_ONE_USER = 32  # pages that listen; of all: below
MOST_PAGES = 900
Viewer = str | None  # a user, who sees his own jobs, or None: operators, who see all


@dataclass(slots=True, eq=False)
class Reader:
    """One open page."""

    uid: int
    viewer: Viewer
    hang_up: Callable[[], None]
    waiting: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(MOST_BEHIND))
    """Messages to come; None: there will be no more."""

    def send(self, message: bytes) -> bool:
        """Whether there was room for it."""
        try:
            self.waiting.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True

    def cut_off(self) -> None:
        """Whatever it is doing."""
        self.hang_up()
        while not self.waiting.empty():
            self.waiting.get_nowait()
        self.waiting.put_nowait(None)


@dataclass(frozen=True, slots=True)
class _State:
    """All that one kind of viewer sees, at one time."""

    serial: int
    now: float
    common: Part
    own: Part


class Broadcast:
    """One rendering a round, and the pages that wait for it.

    `steers` says whether a user is an operator, and may wait for Slurm; `awaited`, whether a page
    is about to be opened, for which the round is then rendered beforehand. `changed` and `expect`
    may be called from any thread; the rest belongs to the loop that `start` ran in.
    """

    def __init__(
        self, service: Service, steers: Callable[[int], bool], *, awaited: Callable[[], bool]
    ) -> None:
        self._service = service
        self._steers = steers
        self._awaited = awaited
        self._rendering = Rendering(service)
        self._worker = Workers("pages", threads=1, waiting=MOST_PAGES)
        self._readers: set[Reader] = set()
        self._serial = 0
        self._picture: Picture | None = None
        self._states: dict[Viewer, _State] = {}
        self._whole: dict[Viewer, bytes] = {}  # packed, of the present states
        self._news = asyncio.Event()
        self._one = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._cut_off(lambda _: True)
        self._worker.close()

    def expect(self) -> None:
        """A page is about to be opened. While others are open the last round is drawn already."""
        if self._picture is None:
            self.changed()

    def changed(self) -> None:
        """A round has ended, or somebody has steered."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    def enter(self, uid: int, viewer: Viewer, hang_up: Callable[[], None]) -> Reader:
        """A page that is to hear of every change, until it leaves, or is hung up. Raises Busy."""
        mine = sum(reader.uid == uid for reader in self._readers)
        if mine >= MOST_OF_ONE_USER or len(self._readers) >= MOST_PAGES:
            raise Busy("too many pages are open; close some, then load this one again")
        reader = Reader(uid, viewer, hang_up)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def _cut_off(self, whose: Callable[[Reader], bool]) -> None:
        for reader in [reader for reader in self._readers if whose(reader)]:
            self._readers.discard(reader)
            reader.cut_off()

    async def state(self, viewer: Viewer) -> bytes:
        """All that the viewer sees, as packed JSON."""
        async with self._one:
            if self._picture is None:
                await self._render()
            if viewer not in self._whole:
                self._whole[viewer] = await self._worker.run(lambda: self._pack(viewer))
            return self._whole[viewer]

    async def _run(self) -> None:
        while True:
            heard = await self._hear()
            try:
                async with self._one:
                    if not heard:
                        await self._tell_again()
                        continue
                    looked_at = self._readers or self._awaited()
                    await (self._broadcast() if looked_at else self._remember())
            except Exception:  # the outermost loop of the page: a bug must not end its updates
                log.exception("the page could not be brought up to date")

    async def _hear(self) -> bool:
        """Whether there is news; False: for a whole round there was none."""
        try:
            async with asyncio.timeout(self._service.config.round):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    async def _tell_again(self) -> None:
        """Where rounds have stopped no news comes, and what was told says nothing of it."""
        last = self._service.published
        overdue = self._service.clock() - last.at > views.STALE * self._service.config.round
        if self._picture is None or not overdue:
            return
        before = dict(self._states)
        self._serial += 1
        self._states.clear()
        self._whole.clear()
        await self._tell(before)

    async def _remember(self) -> None:
        self._picture = None
        self._whole.clear()
        await self._worker.run(self._rendering.take)

    async def _render(self) -> None:
        outline = await self._worker.run(self._rendering.outline)
        await self._render_jobs(outline)

    async def _render_jobs(self, outline: Outline) -> None:
        self._picture = await self._worker.run(partial(self._rendering.picture, outline))
        self._serial += 1
        self._states.clear()
        self._whole.clear()

    async def _broadcast(self) -> None:
        steering = {reader.uid for reader in self._readers if reader.viewer is None}
        # Of those who are here now: who comes while they are looked up has just been.
        gone = steering - await self._worker.run(lambda: set(filter(self._steers, steering)))
        self._cut_off(lambda reader: reader.viewer is None and reader.uid in gone)
        outline = await self._worker.run(self._rendering.outline)
        before = dict(self._states)
        self._serial += 1
        self._whole.clear()
        now = self._service.clock()
        for viewer, old in before.items():
            self._states[viewer] = _State(self._serial, now, outline.common, old.own)
        await self._tell(before)
        before = dict(self._states)
        await self._render_jobs(outline)
        await self._tell(before)

    async def _tell(self, before: Mapping[Viewer, _State]) -> None:
        """All who listen: what leads on from these states."""
        common: dict[int, bytes] = {}  # by the serial that it leads on from
        messages = {}
        for viewer in {reader.viewer for reader in self._readers}:
            if viewer in before:
                told = partial(self._message, viewer, before[viewer], common)
                messages[viewer] = await self._worker.run(told)
        self._cut_off(
            lambda reader: reader.viewer in messages and not reader.send(messages[reader.viewer])
        )

    def _state(self, viewer: Viewer) -> _State:
        """In the worker's thread."""
        if viewer not in self._states:
            assert self._picture is not None, "it was rendered"
            own = self._rendering.for_viewer(self._picture, viewer)
            now, common = self._service.clock(), self._picture.outline.common
            self._states[viewer] = _State(self._serial, now, common, own)
        return self._states[viewer]

    def _pack(self, viewer: Viewer) -> bytes:
        state = self._state(viewer)
        answer = {
            "serial": state.serial,
            "now": state.now,
            "common": change(NOTHING, state.common),
            "own": change(NOTHING, state.own),
        }
        return gzip.compress(msgspec.json.encode(answer), compresslevel=1)

    def _message(self, viewer: Viewer, old: _State, common: dict[int, bytes]) -> bytes:
        """One event of the stream; what is common to all viewers is told and written once."""
        state = self._state(viewer)
        if old.serial not in common:
            told = change(old.common, state.common)
            common[old.serial] = msgspec.json.encode(told)
        own = msgspec.json.encode(change(old.own, state.own))
        head = f'data: {{"from":{old.serial},"serial":{state.serial},"now":{state.now:.3f}'
        return b'%s,"common":%s,"own":%s}\n\n' % (head.encode(), common[old.serial], own)
