"""The base launcher: keeps a job's store, doors and truth about its generations.

    join.json       where it is, and the secret that lets other launchers in (mode 0600)
    control.sock    takes orders: one JSON line in, one out when it is carried out

| order | means |
|---|---|
| `{"op": "status"}` | who trains, and what the resizes so far have cost |
| `{"op": "resize", "workers": 4}` | the first 4 slots, the base's own first |
| `{"op": "retire", "home": "1234"}` | all but the slots of this launcher, which then ends |

`resize` and `retire` take a `batch` as well: the plan's global one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ones.slurm_ext.runtime import resized
from ones.slurm_ext.runtime.environment import Place
from ones.slurm_ext.runtime.live.control import Control, private_folder
from ones.slurm_ext.runtime.live.generation import Council
from ones.slurm_ext.runtime.live.home import HEARD, Home
from ones.slurm_ext.runtime.live.joining import Launcher, Launchers
from ones.slurm_ext.runtime.live.link import JoinFile, LinkFault, Message
from ones.slurm_ext.runtime.live.loop import Loop
from ones.slurm_ext.runtime.live.recovery import Recoveries
from ones.slurm_ext.runtime.live.service import Service
from ones.slurm_ext.runtime.live.submitting import Ours
from ones.slurm_ext.runtime.live.terms import (
    Abort,
    Action,
    Broken,
    Changed,
    Cut,
    Dismiss,
    Dropped,
    End,
    Event,
    Failed,
    Finished,
    Go,
    Gone,
    Kill,
    Loss,
    Lost,
    Number,
    Opened,
    Propose,
    Ready,
    Refused,
    Slot,
    Start,
    Stopping,
    Switched,
    Switching,
    Tick,
    Wanted,
    WorkerId,
)
from ones.slurm_ext.runtime.reporting import LARGEST_BATCH, is_batch

log = logging.getLogger(__name__)
TICK = 0.5  # seconds
JOIN, CONTROL = "join.json", "control.sock"
HISTORY = 100  # resizes that a status tells of


class Base:
    """Leads the workers of one job."""

    def __init__(self, home: Home, folder: Path, *, host: str, slots: int, workers: int) -> None:
        self._home = home
        self._folder = folder
        self._host = host
        self._slots, self._workers = slots, workers
        self._council = Council()
        self._loop = Loop(TICK)
        home.let_go = self._loop.forget
        self._secret = secrets.token_bytes(32)
        self._private = private_folder(CONTROL)
        self._launchers = Launchers(
            self._loop,
            self._secret,
            expects=self._expects,
            came=self._came,
            said=self._launcher_said,
            lost=self._lost,
        )
        self._control = Control(self._private / CONTROL, self._loop, self._obey)
        self._where: dict[int, Slot] = {}  # each worker's
        self._pids: dict[int, int] = {}
        self._samples = 0
        self._pauses: dict[int, float] = {}  # of each generation, the longest of its members
        self._moved: dict[int, dict[str, int]] = {}  # bytes of sharded models, in the last change
        self._history: list[dict[str, Any]] = []
        self._recoveries = Recoveries()
        self._stopped = False
        self._code: int | None = None
        self._again = False
        self._store: Any = None
        self._port = 0
        self._service: Service | None = None

    def serve(self, path: str, ours: Ours, environ: Mapping[str, str]) -> None:
        """Take onesd's orders from the node's agent, and have satellites come and go."""
        self._service = Service(
            path,
            ours,
            environ,
            loop=self._loop,
            council=self._council,
            launchers=self._launchers,
            take=self._take,
            came=self._came,
        )

    def run(self) -> int:
        """Until the job is over; its exit code."""
        try:
            self._open()
            self._take(Opened(0, self._slots, self._workers))
            while self._code is None:
                self._loop.once()
                self._reap()
                self._home.overdue()
                self._launchers.keep_in_touch()
                self._take(Tick())
                self._answer()
                if self._service is not None:
                    self._service.report(self._history, self._recoveries.told())
        finally:
            self._close()
        if self._stopped and self._code in (0, -signal.SIGTERM):
            return 128 + signal.SIGTERM
        return 128 - self._code if self._code < 0 else self._code

    # Doors

    def _open(self) -> None:
        import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 (heavy)

        inner = _interface(self._host)
        listening = socket.create_server((inner, 0))
        self._port = listening.getsockname()[1]
        # Debian builds torch without libuv; the older store is there in every build.
        stores: Any = dist
        self._store = stores.TCPStore(
            self._host,
            self._port,
            is_master=True,
            wait_for_workers=False,
            use_libuv=False,
            master_listen_fd=listening.detach(),
        )
        joining = self._launchers.open(inner)
        self._control.open()
        self._loop.listen((*HEARD, signal.SIGCHLD), self._signalled)
        self._join_file(joining).write(self._folder / JOIN)

    def _join_file(self, port: int) -> JoinFile:
        control = str(self._private / CONTROL)
        return JoinFile(host=self._host, port=port, control=control, secret=self._secret)

    def _close(self) -> None:
        if self._service is not None:
            self._service.close()
        self._launchers.close()
        self._control.close()
        self._join_file(self._port).remove(self._folder / JOIN)
        with contextlib.suppress(OSError):
            self._private.rmdir()

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        self._home.signal(number)
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stopped = True
            self._take(Stopping())

    # The council's events and actions

    def _take(self, event: Event) -> None:
        for action in self._council.step(event, time.monotonic()):
            log.debug("%s: %s", event, action)
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Start(worker, slot):
                self._start(action)
            case Propose(worker, offer):
                name = f"ones-{offer.number}"
                store = [self._host, self._port]
                fields = {"offer": asdict(offer), "name": name, "store": store}
                self._tell(worker, {"do": "propose", **fields})
            case Abort(worker, number):
                self._tell(worker, {"do": "abort", "number": number})
            case Go(worker, number):
                self._tell(worker, {"do": "go", "number": number})
            case Cut(worker, number):
                self._tell(worker, {"do": "cut", "number": number})
            case Kill(worker, now):
                slot = self._where[worker]
                if slot.home == 0:
                    self._home.kill(worker, now=now)
                else:
                    self._launchers.tell(slot.home, {"do": "kill", "worker": worker, "now": now})
            case Dismiss(home):
                own = self._service is not None and self._service.is_own(home)
                self._launchers.dismiss(home, see_off=own)
            case Changed(number, slots, loss):
                self._again = True
                self._note_change(number, slots, loss)
            case Refused(reason):
                log.warning("ones-run: %s", reason)
                self._control.answer({"ok": False, "error": reason})
                if self._service is not None:
                    self._service.refused(reason)
            case End(code):
                self._code = code

    def _start(self, action: Start) -> None:
        worker, slot = action.worker, action.slot
        self._where[worker] = slot
        here = [each for each in self._council.wanted if each.home == slot.home]
        place = Place(
            rank=action.rank,
            world_size=action.size,
            local_rank=slot.index,
            local_world_size=max(len(here), slot.index + 1),
            node_rank=slot.home,
            nodes=max(each.home for each in self._council.wanted) + 1,
            master=self._host,
            port=self._port,
        )
        if slot.home == 0:
            link = self._home.start(worker, place, first=action.first, again=self._again)
            if link is None:
                return
            self._pids[worker] = self._home.pids()[worker]
            self._loop.watch(link, lambda: self._hear(worker, link))
        else:
            fields = {"place": asdict(place), "first": action.first, "again": self._again}
            self._launchers.tell(slot.home, {"do": "start", "worker": worker, **fields})

    def _tell(self, worker: int, message: Message) -> None:
        slot = self._where[worker]
        if slot.home == 0:
            self._home.tell(worker, message)
        else:
            self._launchers.tell(slot.home, {**message, "worker": worker})

    def _hear(self, worker: int, link: socket.socket) -> None:
        messages = list(self._home.heard(worker))
        if not messages:
            self._loop.forget(link)  # its end is seen when it is reaped
        for message in messages:
            self._said(worker, message)

    def _said(self, worker: int, message: Message) -> None:
        """What a worker has said of itself."""
        key, number = WorkerId(worker), Number(int(message.get("number") or 0))
        match message.get("say"):
            case "ready":
                self._take(Ready(key))
            case "switching":
                self._take(Switching(key, number))
            case "switched":
                self._samples = int(message["samples"])
                if "batch" in message:  # a worker of an earlier version does not say so
                    self._recoveries.switched(
                        batch=int(message["batch"]),
                        epoch=int(message["epoch"]),
                        copies=bool(message["copied"]),
                    )
                if message["pause"] is not None:
                    longest = max(self._pauses.get(number, 0.0), float(message["pause"]))
                    self._pauses[number] = longest
                if "moved" in message:
                    told = {name: int(message[name]) for name in ("moved", "least", "again")}
                    self._moved = {number: told}
                self._take(Switched(key, number))
            case "dropped":
                self._take(Dropped(key, number))
            case "failed":
                log.warning("ones-run: worker %s: %s", self._where[worker], message["reason"])
                self._take(Failed(key, number, str(message["reason"])))
            case "broken":
                self._recoveries.broken(message["committed"])
                self._take(Broken(key, message["committed"]))
            case "finished":
                self._take(Finished(key))

    def _reap(self) -> None:
        for worker, code, last in self._home.reap():
            for message in last:
                self._said(worker, message)
            self._ended(worker, code)

    def _ended(self, worker: int, code: int) -> None:
        if code:
            log.warning("ones-run: worker %s ended with %d", self._where[worker], code)
        self._take(Gone(WorkerId(worker), code))

    def _note_change(self, number: Number, slots: tuple[Slot, ...], loss: Loss | None) -> None:
        before = self._history[-1]["workers"] if self._history else 0
        pause = self._pauses.pop(number, None)
        entry = {"generation": number, "before": before, "workers": len(slots), "pause": pause}
        entry |= self._moved.pop(number, {})
        recovery = self._recoveries.changed(number, loss, samples=self._samples, at=time.time())
        if recovery is not None:
            entry["recovery"] = asdict(recovery)
        own = resized.folder_of(os.environ)
        if before and own is not None:
            resized.live(os.environ, before, len(slots), folder=own)
        self._history = [*self._history[1 - HISTORY :], {**entry, "samples": self._samples}]
        self._pauses = {key: value for key, value in self._pauses.items() if key > number}

    # Other launchers

    def _expects(self, ticket: str) -> bool:
        return self._service is not None and self._service.expects(ticket)

    def _came(self, launcher: Launcher) -> None:
        if self._service is not None:
            self._service.came(launcher)
        if not launcher.waits:
            self._take(Opened(launcher.home, launcher.slots, launcher.workers))

    def _lost(self, launcher: Launcher) -> None:
        if not launcher.waits:
            self._take(Lost(launcher.home))
        if self._service is not None:
            self._service.lost(launcher)

    def _launcher_said(self, launcher: Launcher, message: Message) -> None:
        worker = message.get("worker")
        if worker is not None and self._where[worker].home != launcher.home:
            raise LinkFault(f"it speaks for worker {worker}, which is not its own")
        match message.get("say"):
            case "beat":
                pass
            case "started":
                self._pids[int(message["worker"])] = int(message["pid"])
            case "gone":
                self._ended(int(message["worker"]), int(message["code"]))
            case "leaving":
                if launcher.waits:
                    self._launchers.lose(launcher, "it was told to leave")
                elif launcher.job != os.environ.get("SLURM_JOB_ID", ""):
                    self._retire(launcher.home, None)
            case _ if worker is not None:
                self._said(int(worker), message)

    # Orders at the control socket

    def _obey(self, message: Message) -> Message | None:
        batch = message.get("batch")
        if batch is not None and not is_batch(batch):
            raise LinkFault(f"batch is {batch!r}, no whole number from 1 to {LARGEST_BATCH}")
        match message:
            case {"op": "status"}:
                return self._status()
            case {"op": "resize", "workers": int(workers)}:
                slots = self._council.slots
                if not 1 <= workers <= len(slots):
                    return {"ok": False, "error": f"{workers} workers, with {len(slots)} slots"}
                self._take(Wanted(frozenset(slots[:workers]), batch))
            case {"op": "retire", "home": str(name)}:
                home = self._launchers.named(name)
                if home is None:
                    raise LinkFault(f"there is no launcher {name}")
                self._retire(home, batch)
            case _:
                raise LinkFault(f"no order: {message}")
        return None

    def _retire(self, home: int, batch: int | None) -> None:
        kept = frozenset(slot for slot in self._council.wanted if slot.home != home)
        self._take(Wanted(kept, batch))

    def _answer(self) -> None:
        """Tell those who wait that it is done."""
        if self._control.awaited and self._council.settled:
            self._control.answer(self._status())

    def _status(self) -> Message:
        council = self._council
        members = [
            {
                "slot": str(slot),
                "home": self._launchers.name(slot.home),
                "pid": self._pids.get(key),
            }
            for key in council.members
            if key in council.workers
            for slot in [self._where[key]]
        ]
        return {
            "ok": True,
            "generation": council.number,
            "workers": len(members),
            "settled": council.settled,
            "members": members,
            "slots": len(council.slots),
            "samples": self._samples,
            "resizes": self._history,
        }


def _interface(host: str) -> str:
    """The address to listen at as this host: all of them where its name means itself only."""
    address = socket.gethostbyname(host)
    return "" if address.startswith("127.") and host not in ("localhost", address) else address
