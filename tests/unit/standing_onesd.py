"""onesd's doors in a thread of the test, on a cluster without nodes and jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from ones.daemon.config import load_config
from ones.daemon.onesd.assembly import Onesd, assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.doors.http import Api
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.limits import SiteLimits
from ones.slurm_ext.priority import Order
from ones.slurm_ext.snapshot import Snapshot


class NoCluster:
    """A Slurm without nodes and jobs."""

    name = "none"

    def snapshot(self) -> Snapshot:
        return Snapshot(taken=0.0, jobs={}, nodes={}, switches={})

    def limits(self) -> SiteLimits:
        return SiteLimits()

    def order(self) -> Order:
        raise SlurmError("sshare", "there is none")

    def operators(self) -> frozenset[str]:
        return frozenset()


@contextmanager
def served_onesd(config: Path) -> Iterator[Onesd]:
    """What is served; a test may run its rounds."""
    ready, served = threading.Event(), list[Onesd]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        loaded = load_config(config)
        store = Store(loaded.store)
        onesd = assemble(loaded, cast(Cluster, NoCluster()), store, clock=lambda: 1000.0)
        runner = await Api(onesd.service).serve()
        served.append(onesd)
        ready.set()
        await stop.wait()
        await runner.cleanup()
        store.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield served[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive(), "onesd does not end"
        loop.close()
