"""Replays of one trace under several policies, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from time import monotonic, process_time
from typing import Any

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
    with (
        _one_thread_each(),
        context.Manager() as manager,
        ProcessPoolExecutor(at_once, context) as pool,
    ):
        words = manager.Queue()
        futures = [pool.submit(_in_process, task, words) for task in tasks]
        try:
            _listen(futures, words, watch)
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise ReplayError(
                "a process of the replay was killed, perhaps for want of memory; name fewer"
                " policies at a time"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _listen(futures: Sequence[Future[Run]], words: Any, watch: Watch) -> None:
    """Pass on what the processes tell until all of them are done, or one has failed."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=TOLD_EVERY, return_when=FIRST_COMPLETED)
        try:
            while True:
                watch(*words.get_nowait())
        except Empty:
            pass
        if any(future.exception() is not None for future in done):
            return


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

    return replace(perform(task, told), experience=Experience())  # which only `perform` hands on


def _watching(watch: Watch, name: str) -> Callable[[Seconds, int], None]:
    def told(now: Seconds, ended: int) -> None:
        watch(name, now, ended)

    return told
