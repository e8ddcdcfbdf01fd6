"""Which nodes reservations leave to a job that is to start now, by slurmctld's own rules.

A job that named a reservation runs on its nodes, and while it is active. Every other job has the
nodes that no reservation takes before the job would have ended by its time limit: Slurm starts it
on no others, however soon it would leave them. One whose user a magnetic reservation admits may
have that one's nodes instead, but not some of each.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from ones.slurm_ext.hostlists import fold
from ones.slurm_ext.snapshot import HOLDING, JobRecord, NodeRecord, Reservation, Snapshot
from ones.slurm_ext.tres import licenses_in

DELAY = 180.0  # seconds that a start may come later than it was planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """The nodes among which a job may be started now."""

    nodes: frozenset[str]
    closed: str = ""  # why it may be started nowhere at all; empty: not so


def left_to(job: JobRecord, nodes: frozenset[str], snapshot: Snapshot) -> Open:
    """Of these nodes, which the job could have but for reservations, those that it may have."""
    known, now = snapshot.reservations, snapshot.taken
    if not known and not job.reservation:
        return Open(nodes=nodes)
    if not job.reservation:
        return Open(nodes=_unreserved(job, nodes, snapshot))
    named = [known[name] for name in _names(job) if name in known]
    if not named:
        return Open(nodes=frozenset(), closed=f"Slurm has no reservation {job.reservation[:60]}")
    found = [(each, _inside(job, each, nodes, snapshot)) for each in named]
    may = [(each, inside) for each, inside in found if inside]
    begun = [inside for each, inside in may if _begun(each, now)]
    if begun:
        here = frozenset(job.gpus_on)
        return Open(nodes=next((inside for inside in begun if here and here <= inside), begun[0]))
    if may:
        first = min((each for each, _ in may), key=lambda each: each.start)
        over = first.end <= now
        when = f"ended at {_at(first.end, now)}" if over else f"begins at {_at(first.start, now)}"
        return Open(nodes=frozenset(), closed=f"its {_called(first)} {when}")
    what = "no nodes" if not any(each.nodes for each in named) else "none of the nodes it may use"
    return Open(nodes=frozenset(), closed=f"its {_called(named[0])} has {what}")


def end_of_reservation(job: JobRecord, snapshot: Snapshot) -> float | None:
    """When Slurm ends the running job because its reservation is over; None: it does not."""
    here = frozenset(job.gpus_on)
    ends = [
        own.end
        for name in _names(job)
        if (own := snapshot.reservations.get(name)) is not None
        and here <= own.nodes
        and "FLEX" not in own.flags
    ]
    return max(ends, default=None)


def licenses_kept(job: JobRecord, name: str, snapshot: Snapshot) -> int:
    """Licences that reservations keep from the job, were it started now: whole, for slurmctld
    counts what their own jobs have of them once more."""
    return sum(
        (licenses_in(each.licenses) or {}).get(name, 0)
        for each in snapshot.reservations.values()
        if each.licenses and each.name not in _names(job) and _meets(job, each, snapshot.taken)
    )


def words(job: JobRecord, snapshot: Snapshot) -> list[str]:
    """What reservations have to say to where the job may run, a line for each."""
    found, now = [], snapshot.taken
    for name in _names(job):
        if (own := snapshot.reservations.get(name)) is not None:
            where = fold(own.nodes) or "no nodes"
            since = "" if own.active(now) else f"from {_at(own.start, now)} "
            also = ", and others" if _anywhere(own) else ""
            found.append(f"{_called(own)}: {where}{also} {since}until {_at(own.end, now)}")
        elif job.reservation:
            found.append(f"reservation {name[:60]}: Slurm has none of this name")
    for each in sorted(snapshot.reservations.values(), key=lambda each: (each.start, each.name)):
        if each.name not in _names(job) and _keeps_off(job, each, snapshot):
            soon = "" if each.active(now) else f" from {_at(each.start, now)}"
            until = f"until {_at(each.end, now)}"
            found.append(f"{_called(each)} keeps {fold(each.nodes)}{soon} {until}")
    return found


def oddities(reservations: Mapping[str, Reservation]) -> list[str]:
    """Reservations that bind jobs to no node at all, for operators."""
    return [
        f"{_called(each)} has no nodes: jobs that ask for it wait"
        for each in sorted(reservations.values(), key=lambda each: each.name)
        if not each.nodes and not _anywhere(each)
    ]


def _names(job: JobRecord) -> tuple[str, ...]:
    return tuple(filter(None, job.reservation.split(",")))


def _inside(
    job: JobRecord, own: Reservation, nodes: frozenset[str], snapshot: Snapshot
) -> frozenset[str]:
    """The nodes that the job may have by its reservation, once that is active."""
    if not _anywhere(own):
        nodes &= own.nodes
    if "MAINT" in own.flags:
        return nodes
    others = [
        each
        for each in snapshot.reservations.values()
        if each is not own
        and not each.part
        and ("OVERLAP" not in own.flags or "MAINT" in each.flags)
        and _meets(job, each, snapshot.taken)
    ]
    return _less(nodes, others)


def _unreserved(job: JobRecord, nodes: frozenset[str], snapshot: Snapshot) -> frozenset[str]:
    now = snapshot.taken
    free = _less(nodes, (each for each in snapshot.reservations.values() if _meets(job, each, now)))
    if job.state in HOLDING:
        return free  # one that it is drawn by is named in its record
    for each in snapshot.reservations.values():
        if "MAGNETIC" in each.flags and each.active(now) and each.admits(job.user, job.account):
            inside = _inside(job, each, nodes, snapshot)
            if not free or _vacant(inside, snapshot.nodes):
                return inside or free
    return free


def _keeps_off(job: JobRecord, each: Reservation, snapshot: Snapshot) -> bool:
    drawn = "MAGNETIC" in each.flags and each.admits(job.user, job.account)
    there = [snapshot.nodes[name] for name in each.nodes if name in snapshot.nodes]
    partitions = set(job.partition.split(","))
    return (
        not drawn
        and _meets(job, each, snapshot.taken)
        and any(node.gpus and node.partitions & partitions for node in there)
    )


def _vacant(names: Collection[str], nodes: Mapping[str, NodeRecord]) -> bool:
    return any(nodes[name].gpus > nodes[name].gpus_used for name in names if name in nodes)


def _meets(job: JobRecord, each: Reservation, now: float) -> bool:
    """Whether a job that starts now, or a little later, may still run when it begins."""
    until = inf if job.time_limit is None else now + DELAY + job.time_limit
    return each.start < until and now < each.end


def _less(nodes: frozenset[str], reservations: Iterable[Reservation]) -> frozenset[str]:
    return nodes.difference(*(each.nodes for each in reservations))


def _begun(each: Reservation, now: float) -> bool:
    """Whether its jobs may run; those of a flexible one also before and after."""
    return each.active(now) or "FLEX" in each.flags


def _anywhere(each: Reservation) -> bool:
    """Whether its jobs may run on other nodes, too."""
    return not each.flags.isdisjoint({"FLEX", "ANY_NODES"})


def _called(each: Reservation) -> str:
    return f"reservation {each.name[:60]}"


def _at(when: float, now: float) -> str:
    try:
        there, today = time.localtime(when), time.localtime(now)
    except (OverflowError, OSError, ValueError):
        return "a time that makes no sense"
    same = (there.tm_year, there.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if same else "%Y-%m-%d %H:%M", there)
