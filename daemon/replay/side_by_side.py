"""Replays of one trace under several policies, each in a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context, resource_tracker
from multiprocessing.managers import SyncManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty
from time import monotonic, process_time
from typing import Any, NoReturn

from ones.daemon.replay.faults import ReplayError
from ones.daemon.replay.history import Recording, load
from ones.daemon.replay.simulation import Run, World, replay
from ones.daemon.replay.workload import Workload
from ones.estimator.assess import Knowledge
from ones.estimator.experience import Experience
from ones.policies.model import Seconds
from ones.policies.registry import Site, information, make

FEW = 200  # jobs: a process takes longer to begin than they take
TOLD_EVERY = 0.2  # seconds from one word of a process to the next
PR_SET_PDEATHSIG = 1  # of prctl(2)
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
Watch = Callable[[str, Seconds, int], None]  # told the policy, the time and how many jobs ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One replay, as it can be handed to another process."""

    name: str  # of the policy, with its settings
    workload: Workload
    world: World
    knowledge: Knowledge
    site: Site = field(default_factory=Site)
    scheduler: str | None = None  # the policy that starts plain jobs; None: there are none
    history: Path | None = None  # it begins with what this database has learnt
    kept: bool = False  # what it learns is handed on


def perform(task: Task, watch: Callable[[Seconds, int], None] | None = None) -> Run:
    """Run it here. Raises ReplayError and TraceError."""
    experience: Experience = Recording() if task.history is None else load(task.history)
    run = replay(
        task.workload,
        make(task.name, site=task.site),
        task.world,
        clock=process_time,
        knowledge=task.knowledge,
        experience=experience,
        truth=information(task.name) == "truth",
        scheduler=None if task.scheduler is None else make(task.scheduler, site=task.site),
        watch=watch,
    )
    return replace(run, policy=task.name)  # with its settings


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def side_by_side(tasks: Sequence[Task], watch: Watch, processes: int | None = None) -> list[Run]:
    """All of them, as many at a time as there are cores; few jobs are run here, one by one."""
    at_once = min(len(tasks), cores() if processes is None else processes)
    if at_once < 2 or len(tasks[0].workload.jobs) < FEW:
        return [perform(task, _watching(watch, task.name)) for task in tasks]
    context = get_context("spawn")
    ends_with_us = (_end_with, (os.getpid(),))
    manager = SyncManager(ctx=context)
    with _one_thread_each(), _ended_in_order(), ExitStack() as last:
        with _starting():
            manager.start(*ends_with_us)
            last.callback(manager.shutdown)
            words = manager.Queue()
            # Ended before the manager, of whose end they would tell.
            pool = ProcessPoolExecutor(at_once, context, *ends_with_us)
            last.callback(_end, pool, {*active_children()})
            futures = [pool.submit(_in_process, task, words) for task in tasks]
        try:
            _listen(futures, words, watch)
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise ReplayError(
                "a process of the replay was killed, perhaps for want of memory; name fewer"
                " policies at a time"
            ) from None


def _end(pool: ProcessPoolExecutor, others: Set[BaseProcess]) -> None:
    """Of a replay that was stopped, or has failed, nobody computes on to the end."""
    for process in {*active_children()} - others:
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


def _end_with(parent: int) -> None:
    """Have the kernel end this process when its parent dies without a word."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends this process as it would, but its processes and their queues first."""

    def end(*_: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _starting() -> Iterator[None]:
    """A signal comes when all processes are there to be ended. They keep SIGINT blocked: Ctrl-C
    reaches them too, and each would print a traceback of it."""
    resource_tracker.ensure_running()  # it unblocks both when it is first asked for
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _listen(futures: Sequence[Future[Run]], words: Any, watch: Watch) -> None:
    """Pass on what the processes tell until all of them are done. Raises what the first to fail
    has raised."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=TOLD_EVERY, return_when=FIRST_COMPLETED)
        try:
            while True:
                watch(*words.get_nowait())
        except Empty:
            pass
        for future in done:
            future.result()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """The processes share the cores already: none of them uses several for its linear algebra."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _in_process(task: Task, words: Any) -> Run:
    last = 0.0

    def told(now: Seconds, ended: int) -> None:
        nonlocal last
        if monotonic() - last >= TOLD_EVERY:
            last = monotonic()
            words.put((task.name, now, ended))

    run = perform(task, told)
    return run if task.kept else replace(run, experience=Experience())


def _watching(watch: Watch, name: str) -> Callable[[Seconds, int], None]:
    def told(now: Seconds, ended: int) -> None:
        watch(name, now, ended)

    return told
