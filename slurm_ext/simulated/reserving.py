"""Reservations of the simulated Slurm: what they keep from whom, and what their end does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import inf

from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.simulated.job import ALIVE, Job
from ones.slurm_ext.simulated.lifecycle import end
from ones.slurm_ext.simulated.state import State
from ones.slurm_ext.snapshot import Reservation

CHECKED = 30.0  # seconds, at most, from a reservation's end to that of the jobs in it
HELD_BY_ADMINISTRATOR = "JobHeldAdmin"
RUNS = ("RUNNING", "SUSPENDED")


def reserve(state: State, new: Reservation) -> None:
    """`scontrol create reservation`. Raises SlurmError."""
    command = "scontrol create reservation"
    if not new.nodes <= state.nodes.keys():
        raise SlurmError(command, "Invalid node name specified")
    for each in state.reservations.values():
        apart = new.end <= each.start or each.end <= new.start or new.nodes.isdisjoint(each.nodes)
        lenient = new.flags | each.flags
        if not apart and each.name != new.name and lenient.isdisjoint({"OVERLAP", "MAINT"}):
            raise SlurmError(command, "Requested reservation overlaps with another reservation")
    if "IGNORE_JOBS" not in new.flags and any(_runs_into(state, new)):
        raise SlurmError(command, "Requested nodes are busy")
    state.reservations[new.name] = new
    for at in (new.start, new.end):
        if at < inf:
            state.at(at, partial(look, state))
    look(state)


def _runs_into(state: State, new: Reservation) -> Iterable[Job]:
    for name in new.nodes:
        for number in state.nodes[name].jobs:
            job = state.jobs[number]
            limit = inf if job.time_limit is None else job.started + job.paused + job.time_limit
            if new.start < limit:
                yield job


def look(state: State) -> None:
    """What has begun or ended by now shows on the nodes, and on the jobs."""
    for over in [each for each in state.reservations.values() if each.end <= state.now]:
        free(state, over.name)
    flags: dict[str, set[str]] = {name: set() for name in state.nodes}
    for each in state.reservations.values():
        if each.active(state.now):
            for name in each.nodes:
                flags[name] |= {"RESERVED"} | ({"MAINTENANCE"} & _maintenance(each))
    changed = [name for name, found in flags.items() if found != state.nodes[name].reserved]
    for name in changed:
        state.nodes[name].reserved = frozenset(flags[name])
    state.touch_nodes(changed)
    state.wake()


def _maintenance(each: Reservation) -> set[str]:
    return {"MAINTENANCE"} if "MAINT" in each.flags else set()


def free(state: State, name: str) -> None:
    """A reservation is over, or was deleted: its jobs end, or are held for somebody to look."""
    over = state.reservations.pop(name, None)
    if over is None:
        return
    for job in list(state.jobs.values()):
        if name not in (*job.reservation.split(","), job.drawn):
            continue
        if job.state in RUNS and "FLEX" not in over.flags:
            state.after((1.0, CHECKED), partial(_end, state, job, job.run, over))
        else:
            _without(state, job, over)
    look(state)


def _without(state: State, job: Job, over: Reservation) -> None:
    """The job is in this reservation no more; where it waits in no other, Slurm holds it."""
    before = job.reservation
    job.reservation = ",".join(each for each in before.split(",") if each != over.name)
    alone = bool(before) and not job.reservation and job.state == "PENDING"
    held_already = job.reason == HELD_BY_ADMINISTRATOR or "NO_HOLD_JOBS_AFTER_END" in over.flags
    if alone and not held_already:
        job.held, job.held_by, job.reason = True, "slurm", f"Reservation {over.name} was deleted"
    state.touch(job)


def _end(state: State, job: Job, run: int, over: Reservation) -> None:
    if job.run == run and job.state in RUNS:
        end(state, job, "TIMEOUT")
    elif job.state in ALIVE:
        _without(state, job, over)


def own_of(state: State, job: Job) -> tuple[tuple[Reservation, ...], str]:
    """The reservations in which a job that named some may start now, or why it may not at all."""
    names = [name for name in job.reservation.split(",") if name]
    found = [state.reservations[name] for name in names if name in state.reservations]
    if not found:
        return (), "ReservationDeleted" if names else ""
    begun = tuple(each for each in found if each.active(state.now) or "FLEX" in each.flags)
    return begun, "" if begun else "Reservation"


def magnets(state: State, job: Job) -> tuple[Reservation, ...]:
    """The reservations that draw a job which named none."""
    return tuple(
        each
        for each in state.reservations.values()
        if "MAGNETIC" in each.flags
        and each.active(state.now)
        and each.admits(job.user, job.account)
        and not job.reservation
    )


def drawn(state: State, job: Job, nodes: Iterable[str]) -> str:
    """The magnetic reservation that a job which starts there is in, or ''."""
    there = set(nodes)
    return next((each.name for each in magnets(state, job) if there <= each.nodes), "")


def fenced_off(state: State, job: Job, own: Reservation | None) -> frozenset[str]:
    """Nodes that reservations keep from a job before it would have ended."""
    now = state.now
    until = inf if job.time_limit is None else now + job.time_limit
    fence: set[str] = set()
    for each in state.reservations.values():
        spared = own is not None and (
            each is own
            or "MAINT" in own.flags
            or ("OVERLAP" in own.flags and "MAINT" not in each.flags)
        )
        if not spared and each.start < until and now < each.end:
            fence |= each.nodes
    if own is not None and "FLEX" not in own.flags:
        fence |= state.nodes.keys() - own.nodes
    return frozenset(fence)
