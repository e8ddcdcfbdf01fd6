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
import struct
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.environment import Place
from ones.slurm_ext.runtime.live.desk import Desk
from ones.slurm_ext.runtime.live.desk import Order as LiveOrder
from ones.slurm_ext.runtime.live.errand import Errands
from ones.slurm_ext.runtime.live.generation import Council
from ones.slurm_ext.runtime.live.home import HEARD, Home
from ones.slurm_ext.runtime.live.link import (
    Admitting,
    JoinFile,
    Lines,
    LinkFault,
    Message,
    Sealed,
    decode,
    encode,
)
from ones.slurm_ext.runtime.live.loop import Loop
from ones.slurm_ext.runtime.live.recruits import Ours, Recruits
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

log = logging.getLogger(__name__)
TICK = 0.5  # seconds
BEAT = 5.0  # seconds between signs of life of launchers
SILENCE = 30.0  # seconds without one after which a launcher is lost
STRANGER = 10.0  # seconds to prove oneself
STRANGERS = 32  # at a time
JOIN, CONTROL = "join.json", "control.sock"
HISTORY = 100  # resizes that a status tells of


@dataclass(slots=True)
class Guest:
    """A connection of another launcher, or of somebody who may become one."""

    link: socket.socket
    admitting: Admitting | None
    sealed: Sealed | None = None
    lines: Lines = field(default_factory=Lines)
    heard: float = 0.0
    home: int = 0
    name: str = ""
    job: str = ""
    offers: tuple[int, int] = (0, 0)  # slots, and workers to begin with
    waits: bool = False  # until all others of its order are there


@dataclass(slots=True)
class Order:
    """A connection at the control door, and whether it waits for an answer."""

    link: socket.socket
    lines: Lines = field(default_factory=Lines)
    waits: bool = False


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
        self._private = Path(tempfile.mkdtemp(prefix="ones-live-"))  # mode 0700
        self._guests: dict[int, Guest] = {}
        self._strangers: list[Guest] = []
        self._orders: list[Order] = []
        self._where: dict[int, Slot] = {}  # each worker's
        self._pids: dict[int, int] = {}
        self._last_home = 0
        self._samples = 0
        self._pauses: dict[int, float] = {}  # of each generation, the longest of its members
        self._history: list[dict[str, Any]] = []
        self._stopped = False
        self._code: int | None = None
        self._beat = 0.0
        self._again = False
        self._store: Any = None
        self._port = 0
        self._desk: Desk | None = None
        self._errands: Errands | None = None
        self._restarts = 0
        self._order_since = 0  # the generation in which the last order came
        self._order_pause: float | None = None

    def serve(self, path: str, ours: Ours, environ: Mapping[str, str]) -> None:
        """Take onesd's orders from the node's agent, and have satellites come and go."""
        self._restarts = ours.restarts
        self._errands = Errands(self, Recruits(ours, environ))
        self._desk = Desk(
            path,
            job=ours.job,
            restarts=ours.restarts,
            watch=self._loop.watch,
            forget=self._loop.forget,
            take=self._take_order,
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
                self._keep_links()
                self._take(Tick())
                self._answer()
                self._report()
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
        joining = socket.create_server((inner, 0))
        joining.setblocking(False)
        self._loop.watch(joining, lambda: self._greet(joining))
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.bind(str(self._private / CONTROL))
        control.listen()
        control.setblocking(False)
        self._loop.watch(control, lambda: self._receive_order(control))
        self._loop.listen((*HEARD, signal.SIGCHLD), self._signalled)
        JoinFile(
            host=self._host,
            port=joining.getsockname()[1],
            control=str(self._private / CONTROL),
            secret=self._secret,
        ).write(self._folder / JOIN)

    def _close(self) -> None:
        if self._errands is not None and self._desk is not None:
            self._errands.close()
            self._desk.close({**self._word(self._errands), "able": False})
        for guest in self._guests.values():
            self._tell_guest(guest, {"do": "dismiss"})
            guest.link.close()
        for path in (self._folder / JOIN, self._private / CONTROL):
            path.unlink(missing_ok=True)
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
                elif guest := self._guests.get(slot.home):
                    self._tell_guest(guest, {"do": "kill", "worker": worker, "now": now})
            case Dismiss(home):
                if guest := self._guests.get(home):
                    self._tell_guest(guest, {"do": "dismiss"})
                    self._part(guest)
            case Changed(number, slots):
                self._again = True
                self._note_change(number, slots)
            case Refused(reason):
                log.warning("ones-run: %s", reason)
                self._reply_all({"ok": False, "error": reason})
                if self._errands is not None:
                    self._errands.refused(reason)
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
            self._pids[worker] = self._home.pids()[worker]
            self._loop.watch(link, lambda: self._hear(worker, link))
        elif guest := self._guests.get(slot.home):
            fields = {"place": asdict(place), "first": action.first, "again": self._again}
            self._tell_guest(guest, {"do": "start", "worker": worker, **fields})

    def _tell(self, worker: int, message: Message) -> None:
        slot = self._where[worker]
        if slot.home == 0:
            self._home.tell(worker, message)
        elif guest := self._guests.get(slot.home):
            self._tell_guest(guest, {**message, "worker": worker})

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
                if message["pause"] is not None:
                    longest = max(self._pauses.get(number, 0.0), float(message["pause"]))
                    self._pauses[number] = longest
                self._take(Switched(key, number))
            case "dropped":
                self._take(Dropped(key, number))
            case "failed":
                log.warning("ones-run: worker %s: %s", self._where[worker], message["reason"])
                self._take(Failed(key, number, str(message["reason"])))
            case "broken":
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

    def _note_change(self, number: int, slots: tuple[Slot, ...]) -> None:
        before = self._history[-1]["workers"] if self._history else 0
        pause = self._pauses.pop(number, None)
        entry = {"generation": number, "before": before, "workers": len(slots), "pause": pause}
        self._history = [*self._history[1 - HISTORY :], {**entry, "samples": self._samples}]
        self._pauses = {key: value for key, value in self._pauses.items() if key > number}

    # Other launchers

    def _greet(self, joining: socket.socket) -> None:
        with contextlib.suppress(OSError):
            link, _ = joining.accept()
            if len(self._strangers) >= STRANGERS:
                link.close()
                return
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = Guest(link, Admitting(self._secret), heard=time.monotonic())
            self._strangers.append(guest)
            link.settimeout(SILENCE / 3)  # for sending; it is read when there is something
            assert guest.admitting is not None
            link.sendall(guest.admitting.greeting())
            self._loop.watch(link, lambda: self._hear_guest(guest))

    def _hear_guest(self, guest: Guest) -> None:
        try:
            data = guest.link.recv(1 << 16)
            if not data:
                raise LinkFault("it has hung up")
            for line in guest.lines.add(data):
                guest.heard = time.monotonic()
                if guest.sealed is None:
                    self._admit(guest, line)
                else:
                    self._guest_said(guest, guest.sealed.open(line))
        except (OSError, OnesError, KeyError, TypeError, ValueError) as fault:
            self._lose(guest, str(fault))

    def _admit(self, guest: Guest, line: bytes) -> None:
        assert guest.admitting is not None
        offer, welcome, sealed = guest.admitting.admit(line)
        slots, workers = int(offer["slots"]), int(offer["workers"])
        if not 1 <= workers <= slots <= 1024:
            raise LinkFault(f"it offers {workers} workers in {slots} slots")
        ticket = str(offer.get("ticket", ""))
        expected = self._errands is not None and self._errands.wants(ticket, self._restarts)
        if ticket and not expected:
            guest.link.sendall(encode({"error": f"nobody waits for a satellite of order {ticket}"}))
            raise LinkFault(f"it comes by order {ticket}, which is over")
        guest.link.sendall(welcome)
        guest.admitting, guest.sealed = None, sealed
        guest.name, guest.job = str(offer["name"]), str(offer["job"])
        self._last_home += 1
        guest.home = self._last_home
        self._strangers.remove(guest)
        self._guests[guest.home] = guest
        self._tell_guest(guest, {"do": "home", "home": guest.home})
        guest.offers, guest.waits = (slots, workers), bool(ticket)
        if not guest.waits:
            self._take(Opened(guest.home, slots, workers))

    def _guest_said(self, guest: Guest, message: Message) -> None:
        worker = message.get("worker")
        if worker is not None and self._where[worker].home != guest.home:
            raise LinkFault(f"it speaks for worker {worker}, which is not its own")
        match message.get("say"):
            case "beat":
                pass
            case "started":
                self._pids[int(message["worker"])] = int(message["pid"])
            case "gone":
                self._ended(int(message["worker"]), int(message["code"]))
            case "leaving":
                if guest.waits:
                    self._lose(guest, "it was told to leave")
                elif guest.job != os.environ.get("SLURM_JOB_ID", ""):
                    self._retire(guest.home, None)
            case _ if worker is not None:
                self._said(int(worker), message)

    def _tell_guest(self, guest: Guest, message: Message) -> None:
        if guest.sealed is not None:
            with contextlib.suppress(OSError):
                guest.link.sendall(guest.sealed.seal(message))

    def _keep_links(self) -> None:
        now = time.monotonic()
        for guest in [each for each in self._strangers if now - each.heard > STRANGER]:
            self._lose(guest, "it hasn't said who it is")
        for guest in [each for each in self._guests.values() if now - each.heard > SILENCE]:
            self._lose(guest, f"nothing heard for {SILENCE:.0f} s")
        if now - self._beat > BEAT:
            self._beat = now
            for guest in self._guests.values():
                self._tell_guest(guest, {"do": "beat"})

    def _lose(self, guest: Guest, why: str) -> None:
        who = f"launcher {guest.name}" if guest.home else "somebody who wanted to join"
        log.warning("ones-run: %s is gone: %s", who, why)
        self._part(guest)
        if guest.home and not guest.waits:
            self._take(Lost(guest.home))
        if guest.home and self._errands is not None and guest.job.isdecimal():
            self._errands.lost(int(guest.job))

    def _part(self, guest: Guest) -> None:
        self._loop.forget(guest.link)
        guest.link.close()
        self._guests.pop(guest.home, None)
        if guest in self._strangers:
            self._strangers.remove(guest)

    # onesd's orders

    def _take_order(self, order: LiveOrder) -> None:
        assert self._errands is not None
        if order.number != self._errands.number:
            self._order_since, self._order_pause = self._council.number, None
        self._errands.take(order)

    def _report(self) -> None:
        if self._errands is None or self._desk is None:
            return
        working = self._errands.state == "working"
        self._errands.look()
        if working:
            pauses = [
                each["pause"] or 0.0
                for each in self._history
                if each["generation"] > self._order_since
            ]
            self._order_pause = sum(pauses) if pauses else None
        self._desk.say(self._word(self._errands))

    def _word(self, errands: Errands) -> Message:
        members = [self._where[key] for key in self._council.members if key in self._where]
        parts = {str(job): 0 for job in (*errands.coming, *self.waiting())}
        for job, home in self.homes().items():
            parts[str(job)] = sum(1 for slot in members if slot.home == home)
        word: Message = {
            "workers": len(members),
            "parts": parts,
            "order": errands.number,
            "state": errands.state,
            "reason": errands.reason,
            "able": not self._council.ending,
        }
        return word if self._order_pause is None else {**word, "pause": self._order_pause}

    def homes(self) -> dict[int, int]:
        ours = os.environ.get("SLURM_JOB_ID", "")
        return {
            int(guest.job): home
            for home, guest in self._guests.items()
            if guest.job.isdecimal() and guest.job != ours and not guest.waits
        }

    def waiting(self) -> frozenset[int]:
        waiting = [guest for guest in self._guests.values() if guest.waits]
        return frozenset(int(guest.job) for guest in waiting if guest.job.isdecimal())

    def let_in(self, jobs: Iterable[int]) -> None:
        for job in jobs:
            for guest in self._of_job(job):
                guest.waits = False
                self._take(Opened(guest.home, *guest.offers))

    def send_away(self, jobs: Iterable[int]) -> None:
        left = {guest.home for job in jobs for guest in self._of_job(job) if not guest.waits}
        for guest in [each for job in jobs for each in self._of_job(job) if each.waits]:
            self._tell_guest(guest, {"do": "dismiss"})
            self._part(guest)
        if left:
            slots = frozenset(slot for slot in self._council.slots if slot.home not in left)
            self._take(Wanted(slots))

    def want(self, homes: frozenset[int], batch: int | None) -> None:
        satellites = set(self.homes().values())
        slots = frozenset(
            slot
            for slot in self._council.slots
            if slot.home in homes or slot.home not in satellites
        )
        self._take(Wanted(slots, batch))

    def members(self) -> frozenset[Slot] | None:
        council = self._council
        if not council.settled:
            return None
        return frozenset(council.workers[key].slot for key in council.members)

    def _of_job(self, job: int) -> list[Guest]:
        return [guest for guest in self._guests.values() if guest.job == str(job)]

    # Orders at the control socket

    def _receive_order(self, control: socket.socket) -> None:
        with contextlib.suppress(OSError):
            link, _ = control.accept()
            peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", peer)[1] not in (0, os.getuid()):
                link.close()
                return
            link.settimeout(1.0)
            order = Order(link)
            self._orders.append(order)
            self._loop.watch(link, lambda: self._read_order(order))

    def _read_order(self, order: Order) -> None:
        try:
            data = order.link.recv(1 << 16)
            if not data:
                raise LinkFault("hung up")
            for line in order.lines.add(data):
                self._obey(order, decode(line))
        except OSError:
            self._forget(order)
        except LinkFault as fault:
            self._reply(order, {"ok": False, "error": str(fault)})
            self._forget(order)

    def _obey(self, order: Order, message: Message) -> None:
        batch = message.get("batch")
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise LinkFault(f"batch is {batch!r}, no whole number from 1 up")
        match message:
            case {"op": "status"}:
                self._reply(order, self._status())
            case {"op": "resize", "workers": int(workers)}:
                order.waits = True
                self._resize(workers, batch)
            case {"op": "retire", "home": str(name)}:
                found = [guest.home for guest in self._guests.values() if guest.name == name]
                if not found:
                    raise LinkFault(f"there is no launcher {name}")
                order.waits = True
                self._retire(found[0], batch)
            case _:
                raise LinkFault(f"no order: {message}")

    def _resize(self, workers: int, batch: int | None) -> None:
        slots = self._council.slots
        if not 1 <= workers <= len(slots):
            self._reply_all({"ok": False, "error": f"{workers} workers, with {len(slots)} slots"})
        else:
            self._take(Wanted(frozenset(slots[:workers]), batch))

    def _retire(self, home: int, batch: int | None) -> None:
        kept = frozenset(slot for slot in self._council.wanted if slot.home != home)
        self._take(Wanted(kept, batch))

    def _answer(self) -> None:
        """Tell those who wait that it is done."""
        if any(order.waits for order in self._orders) and self._council.settled:
            self._reply_all(self._status())

    def _status(self) -> Message:
        council = self._council
        members = [
            {
                "slot": str(slot),
                "home": guest.name if (guest := self._guests.get(slot.home)) else "",
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

    def _reply_all(self, message: Message) -> None:
        for order in self._orders:
            if order.waits:
                order.waits = False
                self._reply(order, message)

    def _reply(self, order: Order, message: Message) -> None:
        with contextlib.suppress(OSError):
            order.link.sendall(encode(message))

    def _forget(self, order: Order) -> None:
        self._loop.forget(order.link)
        order.link.close()
        if order in self._orders:
            self._orders.remove(order)


def _interface(host: str) -> str:
    """The address to listen at as this host: all of them where its name means itself only."""
    address = socket.gethostbyname(host)
    return "" if address.startswith("127.") and host not in ("localhost", address) else address
