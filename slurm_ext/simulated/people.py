"""What anybody may do with Slurm's commands: users, operators, administrators, and onesd.

The words of a refusal are Slurm's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.simulated import submission
from ones.slurm_ext.simulated.job import ALIVE, Holder, Job
from ones.slurm_ext.simulated.lifecycle import (
    REQUEUED_HELD,
    end,
    requeue,
    revive,
    watch_time_limit,
)
from ones.slurm_ext.simulated.state import Sent, State
from ones.slurm_ext.simulated.submission import Request
from ones.slurm_ext.simulated.updates import update

ONES = "ones"  # the user as whom onesd runs
RUNS = frozenset({"RUNNING", "SUSPENDED"})


class Person:
    """One user at the command line."""

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self.name = name

    def submit(self, request: Request) -> int:
        """`sbatch`. Raises SlurmError where Slurm or job_submit.lua refuses."""
        self._reach("sbatch")
        return submission.submit(self._state, self.name, request).id

    def cancel(self, number: int) -> None:
        """`scancel`: silent, too, of jobs that have ended or are not known."""
        self._reach("scancel")
        job = self._state.jobs.get(number)
        if job is None:
            return
        if not self._may(job):
            denied = f"Kill job error on job id {number}: Access/permission denied"
            raise SlurmError(f"scancel {number}", denied)
        if job.state in ALIVE:
            self._state.note(self.name, "cancel", job)
            end(self._state, job, "CANCELLED")

    def signal(self, number: int, signal: str, *, script: bool) -> None:
        """`scancel --ctld --signal`, and `--batch` where it is for the script alone.

        Silent, too, of jobs that have ended or are not known.
        """
        command = f"scancel --ctld --signal={signal} {number}"
        self._reach(command)
        job = self._state.jobs.get(number)
        if job is None or job.state not in ALIVE:
            return
        if not self._may(job):
            words = f"Kill job error on job id {number}: Access/permission denied"
            raise SlurmError(command, words)
        if job.state == "PENDING":
            words = "Job can not be altered now, try again later"
            raise SlurmError(command, f"Kill job error on job id {number}: {words}")
        self._state.note(self.name, f"signal {signal}", job)
        if job.state == "RUNNING" and not job.flags and (script or job.own_steps):
            now, restarts = self._state.now, job.restarts
            sent = Sent(at=now, job=number, restarts=restarts, signal=signal, script=script)
            self._state.signals.append(sent)

    def hold(self, number: int) -> None:
        """`scontrol hold`; of a job that runs it strikes when that is requeued."""
        self._hold(number, "hold", lock=True)

    def uhold(self, number: int) -> None:
        """`scontrol uhold`: its owner may release it, whoever held it."""
        self._hold(number, "uhold", lock=False)

    def _hold(self, number: int, word: str, *, lock: bool) -> None:
        job = self._job(number, word)
        owner = job.user == self.name and not self._state.privileged(self.name)
        self._state.note(self.name, word, job)
        if owner and job.locked:
            return  # Slurm agrees, and the job stays an administrator's
        self._take_hold(job)
        job.locked = lock and job.user != self.name
        if job.reason != REQUEUED_HELD:
            job.reason = "JobHeldAdmin" if job.locked else "JobHeldUser"
        if job.state != "PENDING":
            job.eligible = 0.0
        self._state.touch(job)

    def _take_hold(self, job: Job) -> None:
        """A person's hold stays his in truth, though onesd holds the job on top of it."""
        who: Holder = "user" if self.name == job.user else "administrator"
        if self.name != ONES:
            job.held_by = who
        elif not job.held or job.held_by not in ("user", "administrator"):
            job.held_by = "ones"
        job.held = True

    def release(self, number: int) -> None:
        """`scontrol release`: of a job that nobody holds, it does nothing."""
        job = self._job(number, "release")
        if job.locked and not self._state.privileged(self.name):
            raise SlurmError("scontrol release", f"Access/permission denied for job {number}")
        self._state.note(self.name, "release", job)
        if not job.held:
            return
        job.held, job.held_by, job.locked, job.reason = False, "", False, "None"
        job.given = None
        if job.state == "PENDING":
            self._state.at(job.begin, self._state.wake)
        self._state.touch(job)
        self._state.wake()

    def requeue(self, number: int) -> None:
        """`scontrol requeue`: also of a job that has ended, which runs once more."""
        job = self._found(number, "requeue")
        if job.state == "PENDING":
            raise SlurmError("scontrol requeue", f"Job is pending execution for job {number}")
        self._state.note(self.name, "requeue", job)
        if job.state in ALIVE:
            requeue(self._state, job)
        else:
            revive(self._state, job)

    def requeuehold(self, number: int, *, incomplete: bool = True) -> None:
        """`scontrol requeuehold`; with `incomplete` nothing happens to a job that has ended."""
        job = self._found(number, "requeuehold")
        if incomplete and job.state not in RUNS:
            return
        if job.state == "PENDING":
            raise SlurmError("scontrol requeuehold", f"Job is pending execution for job {number}")
        self._state.note(self.name, "requeuehold", job)
        self._take_hold(job)
        if job.state in RUNS:
            requeue(self._state, job)
        else:
            revive(self._state, job)
        job.locked, job.reason = False, REQUEUED_HELD
        self._state.touch(job)

    def suspend(self, number: int) -> None:
        """`scontrol suspend`: the job keeps what it holds."""
        job = self._privileged(number, "suspend")
        if job.state == "SUSPENDED":
            return
        if job.state != "RUNNING" or job.flags:
            raise SlurmError("scontrol suspend", f"{_not_running(job)} for job {number}")
        self._state.note(self.name, "suspend", job)
        job.state, job.suspended_at = "SUSPENDED", self._state.now
        self._state.touch(job)

    def resume(self, number: int) -> None:
        """`scontrol resume`."""
        job = self._privileged(number, "resume")
        if job.state != "SUSPENDED":
            what = "Job is not suspended" if job.state == "RUNNING" else _not_running(job)
            raise SlurmError("scontrol resume", f"{what} for job {number}")
        self._state.note(self.name, "resume", job)
        job.state = "RUNNING"
        job.paused += self._state.now - job.suspended_at
        watch_time_limit(self._state, job)
        self._state.touch(job)

    def update(self, number: int, fields: Mapping[str, str]) -> None:
        """`scontrol update JobId=...`: all of it, or none."""
        command = f"scontrol update JobId={number}"
        self._reach(command)
        job = self._state.jobs.get(number)
        if job is None:
            words = f"Could not load state information for job {number}: Invalid job id specified"
            raise SlurmError(command, words)
        if not self._may(job):
            raise SlurmError(command, f"Invalid user id for job {number}")
        self._state.note(self.name, "update " + ",".join(fields), job)
        update(self._state, job, fields, command, root=self.name in self._state.administrators)

    def _reach(self, command: str) -> None:
        if self._state.down:
            words = "Unable to contact slurm controller (connect failure); see `scontrol ping`"
            raise SlurmUnreachable(command, words)

    def _may(self, job: Job) -> bool:
        return job.user == self.name or self._state.privileged(self.name)

    def _found(self, number: int, word: str) -> Job:
        """A job that may be stopped and put back by this user."""
        command = f"scontrol {word}"
        self._reach(command)
        job = self._state.find(number, command)
        if not self._may(job):
            raise SlurmError(command, f"Access/permission denied for job {number}")
        if not job.requeue:
            raise SlurmError(command, f"Requested operation is presently disabled for job {number}")
        return job

    def _job(self, number: int, word: str) -> Job:
        """A job that has not ended and may be held by this user."""
        command = f"scontrol {word}"
        self._reach(command)
        job = self._state.find(number, command)
        if not self._may(job):
            raise SlurmError(command, f"Invalid user id for job {number}")
        if job.state not in ALIVE:
            raise SlurmError(command, f"Job has already finished for job {number}")
        return job

    def _privileged(self, number: int, word: str) -> Job:
        command = f"scontrol {word}"
        self._reach(command)
        job = self._state.find(number, command)
        if not self._state.privileged(self.name):
            raise SlurmError(command, f"Access/permission denied for job {number}")
        return job


def _not_running(job: Job) -> str:
    return "Job is pending execution" if job.state == "PENDING" else "Job has already finished"
