"""The memory of the simulated slurmctld, its clock, and what is to happen when."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Literal

from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.simulated.accounting import Accounting
from ones.slurm_ext.simulated.job import ALIVE, Holder, Job
from ones.slurm_ext.simulated.node import Node
from ones.slurm_ext.simulated.settings import (
    Account,
    PartitionSpec,
    Qos,
    Settings,
    Site,
)
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Reservation

Happening = Literal["submitted", "started", "resized", "stopped", "ended", "requeued", "forgotten"]
Listener = Callable[[Happening, Job], None]
DEEDS = 10_000  # remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What somebody did to a job, and who held it before: the truth that invariants look at."""

    at: float
    by: str
    what: str  # the command
    job: int
    held_by: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A signal that has reached a run of a job."""

    at: float
    job: int
    restarts: int
    signal: str
    script: bool


class State:
    """Jobs, nodes and rules; times are seconds of the world's own clock."""

    def __init__(self, site: Site, settings: Settings, rng: Random, *, now: float) -> None:
        self.site = site
        self.settings = settings
        self.rng = rng
        self.now = now
        self.users = dict(site.users)
        self.operators = set(site.operators)
        self.administrators = set(site.administrators)
        self.partitions: dict[str, PartitionSpec] = {each.name: each for each in site.partitions}
        self.qos: dict[str, Qos] = {each.name: each for each in site.qos}
        self.accounts: dict[str, Account] = {each.name: each for each in site.accounts}
        self.reservations: dict[str, Reservation] = {}
        self.licenses = dict(site.licenses)
        self.nodes = {spec.name: Node(spec, self._partitions_of(spec.name)) for spec in site.nodes}
        self.rank = {name: at for at, name in enumerate(self.nodes)}
        self.jobs: dict[int, Job] = {}
        self.accounting = Accounting()
        self.deeds: deque[Deed] = deque(maxlen=DEEDS)
        self.signals: deque[Sent] = deque(maxlen=DEEDS)
        self.listener: Listener = lambda _what, _job: None
        self.holds_new_jobs: Callable[[], bool] = lambda: False  # as the heartbeat says
        self.bad_launchers: set[str] = set()  # nodes that can't start the next job
        self.down = False  # slurmctld
        self.booted = now  # when it was started
        self._deferred: list[Callable[[], None]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._counted = 0
        self.next_id = settings.first_id
        self._wakers: list[tuple[float, Callable[[], None]]] = []
        self._awake: set[int] = set()
        self._job_records: Mapping[int, JobRecord] | None = None
        self._node_records: Mapping[str, NodeRecord] | None = None

    def _partitions_of(self, node: str) -> frozenset[str]:
        return frozenset(
            each.name for each in self.site.partitions if not each.nodes or node in each.nodes
        )

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Something that slurmctld does at this time, or, where it is down, once it is back."""
        self.outside(time, lambda: self._deferred.append(action) if self.down else action())

    def outside(self, time: float, action: Callable[[], None]) -> None:
        """Something that happens at this time, whether slurmctld is there or not."""
        self._counted += 1
        heapq.heappush(self._events, (max(time, self.now), self._counted, action))

    def after(self, delay: float | tuple[float, float], action: Callable[[], None]) -> None:
        seconds = delay if isinstance(delay, float | int) else self.rng.uniform(*delay)
        self.at(self.now + seconds, action)

    def advance(self, until: float) -> None:
        """Let the time go on; what is due happens in its order."""
        events = self._events
        while events and events[0][0] <= until:
            time, _, action = heapq.heappop(events)
            self.now = max(self.now, time)
            action()
        self.now = max(self.now, until)

    def restart(self) -> None:
        """slurmctld is back with what it knew, and catches up."""
        self.down, self.booted = False, self.now
        waiting, self._deferred = self._deferred, []
        for action in waiting:
            self.at(self.now, action)
        self.wake()

    def every(self, interval: float, action: Callable[[], None]) -> None:
        """Do this at most so often, and only once something has changed (`wake`)."""
        self._wakers.append((interval, action))

    def wake(self) -> None:
        """Something has changed that may let a job start."""
        for index, (interval, action) in enumerate(self._wakers):
            if index not in self._awake:
                self._awake.add(index)
                due = (ceil(self.now / interval) if interval else 0) * interval
                self.at(due if due > self.now else self.now + interval, self._waker(index, action))

    def _waker(self, index: int, action: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            self._awake.discard(index)
            action()

        return run

    def touch(self, *jobs: Job) -> None:
        """These jobs have changed."""
        for job in jobs:
            job.forget_record()
        self._job_records = None

    def touch_nodes(self, names: Iterable[str]) -> None:
        """These nodes have changed."""
        for name in names:
            self.nodes[name].forget_record()
        self._node_records = None

    def job_records(self) -> Mapping[int, JobRecord]:
        """All jobs as Slurm reports them: the same object until something changes."""
        if self._job_records is None:
            self._job_records = {number: job.record() for number, job in self.jobs.items()}
        return self._job_records

    def node_records(self) -> Mapping[str, NodeRecord]:
        """All nodes as Slurm reports them: the same object until something changes."""
        if self._node_records is None:
            self._node_records = {name: node.record() for name, node in self.nodes.items()}
        return self._node_records

    def new_id(self) -> int:
        """The next job id that no job in slurmctld's memory has. Raises SlurmError without one."""
        first, last = self.settings.first_id, self.settings.last_id
        for _ in range(len(self.jobs) + 1):
            number = self.next_id
            self.next_id = first if number >= last else number + 1
            if number not in self.jobs:
                return number
        raise SlurmError("sbatch", "Batch job submission failed: Unspecified error")

    def find(self, number: int, command: str) -> Job:
        """Raises SlurmError as Slurm does where it knows no such job."""
        job = self.jobs.get(number)
        if job is None:
            raise SlurmError(command, f"Invalid job id specified for job {number}")
        return job

    def alive(self) -> Iterable[Job]:
        return [job for job in self.jobs.values() if job.state in ALIVE]

    def privileged(self, user: str) -> bool:
        """Whether Slurm lets this user do to others' jobs what their owners may."""
        return user in self.operators or user in self.administrators

    def note(self, by: str, what: str, job: Job) -> None:
        self.deeds.append(Deed(at=self.now, by=by, what=what, job=job.id, held_by=job.held_by))
