"""What a round came to, as records, views and metrics read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ones.policies.guard import Move
from ones.policies.model import Job, JobId, Placement, Problem
from ones.slurm_ext.snapshot import Snapshot

NOTHING = Snapshot(taken=0.0, jobs={}, nodes={}, switches={})  # before Slurm was first read


@dataclass(frozen=True, slots=True)
class Decision:
    """What a round decided about one job, and what became of it."""

    job: JobId
    kind: str
    gpus: int  # it holds now
    target: Placement | None
    batch: int | None
    reason: str
    verdict: str

    @classmethod
    def of(cls, move: Move, job: Job, verdict: str) -> Decision:
        return cls(
            job=move.job,
            kind=move.kind,
            gpus=job.placement.gpus if job.placement else 0,
            target=move.target,
            batch=move.batch,
            reason=move.reason,
            verdict=verdict,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A finished round, as the views read it; never edited, only replaced."""

    number: int
    at: float
    seconds: float
    outcome: str
    snapshot: Snapshot
    jobs: tuple[Job, ...] = ()
    problem: Problem | None = None
    decisions: tuple[Decision, ...] = ()
    notes: Mapping[JobId, str] = field(default_factory=dict)  # why a job gets nothing now
    ignored: Mapping[int, str] = field(default_factory=dict)  # marked, but can't be handled
    gap: float | None = None  # of the plan to the best possible one, where the policy knows it
