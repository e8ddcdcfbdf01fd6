"""Runs the demonstration: its time, its onesd's door, and its end."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ones.daemon.config import Config, PageConfig
from ones.daemon.demo.show import Show
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.doors.http import Api
from ones.daemon.onesd.doors.sessions import digest
from ones.daemon.onesd.page.server import Page

PORT = 7668  # of the page, where it is free
LINK = 86400.0  # seconds for which the link to the page can be used, once
ROUND = 30.0  # seconds of the cluster's time
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """What is to be shown."""

    nodes: int = 80
    speed: float = 60.0  # seconds of the cluster to a second
    policy: str = "ones"
    seed: int = 0
    observes: bool = False  # what it decides is never done
    most: float | None = None  # seconds after which it ends by itself


def run(
    wanted: Demonstration, *, opened: Callable[[Path, str], None], seen: Callable[[Show], None]
) -> None:
    """Until ctrl-C. `opened` is told the socket and a link to the page, `seen` what there is
    after each round.

    All it needs lies in a folder of its own, which nobody else may enter and which goes with it.
    Raises ValueError where the policy can't be used here.
    """
    with tempfile.TemporaryDirectory(prefix="ones-demo-") as folder:
        here = Path(folder)
        config = Config(
            policy=wanted.policy,
            mode="observe" if wanted.observes else "act",
            round=ROUND,
            seed=wanted.seed,
            store=str(here / "ones.sqlite"),
            socket=str(here / "onesd.sock"),
            agent_user=getpass.getuser(),
            page=PageConfig(address=f"127.0.0.1:{_free_port()}"),
        )
        store = Store(config.store)
        try:
            show = Show(
                config,
                store,
                nodes=wanted.nodes,
                operator=config.agent_user,
                seed=wanted.seed,
                now=time.time(),
            )
            asyncio.run(_serve(wanted, show, lambda link: opened(Path(config.socket), link), seen))
        finally:
            store.close()


async def _serve(
    wanted: Demonstration, show: Show, opened: Callable[[str], None], seen: Callable[[Show], None]
) -> None:
    # What onesd logs would be in the way of what is shown.
    logging.getLogger("ones").addHandler(logging.NullHandler())
    loop, stop = asyncio.get_running_loop(), threading.Event()
    for number in ENDS:
        loop.add_signal_handler(number, stop.set)
    if wanted.most is not None:
        loop.call_later(wanted.most, stop.set)
    api = Api(show.onesd.service)
    page = Page(api, show.onesd.service)
    runner = await api.serve(only_here=True)
    try:
        await page.open()
        opened(_a_link(api))

        def after_a_round(show: Show) -> None:
            page.changed()
            seen(show)

        await asyncio.to_thread(_play, show, wanted.speed, stop, after_a_round)
    finally:
        await page.close()
        await runner.cleanup()


def _a_link(api: Api) -> str:
    """To the page, for whoever started the demonstration."""
    secret = secrets.token_urlsafe(32)
    api.sessions.offer(os.geteuid(), digest(secret).hex(), lasts=LINK)
    return f"{api.page_url}/#sign-in={secret}"


def _free_port() -> int:
    """The page's usual port; where that is taken, any other one."""
    for port in (PORT, 0):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(tried.getsockname()[1])
    return PORT


def _play(show: Show, speed: float, stop: threading.Event, seen: Callable[[Show], None]) -> None:
    """Round after round; where this machine is too slow for the speed, time goes slower."""
    due = time.monotonic()
    while not stop.is_set():
        show.one_round()
        seen(show)
        due = max(due + ROUND / speed, time.monotonic())
        stop.wait(due - time.monotonic())
