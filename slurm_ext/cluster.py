"""The one seam to Slurm: what onesd reads of it and asks of it, whoever answers.

Behind it stand Slurm by its commands, Slurm read by PySlurm, and a simulated Slurm. A write returns
when Slurm has agreed. One that raises SlurmUnreachable may have happened all the same, or happen
later: what is so is only known by reading again. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ones.slurm_ext.accounting import Run
from ones.slurm_ext.limits import SiteLimits
from ones.slurm_ext.priority import Order
from ones.slurm_ext.snapshot import JobRecord, Snapshot
from ones.slurm_ext.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    """One job as Slurm has it now, with what snapshots leave out."""

    record: JobRecord
    cpus_per_gpu: int = 0  # that it asks for; 0: not so
    memory_per_node: int | None = None  # MiB that it asks for; None: not so
    comment: str = ""  # its owner, or its own script, may write it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSize:
    """What a node has beside GPUs."""

    cpus: int
    memory: int  # MiB


class Cluster(Protocol):
    """Slurm. Every call is bounded in time, and raises SlurmError where Slurm refuses or is silent.

    SlurmUnreachable, which is one, says that nobody answered. Job numbers are Slurm's.
    """

    @property
    def name(self) -> str:
        """How it is read, for people."""
        ...

    def snapshot(self) -> Snapshot:
        """All jobs, nodes and reservations, in a fixed number of bulk calls."""
        ...

    def job(self, number: int) -> JobDetails | None:
        """One job, read anew; None where Slurm has forgotten it."""
        ...

    def has_steps(self, number: int) -> bool:
        """Whether the running job has steps of its own beside its batch script."""
        ...

    def runs(self, jobs: Iterable[int]) -> list[Run]:
        """All runs of these jobs as the accounting has them, by job and time; it may lag."""
        ...

    def usage(self, jobs: Iterable[int]) -> list[Usage]:
        """What the ended runs of these jobs asked for and used, as the accounting has it."""
        ...

    def node_sizes(self) -> Mapping[str, NodeSize]:
        """What each node has beside GPUs."""
        ...

    def order(self) -> Order:
        """In which order Slurm would start jobs; parts of what it goes by are minutes old."""
        ...

    def limits(self) -> SiteLimits:
        """The site's limits on jobs, in a fixed number of bulk calls.

        Those of QOS and associations are left out, with why, where only slurmdbd is silent.
        """
        ...

    def operators(self) -> frozenset[str]:
        """The users who may steer: Slurm's operators and administrators."""
        ...

    def update(self, number: int, fields: Mapping[str, str]) -> None:
        """`scontrol update JobId=... NAME=VALUE ...`, in that order: all of it, or none."""
        ...

    def hold(self, number: int) -> None:
        """`scontrol hold`, as an administrator: its owner can't release it."""
        ...

    def release(self, number: int) -> None:
        """`scontrol release`."""
        ...

    def requeue_hold(self, number: int) -> None:
        """`scontrol requeuehold incomplete`: stop the run, back into the queue, held."""
        ...

    def revive(self, number: int) -> None:
        """`scontrol requeuehold`: of a job that has ended, back into the queue, held."""
        ...

    def signal(self, number: int, signal: str, *, script: bool) -> None:
        """`scancel --signal`: to the job's steps, or to its batch script alone.

        Silent of jobs that have ended or are not known.
        """
        ...

    def cancel(self, number: int) -> None:
        """`scancel`."""
        ...
