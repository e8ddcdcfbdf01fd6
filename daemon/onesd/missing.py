"""A job that is missing from one answer of Slurm's is not gone for that."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice

from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.snapshot import ALIVE, Snapshot

MOST_READ = 20  # jobs that are read one by one for one snapshot


def with_missing(
    snapshot: Snapshot, cluster: Cluster, moving: Iterable[int], known: Collection[int]
) -> Snapshot:
    """The snapshot, with what could not be found out about the jobs that it leaves out.

    `moving` are all read anew where they are missing, because their moves would end; of the others
    `known`, some: an answer with gaps has lost more than one job, and is shown by any of them.
    Raises SlurmError where Slurm still has one of them alive.
    """
    sure = [job for job in dict.fromkeys(moving) if _missing(job, snapshot)]
    rest = (job for job in sorted(known) if _missing(job, snapshot) and job not in sure)
    unread = {}
    for job in [*sure, *islice(rest, max(0, MOST_READ - len(sure)))]:
        try:
            found = cluster.job(job)
        except SlurmUnreachable:
            raise
        except SlurmError as fault:
            unread[f"job {job}"] = f"not in Slurm's list of all jobs, and by itself: {fault}"
            continue
        if found is not None and found.record.state in ALIVE:
            raise SlurmError(
                "reading all jobs",
                f"the answer leaves out job {job}, which is {found.record.state.lower()};"
                " nothing is concluded from it",
            )
    return replace(snapshot, unread={**snapshot.unread, **unread}) if unread else snapshot


def _missing(job: int, snapshot: Snapshot) -> bool:
    return job not in snapshot.jobs and not snapshot.makes_no_sense(job)
