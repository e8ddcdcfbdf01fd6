"""Process groups of PyTorch that come and go while the process stays: `make` makes one.

This is the only place that knows torch's private names for it. From torch 2.14 on there is an
experimental call that re-forms a group in place; it would be used here.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
from torch.distributed import distributed_c10d as c10d

from ones.slurm_ext.errors import OnesError

MAKING = timedelta(seconds=30)  # for all members to connect
WORKING = timedelta(minutes=30)  # for one collective: torch's own default
STORE = timedelta(seconds=30)
QUIET = 1.0  # seconds from the end of the last callback, in which gloo lets go of it
CUT = 1.0  # seconds from a cut, in which what can end has ended
POLL = 0.0005
LOOK = 0.1  # seconds between two looks whether a group was cut
Ends = tuple[Any, Any]  # of a connection: its own address and its peer's


class GroupFault(OnesError):
    """A process group could not be made."""


class Group:
    """A process group in which this process is one of `size`.

    Where a connection is lost, gloo wakes those who wait for their turn on it, but nobody whose
    data are just on their way: he waits for `WORKING`. So nothing here waits for gloo alone.
    """

    def __init__(
        self, pg: Any, *, rank: int, size: int, links: dict[int, Ends], nccl: Any = None
    ) -> None:
        """`links` are gloo's connections; `nccl` is what carries tensors of GPUs, if anything."""
        self.pg = pg
        self.rank = rank
        self.size = size
        self.cut_at: float | None = None
        self._works: list[Any] = []  # that may be under way still
        self._waits: list[threading.Event] = []  # the same of sends and receives
        self._callbacks: dict[Any, Callable[[], None]] = {}  # and how to go on without them
        self._nccl = nccl
        self._links = links

    def install(self) -> None:
        """Make it the group that torch.distributed's functions use where none is given."""
        c10d._update_default_pg(self.pg)
        c10d._default_pg_init_method = "ones"  # type: ignore[assignment,unused-ignore]

    def cut(self) -> None:
        """End what is under way in it, here and on the others: a member is lost.

        Gloo has no such call. Without it who is not a neighbour of the lost one would wait for its
        own neighbours, and those for the end of what they have under way.
        """
        first, self.cut_at = self.cut_at is None, time.monotonic()
        present, scripts = _connections(set()), _of_python()
        for number, ends in self._links.items():
            if present.get(number) == ends and number not in scripts:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as link:
                    link.shutdown(socket.SHUT_RDWR)
        if first and self._nccl is not None:
            _abort(self._nccl)
        if first and self._callbacks:
            threading.Thread(target=self._free, name="ones-cut", daemon=True).start()

    def finish(self, work: Any) -> None:
        """Wait for a collective of this group. Raises RuntimeError where a member was lost."""
        while not work.is_completed():
            if self.cut_at is not None and time.monotonic() - self.cut_at > CUT:
                self._works.append(work)
                raise RuntimeError("gloo: the connection was cut, and the data are lost")
            time.sleep(POLL)
        work.wait()

    def finish_all(self, works: Sequence[Any]) -> None:
        """Wait for sends and receives of this group. Raises RuntimeError where a member was lost.

        Gloo says that they are done only to those who wait, and so a thread does.
        """
        faults: list[RuntimeError] = []
        done = threading.Event()

        def wait() -> None:
            try:
                for work in works:
                    work.wait()
            except RuntimeError as fault:
                faults.append(fault)
            finally:
                done.set()

        if self._nccl is not None:
            # What waits is the stream of the one who calls; it can be aborted.
            for work in works:
                work.wait()
            return
        threading.Thread(target=wait, name="ones-transfer", daemon=True).start()
        while not done.wait(LOOK):
            if self.cut_at is not None and time.monotonic() - self.cut_at > CUT:
                self._waits.append(done)
                raise RuntimeError("gloo: the connection was cut, and the data are lost")
        if faults:
            raise faults[0]

    def watch(self, work: Any) -> Any:
        """A collective that the group must not end before; the same again."""
        self._works = [each for each in self._works if not each.is_completed()]
        self._works.append(work)
        return work

    def outcome(self, future: Any, otherwise: Any, lost: Callable[[], None]) -> Any:
        """A future of the same value; of `otherwise`, and `lost` is called, without a group."""

        def value(done: Any) -> Any:
            try:
                return done.value()
            except RuntimeError:
                lost()
                return otherwise

        if self._nccl is not None:
            return future.then(value)  # its order on the GPU is kept, and it can be aborted
        mine: Any = torch.futures.Future()

        def end(found: Any) -> None:
            with contextlib.suppress(RuntimeError):  # it has ended before
                mine.set_result(found)

        def free() -> None:
            lost()
            end(otherwise)

        def called(done: Any) -> None:
            try:
                end(value(done))
            finally:
                self._callbacks.pop(mine, None)

        self._callbacks[mine] = free
        future.then(called)
        return mine

    def _free(self) -> None:
        time.sleep(CUT)
        for free in list(self._callbacks.values()):
            free()

    def has_calmed(self, *, within: float) -> bool:
        """Wait until nothing of this group is under way; whether that came in time."""
        end = time.monotonic() + within
        while self._busy:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    @property
    def _busy(self) -> bool:
        ended = all(each.is_set() for each in self._waits)
        ended = ended and all(each.is_completed() for each in self._works)
        return bool(self._callbacks) or not ended

    def drop(self) -> None:
        """Leave it, in a thread.

        Up to PyTorch 2.6 a group that ends waits for its threads while it holds Python's lock: if
        one of them needs that lock, or waits itself, the whole process stands still.
        """
        held, nccl = [self.pg], self._nccl
        self.pg = self._nccl = None
        if c10d.GroupMember.WORLD is held[0]:
            c10d._update_default_pg(None)

        def leave() -> None:
            while not self.has_calmed(within=60.0):
                continue
            time.sleep(QUIET)
            with contextlib.suppress(AssertionError, RuntimeError, ValueError):
                if nccl is not None:  # to be destroyed in good order it would need all the others
                    _abort(nccl).join()
                dist.destroy_process_group(held[0])  # unless the process is ending already
            held.clear()

        threading.Thread(target=leave, name="ones-leave", daemon=True).start()


def supported() -> str:
    """Why no such groups can be made with this torch; empty where they can."""
    if not (dist.is_available() and dist.is_gloo_available()):
        return "this PyTorch has no gloo"
    for name in ("_new_process_group_helper", "_update_default_pg", "_world"):
        if not hasattr(c10d, name):
            return f"this PyTorch ({torch.__version__}) has no {name}"
    return ""


def store(host: str, port: int) -> Any:
    """A connection to the base launcher's store. Each thread that waits needs its own."""
    stores: Any = dist
    return stores.TCPStore(host, port, is_master=False, use_libuv=False, timeout=STORE)


def make(
    store: Any, *, name: str, rank: int, size: int, device: Any, ranks: Sequence[int] | None = None
) -> Group:
    """The group of this name, once all its members have come. Names are never used twice.

    `ranks` are those of its members in the default group, where it is a part of that one only.

    It carries tensors of the CPU by gloo, and those of GPUs by NCCL where there is one. May run in
    a thread while another group is in use.
    """
    has_nccl = device.type == "cuda" and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
    helper: Any = c10d._new_process_group_helper
    before = set(_connections(set()))
    try:
        pg, _ = helper(size, rank, [], c10d.Backend(backend), store, name, timeout=MAKING)
        c10d._world.pg_group_ranks[pg] = {
            each: number for number, each in enumerate(ranks or range(size))
        }
        # All are there, and what a backend puts off until its first use is done now.
        dist.all_reduce(torch.zeros(1), group=pg)
        links, nccl = _connections(before), None
        if has_nccl:
            # It connects without a collective: one on the GPU would wait there for training on
            # some members, while on others training waits for it.
            nccl = pg._get_backend(device)
            nccl.eager_connect_single_device(device)
    except (RuntimeError, ValueError) as fault:
        reason = str(fault).strip().splitlines()
        raise GroupFault(f"group {name}: {reason[0] if reason else type(fault).__name__}") from None
    # Earlier versions of PyTorch have it under another name only.
    set_timeout = getattr(dist, "set_timeout", None) or getattr(c10d, "_set_pg_timeout", None)
    if set_timeout is not None:
        set_timeout(WORKING, pg)
    return Group(pg, rank=rank, size=size, links=links, nccl=nccl)


def prepare_nccl() -> None:
    """Have NCCL do as groups need it that come and go. Before its first use."""
    # Its watchdog would end a process whose group has lost a member, or is late.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    # What it puts off until the first collective would be done while all training waits.
    os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")


def _abort(nccl: Any) -> threading.Thread:
    """End what is under way in it, in a thread: it may wait for a call that connects.

    A process doesn't end before such a thread, or it would meet what CUDA ends by itself then.
    """

    def abort() -> None:
        with contextlib.suppress(RuntimeError):
            nccl.abort()

    thread = threading.Thread(target=abort, name="ones-abort")
    thread.start()
    return thread


def _connections(known: set[int]) -> dict[int, Ends]:
    """The TCP connections of this process that aren't known yet, by their descriptors."""
    found: dict[int, Ends] = {}
    for open_file in list(Path("/proc/self/fd").iterdir()):
        number = int(open_file.name)
        with contextlib.suppress(OSError):
            if number in known or not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as link:
                if link.family in (socket.AF_INET, socket.AF_INET6):
                    found[number] = link.getsockname(), link.getpeername()
    return found


def _of_python() -> set[int]:
    """The descriptors of all sockets that Python has: gloo's are none of them, but a script's are.

    It may have made one beside training while a group was being made.
    """
    return {
        socket.socket.fileno(each)
        for each in gc.get_objects()
        if issubclass(type(each), socket.socket)  # isinstance would wake lazy objects
    }


def is_lost(fault: BaseException) -> bool:
    """Whether an error says that a group has lost a member."""
    if isinstance(fault, getattr(dist, "DistError", ())):
        return True
    text = str(fault).lower()
    return any(word in text for word in ("gloo", "nccl", "connection", "socket", "aborted"))
