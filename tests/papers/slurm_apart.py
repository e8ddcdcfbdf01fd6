"""A simulated Slurm in a process of its own, and onesd's way to it: what it costs is not onesd's.

Calls go through a unix socket as pickled values. A snapshot comes in parts, as Slurm's own answers
do, so that no thread of onesd waits for the whole of it to be unpacked.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.snapshot import Snapshot

PART = 250  # jobs of a snapshot that are sent at once


class SlurmDoor:
    """Answers calls on a cluster, one at a time; `one` is held meanwhile."""

    def __init__(self, path: Path, cluster: SimulatedCluster, one: threading.Lock) -> None:
        self._cluster = cluster
        self._one = one
        self.calls = Counter[str]()
        self._listener = Listener(str(path), "AF_UNIX", backlog=16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            caller = self._listener.accept()
            threading.Thread(target=self._answer, args=(caller,), daemon=True).start()

    def _answer(self, caller: Connection) -> None:
        with suppress(EOFError, ConnectionError):
            while True:
                name, arguments, named = caller.recv()
                with self._one:
                    self.calls[name] += 1
                    fault, found = self._said(name, arguments, named)
                if isinstance(found, Snapshot):
                    jobs = list(found.jobs.items())
                    for at in range(0, len(jobs), PART):
                        caller.send(("", dict(jobs[at : at + PART])))
                    found = replace(found, jobs={})
                caller.send((fault, found))

    def _said(
        self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[str, Any]:
        try:
            return "", getattr(self._cluster, name)(*arguments, **named)
        except SlurmUnreachable as fault:
            return "silent", (fault.command, fault.reason)
        except SlurmError as fault:
            return "refused", (fault.command, fault.reason)


class SlurmAfar:
    """A Cluster at the other end; each thread has a connection of its own."""

    name = "simulated"

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._mine = threading.local()

    def snapshot(self) -> Snapshot:
        jobs: dict[Any, Any] = {}
        found = self._asked("snapshot", (), {})
        while not isinstance(found, Snapshot):
            jobs |= found
            found = self._heard()
        return replace(found, jobs=jobs)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: self._asked(name, arguments, named)

    def _asked(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not hasattr(self._mine, "slurm"):
            self._mine.slurm = Client(self._path, "AF_UNIX")
        if name in ("runs", "usage"):
            arguments = (sorted(arguments[0]),)
        self._mine.slurm.send((name, arguments, named))
        return self._heard()

    def _heard(self) -> Any:
        fault, found = self._mine.slurm.recv()
        if fault:
            raise (SlurmUnreachable if fault == "silent" else SlurmError)(*found)
        return found
