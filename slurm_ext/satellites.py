"""Satellites: ordinary jobs of the same user that hold the GPUs by which a live job has grown.

A job asks for being one in its comment; job_submit.lua looks whether its user may, and marks it
where he can't: `ONES1S:base=12;restarts=0;order=700`. What follows a space is not ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ones.slurm_ext.snapshot import ALIVE, SATELLITE_MARK, JobRecord, Snapshot

_TIE = re.compile(r"base=([0-9]{1,10});restarts=([0-9]{1,10});order=([0-9]{1,15})(?: .*)?", re.S)


@dataclass(frozen=True, slots=True)
class Tie:
    """Whose satellite a job is: of one run of its base, by one order."""

    base: int
    restarts: int
    order: int

    @classmethod
    def of(cls, job: JobRecord) -> Tie | None:
        """None for a job that is no satellite."""
        return cls.read(job.admin_comment)

    @classmethod
    def read(cls, admin_comment: str) -> Tie | None:
        """None where there is no mark of a satellite that can be read."""
        if not admin_comment.startswith(SATELLITE_MARK):
            return None
        match = _TIE.fullmatch(admin_comment.removeprefix(SATELLITE_MARK))
        return None if match is None else cls(int(match[1]), int(match[2]), int(match[3]))


def attach(snapshot: Snapshot) -> Snapshot:
    """The same snapshot, with each running job's satellites at the job."""
    found: dict[int, list[JobRecord]] = {}
    for job in snapshot.jobs.values():
        tie = Tie.of(job)
        if tie is not None and job.state in ALIVE and _belongs(job, tie, snapshot):
            found.setdefault(tie.base, []).append(job)
    if not found:
        return snapshot
    jobs = dict(snapshot.jobs)
    for base, satellites in found.items():
        ordered = sorted(satellites, key=lambda job: job.id)
        jobs[base] = replace(jobs[base], satellites=tuple(ordered))
    return replace(snapshot, jobs=jobs)


def stale(snapshot: Snapshot) -> list[JobRecord]:
    """Satellites of jobs that have ended, were requeued, or aren't elastic any more."""
    return [
        job
        for job in snapshot.jobs.values()
        if job.is_satellite and job.state in ALIVE
        if (tie := Tie.of(job)) is None or not _belongs(job, tie, snapshot)
    ]


def _belongs(job: JobRecord, tie: Tie, snapshot: Snapshot) -> bool:
    base = snapshot.jobs.get(tie.base)
    return (
        base is not None
        and base.marked
        and base.user == job.user
        and base.state in ("RUNNING", "SUSPENDED")
        and base.restarts == tie.restarts
    )
