"""What a site's rules leave to elastic jobs in a replay: caps on several of them, and nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from ones.policies.caps import least_awaited
from ones.policies.model import Cap, Job, JobId, Seconds, Take
from ones.policies.slurm.limits import Holder, Rules, Source
from ones.policies.slurm.settings import SlurmSettings

Counts = Literal["gpus", "nodes", "jobs", "memory", "licenses"]
Limit = tuple[Holder, Counts]
TAKES: dict[Counts, Take] = {"gpus": Take(gpu=1.0), "nodes": Take(node=1.0), "jobs": Take(each=1.0)}
UNITS = {"gpus": "GPUs", "nodes": "nodes", "jobs": "running jobs", "memory": "MiB of memory"}
# Bounds on what several jobs have together: what they count, and over whose jobs.
TOGETHER: tuple[tuple[str, Counts, Literal["group", "user", "account"]], ...] = (
    ("grp_gpus", "gpus", "group"),
    ("grp_nodes", "nodes", "group"),
    ("grp_jobs", "jobs", "group"),
    ("gpus_per_user", "gpus", "user"),
    ("nodes_per_user", "nodes", "user"),
    ("grp_memory", "memory", "group"),
    ("memory_per_user", "memory", "user"),
    ("memory_per_account", "memory", "account"),
    ("jobs_per_user", "jobs", "user"),
    ("gpus_per_account", "gpus", "account"),
    ("jobs_per_account", "jobs", "account"),
)


@dataclass(slots=True)
class SiteLimits:
    """A site's rules, looked up once for each kind of job."""

    settings: SlurmSettings
    _rules: Rules = field(init=False)
    _bounds: dict[tuple[str, ...], tuple[tuple[Holder, Counts, float], ...]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self._rules = Rules.of(self.settings)

    def stopped(
        self, waiting: Iterable[Job], running: Iterable[Job]
    ) -> dict[JobId, dict[Limit, float]]:
        """The waiting plain jobs that limits would keep from starting though those that run had no
        more than they asked for; and how much of each limit they would have."""
        used = self._used(running)
        found: dict[JobId, dict[Limit, float]] = {}
        for job in waiting:
            over = {
                (holder, counts): asks
                for holder, counts, most in self._of(job)
                if used[holder, counts] + (asks := float(_asked(job, holder, counts))) > most
            }
            if over:
                found[job.id] = over
        return found

    def _used(self, running: Iterable[Job]) -> dict[Limit, float]:
        used: dict[Limit, float] = defaultdict(float)
        for job in running:
            for holder, counts, _ in self._of(job):
                held = _amount(job, holder, counts)
                if counts in ("gpus", "memory"):
                    held = min(held, _asked(job, holder, counts))
                used[holder, counts] += held
        return used

    def caps(
        self,
        jobs: Sequence[Job],
        plain: Iterable[Job],
        stopped: Mapping[JobId, Mapping[Limit, float]],
    ) -> tuple[Cap, ...]:
        """The limits that could keep these jobs from a size, beside what plain ones hold, and those
        for which plain ones are `stopped`."""
        takers: dict[Limit, tuple[float, list[Job]]] = {}
        for job in jobs:
            for holder, counts, most in self._of(job):
                takers.setdefault((holder, counts), (most, []))[1].append(job)
        if not takers:
            return ()
        used, found = self._used(plain), []
        awaited = least_awaited(stopped)
        for (holder, counts), (most, those) in takers.items():
            left = most - used[holder, counts]
            waits = awaited.get((holder, counts))
            takes = {job.id: _take(job, holder, counts) for job in those}
            widest = sum(_widest(job, takes[job.id]) for job in those)
            if waits is not None or widest > left:
                words, held = _words(holder, counts, most), _held(those, holder, counts)
                found.append(
                    Cap(
                        words=words,
                        left=left,
                        takes=takes,
                        held=held,
                        awaited="" if waits is None else f"{words}; job {waits[1]} waits for it",
                        lacks=0.0 if waits is None else waits[0] - (left - sum(held.values())),
                    )
                )
        return tuple(found)

    def _of(self, job: Job) -> tuple[tuple[Holder, Counts, float], ...]:
        key = (job.account, job.user, job.qos, job.partition)
        if key not in self._bounds:
            self._bounds[key] = tuple(self._found(job))
        found = self._bounds[key]
        if not job.licenses:
            return found
        there = dict(self.settings.licenses)
        licenses = ((name, float(there.get(name, 0))) for name, _ in job.licenses)
        return (*found, *((("licence", name), "licenses", most) for name, most in licenses))

    def _found(self, job: Job) -> Iterator[tuple[Holder, Counts, float]]:
        """As Slurm has it: of the QOS the first with the limit, of accounts all up to the root."""
        partitions = self.settings.partitions
        named = [one.qos for one in partitions if one.name == job.partition] or [""]
        sources: tuple[Source, ...] = self._rules.sources(job, named[0])
        for name, counts, scope in TOGETHER:
            for source in sources:
                most = getattr(source.bounds, name)
                if most is None:
                    continue
                holder = getattr(source, scope)
                if holder:
                    yield holder, counts, float(most)
                if source.name == "QOS" or not name.startswith("grp_"):
                    break

    def left_to(self, job: Job, now: Seconds) -> Job:
        """The job with the nodes that reservations leave to it if it were started now."""
        nodes, open_now = job.nodes, True
        ends = now + (inf if job.time_limit is None else job.time_limit)
        for one in self.settings.reservations:
            if one.end <= now:
                continue
            if one.name == job.reservation:
                nodes, open_now = nodes & one.nodes, one.start <= now
            elif one.start < ends:
                nodes -= one.nodes
        if nodes == job.nodes and open_now:
            return job
        why = f"reservation {job.reservation} has not begun" if not open_now else ""
        closed = why or ("" if nodes else "reservations leave it no node")
        return replace(
            job,
            nodes=nodes,
            startable=job.startable and not closed,
            stays=job.stays or (closed if job.placement is not None else ""),
        )


def _asked(job: Job, holder: Holder, counts: Counts) -> float:
    """What it takes at its own request, on as few nodes as it asks for."""
    match counts:
        case "gpus":
            return job.requested
        case "nodes":
            return max(1, job.requested_nodes)
        case "jobs":
            return 1
        case "memory":
            return job.requested_memory
        case "licenses":
            return dict(job.licenses)[holder[1]]


def _amount(job: Job, holder: Holder, counts: Counts) -> float:
    """What it has; its memory grows with its GPUs."""
    if job.placement is None:
        return 0
    match counts:
        case "gpus":
            return job.placement.gpus
        case "nodes":
            return len(job.placement.gpus_on)
        case "memory":
            return job.requested_memory * job.placement.gpus / job.requested
        case _:
            return _asked(job, holder, counts)


def _take(job: Job, holder: Holder, counts: Counts) -> Take:
    if counts == "memory":
        return Take(gpu=job.requested_memory / job.requested)
    return TAKES.get(counts) or Take(once=float(_asked(job, holder, counts)))


def _held(jobs: Iterable[Job], holder: Holder, counts: Counts) -> dict[JobId, float]:
    there = [job for job in jobs if job.placement is not None]
    return {job.id: float(_amount(job, holder, counts)) for job in there}


def _widest(job: Job, take: Take) -> float:
    return take.once + take.each + take.node * len(job.nodes) + take.gpu * job.sizes.most


def _words(holder: Holder, counts: Counts, most: float) -> str:
    whose = " ".join(part for part in holder[1:] if part)
    if counts == "licenses":
        return f"the cluster has {most:g} {whose} licences"
    return f"{holder[0]} {whose} allows {most:g} {UNITS[counts]} together"
