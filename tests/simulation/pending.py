"""A pending job as `ones-release` reads it from squeue."""

from __future__ import annotations

from ones.daemon.release import PendingJob
from ones.slurm_ext.snapshot import JobRecord


def pending(record: JobRecord) -> PendingJob:
    return PendingJob(
        record.id,
        record.priority,
        record.restarts,
        record.reason,
        record.required_nodes,
        record.admin_comment,
        submitted=record.submitted,
        eligible=record.eligible,
    )
