"""The main scheduler of the simulated Slurm, and its backfill."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ones.slurm_ext.simulated.fit import fit
from ones.slurm_ext.simulated.job import Job, gpus_asked
from ones.slurm_ext.simulated.lifecycle import start
from ones.slurm_ext.simulated.limits import (
    MAY_BE_RESERVED,
    Totals,
    against,
    depends,
)
from ones.slurm_ext.simulated.node import Count, Room
from ones.slurm_ext.simulated.reserving import drawn, fenced_off, magnets, own_of
from ones.slurm_ext.simulated.state import State
from ones.slurm_ext.snapshot import Reservation

NODES_DOWN = (
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
)


def watch(state: State) -> None:
    """Let both schedulers look at the queue whenever something has changed."""
    state.every(state.settings.schedule, lambda: main(state))
    state.every(state.settings.backfill, lambda: backfill(state))


def queue(state: State) -> list[Job]:
    """The pending jobs that nobody holds, as Slurm tries them."""
    waiting = [
        job
        for job in state.jobs.values()
        if job.state == "PENDING" and not job.held and not job.flags
    ]
    waiting.sort(key=lambda job: (-state.partitions[job.partition].priority, -job.rank, job.id))
    return waiting


def main(state: State) -> None:
    """Start what fits, in order; behind a job that lacks room its whole partition waits.

    A job that names all its nodes makes others wait for these only.
    """
    totals: Totals | None = None
    blocked: set[str] = set()
    taken: set[str] = set()
    suited = Suited(state)
    for job in queue(state):
        totals = totals or Totals.of(state)
        where = candidates(state, job, totals, suited)
        if isinstance(where, str):
            reason(state, job, where)
            continue
        if job.partition in blocked:
            reason(state, job, "Priority")
            continue
        rooms = {name: state.nodes[name].room() for name in where if name not in taken}
        counts = fit(job.wants, rooms, memory_per_cpu=job.memory_per_cpu)
        if counts is not None:
            _begin(state, job, counts)
            totals.add(state, job, *_sums(counts))
            continue
        if not _ever_fits(state, job):
            job.held, job.held_by, job.locked = True, "slurm", False
            reason(state, job, "BadConstraints")
            continue
        reason(state, job, _why(state, job, where))
        if len(job.wants.required) >= job.wants.nodes[0] > 0:
            taken |= {*job.wants.required}
        else:
            blocked.add(job.partition)


class Suited:
    """The nodes that jobs may have, as they are while the queue is gone through."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[tuple[str, str, frozenset[str]], tuple[str, ...]] = {}

    def of(self, job: Job) -> tuple[str, ...]:
        """Those on which Slurm starts jobs, of what suits this one."""
        asks = job.partition, job.wants.features, frozenset(job.wants.excluded)
        if asks not in self._known:
            nodes = self._state.nodes
            self._known[asks] = tuple(
                name for name in _suited(self._state, job) if nodes[name].usable
            )
        return self._known[asks]


def candidates(state: State, job: Job, totals: Totals, suited: Suited) -> tuple[str, ...] | str:
    """The nodes on which the job may start now, or Slurm's reason why it may not at all."""
    if job.begin > state.now:
        return "BeginTime"
    if waits := depends(state, job):
        return waits
    if not job.eligible:
        job.eligible = state.now
        state.touch(job)
    partition = state.partitions[job.partition]
    if partition.state in ("DOWN", "INACTIVE"):
        return f"Partition{partition.state.capitalize()}"
    if partition.max_time is not None and (job.time_limit or float("inf")) > partition.max_time:
        return "PartitionTimeLimit"
    if partition.max_nodes is not None and job.wants.nodes[0] > partition.max_nodes:
        return "PartitionNodeLimit"
    if limited := against(state, job, totals):
        return limited
    own, waits = own_of(state, job)
    if waits:
        return waits
    for each in own or magnets(state, job):
        where = _usable(state, job, each, suited)
        if _required_among(job, where) and _fits_now(state, job, where):
            return where
    where = _usable(state, job, own[0] if own else None, suited)
    if _required_among(job, where):
        return where
    if not _ever_fits(state, job):
        return where
    return "Reservation" if own else MAY_BE_RESERVED


def _usable(state: State, job: Job, own: Reservation | None, suited: Suited) -> tuple[str, ...]:
    fence, names = fenced_off(state, job, own), suited.of(job)
    return tuple(name for name in names if name not in fence) if fence else names


def _required_among(job: Job, names: tuple[str, ...]) -> bool:
    return all(name in names for name in job.wants.required[: max(job.wants.nodes)])


def _fits_now(state: State, job: Job, names: tuple[str, ...]) -> bool:
    rooms = {name: state.nodes[name].room() for name in names}
    return fit(job.wants, rooms, memory_per_cpu=job.memory_per_cpu) is not None


def _begin(state: State, job: Job, counts: dict[str, Count]) -> None:
    job.drawn = drawn(state, job, counts)
    start(state, job, counts)


def _suited(state: State, job: Job) -> Iterable[str]:
    """The nodes of its partition that it does not exclude and that have its features."""
    wanted = _features(job.wants.features)
    excluded = job.wants.excluded
    return (
        name
        for name, node in state.nodes.items()
        if job.partition in node.partitions
        and name not in excluded
        and (not wanted or any(one <= node.spec.features for one in wanted))
    )


def _features(text: str) -> tuple[frozenset[str], ...]:
    if not text:
        return ()
    if "|" in text:
        return tuple(frozenset({name}) for name in text.split("|"))
    return (frozenset(re.split("[&,]", text)),)


def _sums(counts: Mapping[str, Count]) -> tuple[int, int]:
    """The GPUs and the memory of all nodes."""
    gpus = sum(count.gpus for count in counts.values())
    return gpus, sum(count.memory for count in counts.values())


def _empty(state: State, name: str) -> Room:
    spec = state.nodes[name].spec
    return Room(spec.gpu_type, spec.gpus, spec.shards_per_gpu, spec.cpus, spec.memory)


def _ever_fits(state: State, job: Job) -> bool:
    """Whether the job would fit its partition if all of that were up and empty."""
    rooms = {name: _empty(state, name) for name in _suited(state, job)}
    return fit(job.wants, rooms, memory_per_cpu=job.memory_per_cpu) is not None


def _why(state: State, job: Job, where: tuple[str, ...]) -> str:
    rooms = {name: _empty(state, name) for name in where}
    possible = fit(job.wants, rooms, memory_per_cpu=job.memory_per_cpu) is not None
    return "Resources" if possible else NODES_DOWN


def reason(state: State, job: Job, why: str) -> None:
    """Why the job does not start, as squeue shows it."""
    if job.reason != why:
        job.reason = why
        state.touch(job)


@dataclass(frozen=True, slots=True)
class _Use:
    """What is taken of a node until, or between, two times."""

    begin: float
    end: float
    counts: dict[str, Count]
    gpus: int

    @classmethod
    def of(cls, begin: float, end: float, counts: dict[str, Count]) -> _Use:
        return cls(begin, end, counts, sum(count.gpus for count in counts.values()))


def backfill(state: State) -> None:
    """Start lower jobs early where, by all time limits, no higher one starts later for it."""
    waiting = queue(state)
    if len(waiting) < 2:
        return
    totals, suited = Totals.of(state), Suited(state)
    now = state.now
    running = (job for job in state.jobs.values() if job.parts)
    uses = [_Use.of(now, _ends(job, now), _counts(job)) for job in running]
    all_gpus = sum(node.spec.gpus for node in state.nodes.values())
    for job in waiting[: state.settings.backfill_depth]:
        where = candidates(state, job, totals, suited)
        if isinstance(where, str):
            continue
        length = float("inf") if job.time_limit is None else job.time_limit
        asked = gpus_asked(job.wants)
        for at in sorted({now, *(use.end for use in uses if now < use.end < float("inf"))}):
            beside = [use for use in uses if use.begin < at + length and at < use.end]
            # What holds at the very time is quickly counted, and most often says no.
            if asked > all_gpus - sum(use.gpus for use in beside if use.begin <= at):
                continue
            rooms = {name: _empty(state, name) for name in where}
            _take(rooms, beside)
            counts = fit(job.wants, rooms, memory_per_cpu=job.memory_per_cpu)
            if counts is None:
                continue
            if at == now:
                real = {name: state.nodes[name].room() for name in counts}
                counts = fit(job.wants, real, memory_per_cpu=job.memory_per_cpu)
                if counts is None:
                    continue
                _begin(state, job, counts)
                totals.add(state, job, *_sums(counts))
            uses.append(_Use.of(at, at + length, counts))
            break


def _ends(job: Job, now: float) -> float:
    """When what the job holds is free, by its time limit at the latest."""
    if job.state not in ("RUNNING", "SUSPENDED"):
        return now + 1.0
    if job.time_limit is None:
        return float("inf")
    return max(now + 1.0, job.started + job.time_limit + job.paused)


def _counts(job: Job) -> dict[str, Count]:
    # A GPU in shards is taken for a whole one.
    return {name: Count(part.count, 0, part.cpus, part.memory) for name, part in job.parts.items()}


def _take(rooms: dict[str, Room], uses: Iterable[_Use]) -> None:
    for use in uses:
        for name, count in use.counts.items():
            room = rooms.get(name)
            if room is not None:
                room.gpus -= count.gpus + (count.shards > 0)
                room.cpus -= count.cpus
                room.memory -= count.memory
                room.shards = room.shards if room.gpus > 0 else 0
