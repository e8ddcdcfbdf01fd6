"""The life of a job on the simulated Slurm: started, stopped, out, back in the queue, forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ones.slurm_ext.simulated.job import ALIVE, Job
from ones.slurm_ext.simulated.node import Count
from ones.slurm_ext.simulated.state import State

REQUEUED_HELD = "job requeued in held state"
LAUNCH_FAILED = "launch failed requeued held"
ROUNDING = 1e-6
AGAIN = 1.0  # seconds until a node that is silent is asked again whether a job has left it
COMPLETING, CONFIGURING = frozenset({"COMPLETING"}), frozenset({"CONFIGURING"})


def start(state: State, job: Job, counts: Mapping[str, Count]) -> None:
    """Give a pending job its nodes; its batch script runs a moment later."""
    job.parts = {name: state.nodes[name].take(job.id, count) for name, count in counts.items()}
    job.ran_on = tuple(job.parts)
    job.run += 1
    job.state, job.flags, job.reason = "RUNNING", CONFIGURING, "None"
    job.started, job.ended, job.paused, job.absent = state.now, 0.0, 0.0, False
    job.exit_code = job.exit_signal = 0
    state.touch(job)
    state.touch_nodes(job.parts)
    state.accounting.begin(job, state.now)
    refused = state.settings.same_second_fails and int(job.stopped) == int(state.now)
    state.after(state.settings.start, partial(_configured, state, job, job.run, refused))


def _configured(state: State, job: Job, run: int, refused: bool) -> None:
    if not _same_run(job, run) or job.flags != CONFIGURING:
        return
    if refused:
        end(state, job, "FAILED")
        return
    if bad := next((name for name in job.parts if name in state.bad_launchers), ""):
        _launch_failed(state, job, bad)
        return
    job.flags = frozenset()
    state.touch(job)
    state.listener("started", job)
    if job.seconds is not None:
        state.after(job.seconds, partial(_done, state, job, run))
    watch_time_limit(state, job)


def _launch_failed(state: State, job: Job, name: str) -> None:
    """The node could not start the job: it is drained, and the job waits, held, for somebody."""
    state.bad_launchers.discard(name)
    state.nodes[name].drained, state.nodes[name].reason = True, "batch job complete failure"
    state.touch_nodes([name])
    if job.requeue:
        requeue(state, job)
        job.held, job.held_by, job.reason = True, "slurm", LAUNCH_FAILED
    else:
        end(state, job, "FAILED")


def _same_run(job: Job, run: int) -> bool:
    return job.run == run and job.state in ("RUNNING", "SUSPENDED")


def _done(state: State, job: Job, run: int) -> None:
    """A job that was to run for so long has, but for the time that it was suspended."""
    if not _same_run(job, run) or job.seconds is None:
        return
    if job.state == "SUSPENDED":
        state.after(1.0, partial(_done, state, job, run))
        return
    left = job.started + job.seconds + job.paused - state.now
    if left > ROUNDING:
        state.after(left, partial(_done, state, job, run))
    else:
        end(state, job, "COMPLETED")


def watch_time_limit(state: State, job: Job) -> None:
    """End the job when its time is up; called anew when its limit changes."""
    if job.time_limit is not None:
        state.at(_limit_of(job), partial(_time_is_up, state, job, job.run))


def _limit_of(job: Job) -> float:
    assert job.time_limit is not None
    return job.started + job.time_limit + job.paused


def _time_is_up(state: State, job: Job, run: int) -> None:
    if job.run != run or job.state != "RUNNING" or job.time_limit is None:
        return
    if state.now >= _limit_of(job):
        end(state, job, "TIMEOUT")
    else:
        watch_time_limit(state, job)


def end(state: State, job: Job, outcome: str) -> None:
    """The job is over for good, with this state; what it holds is free a moment later."""
    if job.state == "PENDING" and not job.flags:
        job.state, job.ended = outcome, state.now
        job.held_by, job.locked = "", False
        state.touch(job)
        _ended(state, job)
        return
    was_running = job.state != "PENDING"
    job.state, job.ended, job.held_by, job.locked = outcome, state.now, "", False
    if was_running:
        state.accounting.end(job, state.now, outcome)
        _stop(state, job)
    else:
        state.touch(job)  # it was being requeued


def requeue(state: State, job: Job, *, why: str = "REQUEUED") -> None:
    """Stop the run, back into the queue; `why` is what the accounting says of the run."""
    state.accounting.end(job, state.now, why)
    job.state = "PENDING"
    job.reason = job.reason if job.held else "None"
    job.restarts += 1
    _stop(state, job)


def revive(state: State, job: Job) -> None:
    """`scontrol requeue` of a job that has ended: Slurm runs it once more."""
    job.state, job.reason, job.ended = "PENDING", "None", 0.0
    job.restarts += 1
    if not job.flags:
        _back_in_queue(state, job)
    state.touch(job)


def _stop(state: State, job: Job) -> None:
    """End what runs: SIGTERM, and SIGKILL after KillWait where the job does not listen."""
    job.flags = COMPLETING
    state.touch(job)
    state.listener("stopped", job)
    await_end(state, job)


def await_end(state: State, job: Job) -> None:
    """Have what the job holds be free once it has ended there."""
    settings = state.settings
    wait: float | tuple[float, float] = settings.completing
    if job.deaf:
        wait = settings.kill_wait + settings.completing[1]
    state.after(wait, partial(_out, state, job, job.run))


def _out(state: State, job: Job, run: int) -> None:
    """Nothing of the run is left on its nodes."""
    if job.run != run or job.flags != COMPLETING:
        return
    if any(node.up and not node.answers for node in map(state.nodes.__getitem__, job.parts)):
        state.after(AGAIN, partial(_out, state, job, run))
        return
    leave(state, job, job.nodes)
    job.flags, job.stopped = frozenset(), state.now
    if job.state == "PENDING":
        _back_in_queue(state, job)
    else:
        _ended(state, job)
    state.touch(job)
    state.wake()


def _back_in_queue(state: State, job: Job) -> None:
    now = state.now
    job.submitted = now + 1 if int(now) == int(job.submitted) else now
    if job.begin <= now:
        job.begin = now + state.settings.requeue_delay
    job.eligible = job.begin
    job.started, job.ran_on = 0.0, ()
    if not job.held:
        state.at(job.begin, state.wake)
    state.listener("requeued", job)
    state.wake()


def _ended(state: State, job: Job) -> None:
    state.listener("ended", job)
    await_oblivion(state, job)
    state.wake()


def await_oblivion(state: State, job: Job) -> None:
    """Have slurmctld forget the job in a while."""
    state.after(state.settings.min_job_age, partial(_forget, state, job, job.run))


def _forget(state: State, job: Job, run: int) -> None:
    if job.state in ALIVE or job.flags or job.run != run or state.jobs.get(job.id) is not job:
        return
    del state.jobs[job.id]
    state.touch()
    state.listener("forgotten", job)


def leave(state: State, job: Job, nodes: tuple[str, ...]) -> None:
    """Take these nodes away from the job."""
    for name in nodes:
        state.nodes[name].give_back(job.id, job.parts.pop(name))
    state.touch_nodes(nodes)


def shrink(state: State, job: Job, keep: frozenset[str]) -> None:
    """The running job goes on with these of its nodes; what ran on the others is killed at once."""
    leave(state, job, tuple(name for name in job.nodes if name not in keep))
    job.ran_on = job.nodes
    state.accounting.resize(job, state.now)
    state.touch(job)
    state.listener("resized", job)
    state.wake()
