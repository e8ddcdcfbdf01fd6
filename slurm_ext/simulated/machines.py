"""Nodes and slurmctld that fail and come back."""

from __future__ import annotations

from functools import partial

from ones.slurm_ext.simulated.job import Job
from ones.slurm_ext.simulated.lifecycle import end, leave, requeue, shrink
from ones.slurm_ext.simulated.state import State


def fail_node(state: State, name: str) -> None:
    """The node is gone; slurmctld sees so when it has been silent for SlurmdTimeout."""
    node = state.nodes[name]
    if not node.answers:
        return
    node.answers = False
    wait = state.settings.slurmd_timeout
    state.after((wait, wait * 1.5), partial(_given_up, state, name))


def _given_up(state: State, name: str) -> None:
    node = state.nodes[name]
    if node.answers or not node.up:
        return
    take_down(state, name, "Not responding")


def take_down(state: State, name: str, why: str) -> None:
    """slurmctld takes the node for down: its jobs are requeued where they may be."""
    node = state.nodes[name]
    node.up, node.reason = False, why
    for number in sorted(node.jobs):
        _lose(state, state.jobs[number], name)
    state.touch_nodes([name])
    state.wake()


def _lose(state: State, job: Job, name: str) -> None:
    if job.state not in ("RUNNING", "SUSPENDED"):
        # It was about to leave the node: it has.
        leave(state, job, (name,))
        state.touch(job)
    elif job.no_kill and name != job.nodes[0]:
        shrink(state, job, frozenset(job.nodes) - {name})
    elif job.requeue:
        requeue(state, job, why="NODE_FAIL")
        leave(state, job, (name,))
    else:
        end(state, job, "NODE_FAIL")
        leave(state, job, (name,))


def return_node(state: State, name: str, *, rebooted: bool) -> None:
    """The node answers again; where it was rebooted, the jobs that ran there are gone."""
    node = state.nodes[name]
    if rebooted:
        for number in sorted(node.jobs):
            _lose(state, state.jobs[number], name)
    node.answers = node.up = True
    node.reason = node.reason if node.drained else ""
    state.touch_nodes([name])
    state.wake()


def drain(state: State, name: str, why: str) -> None:
    """No more jobs start there; those that run go on."""
    node = state.nodes[name]
    node.drained, node.reason = True, why
    state.touch_nodes([name])


def resume(state: State, name: str) -> None:
    """Jobs may start there again."""
    node = state.nodes[name]
    node.drained = False
    node.up = node.answers
    node.reason = "" if node.up else node.reason
    state.touch_nodes([name])
    state.wake()
