"""A real onesd on the simulated Slurm, whose doors and page are served by a thread of the test."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from pathlib import Path
from typing import Any, Self

from simulated_onesd import AtWork
from simulated_world import NODES, a_world

from ones.daemon.config import PageConfig
from ones.daemon.onesd.doors.http import Api
from ones.daemon.onesd.doors.sessions import digest
from ones.daemon.onesd.page.server import Page

USER, OTHER = 65534, 1  # users that every Linux has, who are nobody to onesd
NAMES = {USER: "nobody", OTHER: "daemon"}
SITE = {"users": {"nobody": "vision", "daemon": "language", "alice": "speech"}}


def a_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class ServedPage:
    """onesd at work, and its doors; it can be stopped and started as often as one likes."""

    def __init__(
        self,
        folder: Path,
        *,
        site: dict[str, Any] | None = None,
        policy: str = "ones",
        port: int | None = None,
        page: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.port = port or a_port()
        self.socket = folder / "onesd.sock"
        self.work = AtWork(
            a_world({**SITE, "nodes": NODES, **(site or {})}),
            socket=str(self.socket),
            page=PageConfig(address=f"127.0.0.1:{self.port}", **(page or {})),
            policy=policy,
            **config,
        )
        self.work.says = {"batch": 64, "step_seconds": 0.5, "total_samples": 10**6}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Raises RuntimeError where it does not come up."""
        self._loop, self._ready, self._stop = asyncio.new_event_loop(), threading.Event(), None
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        if not self._ready.wait(60):
            raise RuntimeError("the page did not come up")

    def stop(self) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(60)
            self._loop.close()
        self._stop = None

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self.api = Api(self.work.onesd.service)
        self.page = Page(self.api, self.work.onesd.service)
        runner = await self.api.serve(only_here=True)
        await self.page.open()
        self._ready.set()
        await self._stop.wait()
        await self.page.close()
        await runner.cleanup()

    def live(self, seconds: int) -> None:
        """Let the time pass on the cluster, then tell the pages."""
        self.work.live(seconds)
        self.page.changed()

    def share(self, first: int, second: int, **changes: Any) -> None:
        """These jobs are written down to share a GPU, until the next round sees that they don't."""
        row: dict[str, Any] = {"at": self.work.world.now, "node": "n1", "gpu": 0}
        for which, job in (("first", first), ("second", second)):
            row |= {which: job, f"{which}_restarts": 0, f"{which}_batch": 64.0}
            row |= {f"{which}_family": f"family/{job}", f"{which}_expected": 0.9}
        self.work.store.put("pairs", [row | changes])

    def link(self, uid: int | None = None, *, lasts: float | None = None) -> str:
        """As `onesctl web` prints it to this user."""
        secret = secrets.token_urlsafe(32)
        whose = os.geteuid() if uid is None else uid
        self.api.sessions.offer(whose, digest(secret).hex(), lasts=lasts)
        return f"{self.url}/#sign-in={secret}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
