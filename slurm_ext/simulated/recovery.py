"""The state that slurmctld saves every few seconds, and what follows where it goes back to that.

Of what was so between the save and the end of slurmctld nothing is known to the one that comes up:
jobs submitted since are gone and their numbers given again; jobs that were started since wait as
before, and their processes are killed; those that were stopped since are taken for running, until
slurmd says that nothing of them is there. Of one that was still leaving its nodes slurmd says that
its script has ended, and Slurm takes it for failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

from ones.slurm_ext.simulated import machines
from ones.slurm_ext.simulated.job import ALIVE, Job
from ones.slurm_ext.simulated.lifecycle import (
    COMPLETING,
    await_end,
    await_oblivion,
    end,
    requeue,
    watch_time_limit,
)
from ones.slurm_ext.simulated.state import State

RUNS = frozenset({"RUNNING", "SUSPENDED"})
_OF_A_RUN = ("state", "flags", "reason", "parts", "ran_on", "suspended_at", "paused")


@dataclass(frozen=True, slots=True)
class Saved:
    """What slurmctld has on disk: its jobs, and the number of the next one."""

    jobs: Mapping[int, Job]
    next_id: int


def save(state: State) -> Saved:
    """What slurmctld knows of its jobs now."""
    return Saved({number: _copy(job) for number, job in state.jobs.items()}, state.next_id)


def go_back(state: State, saved: Saved) -> None:
    """Take what was saved for what is so. Of nodes and reservations what is so now is kept."""
    leaving = {number for number, job in state.jobs.items() if _put_back_into_the_queue(job)}
    for number in state.jobs.keys() - saved.jobs.keys():
        _forget(state, state.jobs.pop(number))
    for number, before in saved.jobs.items():
        job = state.jobs.setdefault(number, before)
        if job is not before:
            _restore(state, job, before)
    state.next_id = saved.next_id
    for node in state.nodes.values():
        node.clear()
    for number, job in state.jobs.items():
        for name, part in job.parts.items():
            state.nodes[name].put(number, part)
        _go_on(state, job)
        if job.absent and number in leaving:
            state.after(state.settings.completing, partial(_script_ended, state, job, job.run))
    state.touch(*state.jobs.values())
    state.touch_nodes(state.nodes)
    for name, node in state.nodes.items():
        if not node.up:
            machines.take_down(state, name, node.reason)


def _copy(job: Job) -> Job:
    return replace(job, parts=dict(job.parts), _record=None)


def _put_back_into_the_queue(job: Job) -> bool:
    """Whether it is being requeued, and has not left its nodes yet."""
    return job.state == "PENDING" and job.flags == COMPLETING


def _forget(state: State, job: Job) -> None:
    """slurmctld never heard of the job; slurmd kills what it has of it."""
    if job.state in RUNS:
        _kill(state, job)
    job.run += 1
    job.state, job.flags, job.parts = "CANCELLED", frozenset(), {}
    state.listener("forgotten", job)


def _kill(state: State, job: Job) -> None:
    """The processes of a run that slurmctld knows nothing of are ended."""
    state.listener("stopped", job)
    state.accounting.end(job, state.now, "NODE_FAIL")


def _restore(state: State, job: Job, before: Job) -> None:
    runs, ran = job.state in RUNS, before.state in RUNS
    same_run = runs and ran and job.run == before.run and not job.absent
    if runs and not same_run and not job.absent:
        _kill(state, job)
    kept = {name: getattr(job, name) for name in _OF_A_RUN} if same_run else {}
    run = max(job.run, before.run) + (not same_run)
    for each in fields(Job):
        setattr(job, each.name, getattr(before, each.name))
    for name, value in kept.items():
        setattr(job, name, value)
    job.parts = dict(job.parts)
    job.run = run
    job.absent = ran and not same_run


def _go_on(state: State, job: Job) -> None:
    """Have happen what is still to come of the job, whatever was foretold of it."""
    if job.flags == COMPLETING:
        await_end(state, job)
    elif job.absent:
        state.after(state.settings.missed_after, partial(_missed, state, job, job.run))
    elif job.state in RUNS:
        watch_time_limit(state, job)
    elif job.state not in ALIVE:
        await_oblivion(state, job)
    elif job.begin > state.now:
        state.at(job.begin, state.wake)


def _script_ended(state: State, job: Job, run: int) -> None:
    """slurmd has told a slurmctld that knows nothing of the requeue how the script ended."""
    if job.run == run and job.state in RUNS:
        end(state, job, "FAILED")


def _missed(state: State, job: Job, run: int) -> None:
    """slurmd has said that nothing of the job is there."""
    if job.run != run or job.state not in RUNS:
        return
    if job.requeue:
        requeue(state, job, why="NODE_FAIL")
    else:
        end(state, job, "NODE_FAIL")
