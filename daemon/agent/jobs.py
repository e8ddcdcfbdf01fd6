"""What the agent knows of the jobs on its node: their processes, their last words, their pace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ones.daemon.agent.attribution import Process
from ones.daemon.agent.messages import Refused
from ones.daemon.pace import Pace
from ones.daemon.wire import Checkpoint, Lease, Live, Received, Report

MOST_JOBS = 1024
MOST_PROCESSES = 1024  # watched of one job
KEPT_AFTER_END = 60.0  # seconds that an ended job's last words go on being sent
KEPT_UNSENT = 3600.0  # the same while the controller does not hear us


@dataclass(slots=True)
class Job:
    """One job with processes on this node, now or until just now."""

    seen: float  # when it last had a process or a word
    processes: set[Process] = field(default_factory=set)
    fresh: bool = True  # nothing was yet given to its present run
    lease: Lease | None = None  # of the present run
    report: Received | None = None
    checkpoint: Received | None = None
    live: Received | None = None
    unsent: bool = False
    reports: Pace = field(default_factory=lambda: Pace(rate=10, burst=20, tokens=20))
    checkpoints: Pace = field(default_factory=lambda: Pace(rate=1, burst=5, tokens=5))
    lives: Pace = field(default_factory=lambda: Pace(rate=5, burst=20, tokens=20))


class Jobs:
    """The jobs of one node. Times are seconds, from whoever calls."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def __contains__(self, job: int) -> bool:
        return job in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def begin(self, job: int, process: Process | None, *, now: float) -> bool:
        """A step of the job starts here; True for the first of a run.

        The job may run at another size now: what the last run was given holds no longer.
        """
        known = self._job(job, now)
        first, known.fresh = known.fresh, False
        if first:
            known.lease = None
        if process is not None:
            known.processes.add(process)
        return first

    def alive(self, job: int) -> bool:
        """Whether the job has a process here."""
        known = self._jobs.get(job)
        return known is not None and bool(known.processes)

    def lease(self, job: int) -> Lease | None:
        known = self._jobs.get(job)
        return None if known is None else known.lease

    def learn(self, lease: Lease) -> None:
        if lease.job in self._jobs:
            self._jobs[lease.job].lease = lease

    def see(self, jobs: Mapping[int, Iterable[Process]], *, now: float) -> None:
        """These processes of these jobs are here."""
        for job, processes in jobs.items():
            self._watch(self._job(job, now), processes)

    def hear(
        self,
        received: Received,
        *,
        now: float,
        process: Process | None = None,
        unpaced: bool = False,
    ) -> bool:
        """Take a message; True when it tells what onesd waits for. Raises Refused: too fast."""
        known = self._job(received.message.job, now)
        if process is not None:
            self._watch(known, [process])
        match received.message:
            case Report() as report:
                _keep_pace(known.reports, "reports", now, unpaced=unpaced)
                before = known.report
                known.report, known.unsent = received, True
                # Until onesd knows, it may ask who does not listen any more.
                return _may_be_asked(before) and not report.checkpoints
            case Checkpoint() as checkpoint:
                _keep_pace(known.checkpoints, "checkpoints", now, unpaced=unpaced)
                before = known.checkpoint
                known.checkpoint, known.unsent = received, True
                return before is None or before.message != checkpoint
            case Live() as live:
                _keep_pace(known.lives, "words on live resizing", now, unpaced=unpaced)
                before = known.live
                known.live, known.unsent = received, True
                return before is None or before.message != live

    def bury(self, alive: Callable[[Process], bool], *, now: float) -> list[int]:
        """Drop the processes that have gone; the jobs whose last process went now."""
        ended = []
        for number, known in self._jobs.items():
            if not known.processes:
                continue
            known.processes = {process for process in known.processes if alive(process)}
            if known.processes:
                known.seen = now
            else:
                known.fresh = True
                ended.append(number)
        return ended

    def received(self) -> tuple[Received, ...]:
        """Every job's last messages, one of each kind."""
        return tuple(self._messages())

    def sent(self, received: Iterable[Received]) -> None:
        """The controller has these."""
        heard = {id(message) for message in received}
        for known in self._jobs.values():
            messages = _messages(known)
            if all(id(message) in heard for message in messages):
                known.unsent = False

    def forget(self, *, now: float) -> list[int]:
        """Drop the jobs that ended a while ago and need no more telling of; which they were."""
        gone = [
            number
            for number, known in self._jobs.items()
            if not known.processes
            and now - known.seen > (KEPT_UNSENT if known.unsent else KEPT_AFTER_END)
        ]
        for number in gone:
            del self._jobs[number]
        return gone

    def _messages(self) -> Iterator[Received]:
        for known in self._jobs.values():
            yield from _messages(known)

    def _job(self, job: int, now: float) -> Job:
        known = self._jobs.get(job)
        if known is None:
            if len(self._jobs) >= MOST_JOBS:
                quiet = min(self._jobs, key=lambda each: self._standing(self._jobs[each]))
                del self._jobs[quiet]
            known = self._jobs[job] = Job(seen=now)
        known.seen = now
        return known

    @staticmethod
    def _standing(known: Job) -> tuple[bool, float]:
        return bool(known.processes), known.seen

    @staticmethod
    def _watch(known: Job, processes: Iterable[Process]) -> None:
        for process in processes:
            if len(known.processes) < MOST_PROCESSES:
                known.processes.add(process)


def _messages(known: Job) -> list[Received]:
    every = (known.report, known.checkpoint, known.live)
    return [each for each in every if each is not None]


def _may_be_asked(report: Received | None) -> bool:
    """Whether onesd may take the job for one that saves when asked, by its last report."""
    message = None if report is None else report.message
    return not isinstance(message, Report) or message.checkpoints


def _keep_pace(pace: Pace, what: str, now: float, *, unpaced: bool) -> None:
    if not unpaced and not pace.take(now):
        raise Refused("too_fast", f"more than {pace.rate:g} {what} a second; send fewer")
