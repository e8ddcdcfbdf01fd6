"""What a round came to, as records, views and metrics read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ones.policies.model import Job, JobId, Placement, Problem
from ones.policies.moves import Move
from ones.policies.pace import Ends
from ones.policies.prospects import Prospects
from ones.policies.rigid import Rigid
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

    @property
    def gpus_after(self) -> int:
        """What it is to hold then."""
        if self.target is not None:
            return self.target.gpus
        return 0 if self.kind == "preempt" else self.gpus

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
    prospects: Prospects | None = None  # what would have to change for those that wait
    ends: Ends | None = None  # when jobs end, and would were no job elastic
    ignored: Mapping[int, str] = field(default_factory=dict)  # marked, but can't be handled
    disorder: str = ""  # what is not known of Slurm's order, with what is done without it
    doubts: Mapping[int, str] = field(default_factory=dict)
    """Held jobs of which nobody can tell for whom they wait, with what to do."""
    unlimited: tuple[str, ...] = ()  # what is not known of the site's limits, and why
    left_out: Mapping[JobId, str] = field(default_factory=dict)  # no plan could be made with them
    fault: str = ""  # why no plan could be made at all
    rigid: Rigid | None = None  # what Slurm would have done by now, were elastic jobs rigid
    gap: float | None = None  # of the plan to the best possible one, where the policy knows it
