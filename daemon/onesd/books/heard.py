"""What agents have sent since onesd started: the nodes' last word, and what jobs told them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ones.daemon.wire import Checkpoint, Live, NodeReport, Received, Report
from ones.policies.words import lasting
from ones.slurm_ext.snapshot import JobRecord

MISSED_REPORTS = 3  # after so many intervals without one, a node's telemetry is stale


@dataclass(frozen=True, slots=True)
class Told:
    """A message of a job and the node whose agent vouches for it."""

    node: str
    received: Received
    at: float  # when the job said it, by our own clock, should it differ from the node's


class Inbox:
    """Keeps the latest of everything; filled by the API, read by the round, from two threads.

    Agents send full snapshots, so what a restart of onesd loses comes again within one interval.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, tuple[float, NodeReport]] = {}
        self._reports: dict[int, Told] = {}
        self._checkpoints: dict[int, Told] = {}
        self._lives: dict[int, Told] = {}

    def accept(self, report: NodeReport, *, now: float) -> bool:
        """Take a node's report; True when it brings what a move may wait for."""
        news = False
        with self._lock:
            self._nodes[report.node] = (now, report)
            for received in report.received:
                match received.message:
                    case Report(job=job):
                        kept = self._reports
                    case Checkpoint(job=job):
                        kept = self._checkpoints
                    case Live(job=job):
                        kept = self._lives
                before = kept.get(job)
                if before is None or _age(before.received) <= _age(received):
                    age = max(0.0, report.taken - received.at)
                    # Never later than the node itself says: the report may have come late.
                    kept[job] = Told(report.node, received, min(now - age, received.at))
                    if before is not None and _age(before.received) == _age(received):
                        continue  # the same again
                    if kept is self._lives:
                        news |= before is None or before.received.message != received.message
                    else:
                        news |= kept is self._checkpoints
        return news

    def forget_jobs(self, alive: Mapping[int, object]) -> None:
        """Drop the messages of jobs that Slurm no longer lists."""
        with self._lock:
            for kept in (self._reports, self._checkpoints, self._lives):
                for job in [job for job in kept if job not in alive]:
                    del kept[job]

    def reports(self) -> dict[int, Told]:
        with self._lock:
            return dict(self._reports)

    def checkpoints(self) -> dict[int, Told]:
        with self._lock:
            return dict(self._checkpoints)

    def lives(self) -> dict[int, Told]:
        with self._lock:
            return dict(self._lives)

    def live(self, job: int) -> Told | None:
        """The last word of a live job's launcher."""
        with self._lock:
            return self._lives.get(job)

    def node(self, name: str) -> tuple[float, NodeReport] | None:
        """A node's last report, and when it came."""
        with self._lock:
            return self._nodes.get(name)

    def nodes(self) -> dict[str, tuple[float, NodeReport]]:
        with self._lock:
            return dict(self._nodes)

    def links(self, node: str, *, gpus: int) -> frozenset[tuple[int, int]] | None:
        """Which of the node's GPUs, in the order of their numbers, NVLink joins.

        None where that is unknown, or where Slurm has another number of them than the agent.
        """
        with self._lock:
            heard = self._nodes.get(node)
        seen = sorted(heard[1].gpus, key=lambda gpu: gpu.minor) if heard is not None else []
        if len(seen) != gpus or any(gpu.linked is None for gpu in seen):
            return None
        at = {gpu.minor: index for index, gpu in enumerate(seen)}
        pairs = {
            (at[gpu.minor], at[other])
            for gpu in seen
            for other in gpu.linked or ()
            if other in at and gpu.minor < other
        }
        return frozenset(pairs)

    def utilization(self, job: JobRecord, *, now: float) -> float | None:
        """The share of their time for which a job's GPUs worked, on those of its nodes of which
        the agents report and see processes of it; None: on none."""
        parts = {job.id, *(satellite.id for satellite in job.satellites)}
        worked, held = 0.0, 0
        with self._lock:
            heard = [(self._nodes.get(node), gpus) for node, gpus in job.held_on.items()]
        for told, gpus in heard:
            if told is None or _stale(told, now):
                continue
            own = [
                gpu.utilization
                for gpu in told[1].gpus
                if gpu.healthy and gpu.utilization is not None and not parts.isdisjoint(gpu.jobs)
            ]
            if own:
                worked += sum(own)
                held += max(gpus, len(own))  # those without a process do nothing
        return worked / held if held else None

    def silence(self, node: str, *, now: float) -> str:
        """Why this node's state is unknown, or '' when its agent reports.

        Silence is never taken for idleness: nothing new is placed on such a node.
        """
        with self._lock:
            heard = self._nodes.get(node)
        if heard is None:
            return "no ones-agent has reported from it"
        at, report = heard
        if _stale(heard, now):
            return f"its ones-agent has been silent for {lasting(now - at)}"
        if any(not gpu.healthy for gpu in report.gpus):
            lost = ",".join(str(gpu.minor) for gpu in report.gpus if not gpu.healthy)
            return f"GPU {lost} is lost"
        return ""

    def reports_from(self, node: str, *, now: float) -> bool:
        """Whether the node's agent reports as often as it says it does."""
        with self._lock:
            heard = self._nodes.get(node)
        return heard is not None and not _stale(heard, now)


def _stale(heard: tuple[float, NodeReport], now: float) -> bool:
    """Whether a node's last report is too long ago to tell its state."""
    at, report = heard
    return now - at > MISSED_REPORTS * report.interval


def _age(received: Received) -> tuple[int, float]:
    """Later runs are later, whatever the clocks of their nodes say."""
    return received.message.restarts, received.at
