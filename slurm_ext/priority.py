"""Slurm's multifactor priority of a job, held or not, as `sprio` shows it of jobs that wait.

Slurm gives a held job the priority 0, and lets it age only from its release on. So the priority
that a job would have if nobody held it is computed from the same factors and weights. Its age is
the time that it has waited in all, for a job that was preempted did not choose to start anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Protocol

from ones.slurm_ext.snapshot import JobRecord

TIERS = 2**16  # PriorityTier is below this
_AMOUNT = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)([KMGTP]?)")
_TIMES = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_MEBI = 2.0**20  # memory without a unit is in MiB
Association = tuple[str, str, str]  # account, user, partition ('' for any)


class Order(Protocol):
    """In which order Slurm would start jobs, held ones too."""

    @property
    def trouble(self) -> str:
        """What of it can't be read, and what is done without it; empty: nothing."""
        ...

    def priority(self, job: JobRecord, *, requested: int, waited: float) -> int | None:
        """That of a job which asks for so many GPUs and has waited for so long; None: not known."""
        ...

    def tier(self, job: JobRecord) -> int:
        """Larger goes first, whatever the priorities."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What `scontrol show config` says of priorities."""

    multifactor: bool = True  # PriorityType; without it jobs go by their submission
    age: float = 0.0
    association: float = 0.0
    fair_share: float = 0.0
    job_size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    tres: Mapping[str, float] = field(default_factory=dict)  # by lower-case name: cpu, gres/gpu
    max_age: float = 604800.0  # seconds
    favor_small: bool = False
    flags: frozenset[str] = frozenset()  # PriorityFlags
    site_plugin: bool = False  # whether a plugin of the site's adds a factor of its own
    by_qos: bool = False  # PreemptType=preempt/qos
    cluster: str = ""  # ClusterName, for slurmdbd may know others

    def as_it_is(self, factor: str) -> bool:
        """Whether the factor counts as it is, and not as a share of the largest.

        Slurm prints NO_NORMAL_ALL also where a single one of these flags is set.
        """
        return not self.flags.isdisjoint({f"NO_NORMAL_{factor}", "NO_NORMAL_ALL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFactors:
    """What `scontrol show partition` says of one."""

    factor: float = 1.0  # PriorityJobFactor
    tier: int = 1  # PriorityTier
    max_time: float | None = None  # seconds
    tres: Mapping[str, float] = field(default_factory=dict)  # what it has, by lower-case name


@dataclass(frozen=True, slots=True, kw_only=True)
class QosFactors:
    """What `sacctmgr show qos` says of one."""

    priority: float = 0.0
    preempts: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Multifactor:
    """An Order by all that Slurm makes priorities of, as last read."""

    weights: Weights
    partitions: Mapping[str, PartitionFactors]
    qos: Mapping[str, QosFactors] = field(default_factory=dict)
    associations: Mapping[Association, float] = field(default_factory=dict)  # their priorities
    fair_shares: Mapping[Association, float] = field(default_factory=dict)  # sshare's FairShare
    nodes: int = 1  # of the whole cluster
    cpus: int = 1
    unknown: str = ""  # why no priority can be told; empty: it can
    trouble: str = ""

    def priority(self, job: JobRecord, *, requested: int, waited: float) -> int | None:
        if self.unknown or not self.weights.multifactor:
            return None
        found = (
            self._in(name, job, requested=requested, waited=waited)
            for name in job.partition.split(",")
        )
        return max(found)  # of a job of several partitions Slurm has one for each

    def _in(self, name: str, job: JobRecord, *, requested: int, waited: float) -> int:
        weights = self.weights
        partition = self.partitions.get(name, PartitionFactors())
        qos = self.qos.get(job.qos, QosFactors()).priority
        association = _of(self.associations, job, name)
        tres = tres_in(job.tres)
        # An elastic job counts with its own request, however large it is now.
        scale = requested / tres["gres/gpu"] if requested and tres.get("gres/gpu") else 1.0
        whole = dict.fromkeys(tres, 1.0) if weights.as_it_is("TRES") else partition.tres
        total = sum(
            weight * count * scale / whole[kind]
            for kind, weight in weights.tres.items()
            if (count := tres.get(kind)) and whole.get(kind)
        )
        total += weights.age * min(max(waited, 0.0) / max(weights.max_age, 1.0), 1.0)
        total += weights.fair_share * _of(self.fair_shares, job, name)
        total += weights.job_size * self._size(job, partition, scale)
        total += weights.association * (
            association
            if weights.as_it_is("ASSOC")
            else _share(association, max(self.associations.values(), default=0.0))
        )
        total += weights.partition * (
            partition.factor
            if weights.as_it_is("PART")
            else _share(partition.factor, max(each.factor for each in self.partitions.values()))
            if self.partitions
            else 0.0
        )
        total += weights.qos * (
            qos
            if weights.as_it_is("QOS")
            else _share(qos, max((each.priority for each in self.qos.values()), default=0.0))
        )
        return min(max(int(total - job.nice), 1), 2**32 - 1)  # 0 is of held jobs

    def _size(self, job: JobRecord, partition: PartitionFactors, scale: float) -> float:
        """The larger the better, but for PriorityFavorSmall."""
        cpus = job.cpus * scale
        nodes = max(1, ceil(job.nodes_wanted[0] * scale))
        if "SMALL_RELATIVE_TO_TIME" in self.weights.flags:
            minutes = (job.time_limit or partition.max_time or 60.0) / 60.0
            on_nodes = nodes * self.cpus / self.nodes  # as if all nodes had as many
            share = max(cpus, on_nodes) / max(minutes, 1.0) / self.cpus
            share = 1.0 - share if self.weights.favor_small else share
        elif self.weights.favor_small:
            share = ((self.nodes - nodes) / self.nodes + (self.cpus - cpus) / self.cpus) / 2
        else:
            share = (nodes / self.nodes + cpus / self.cpus) / 2
        return min(max(share, 0.0), 1.0)

    def tier(self, job: JobRecord) -> int:
        """Who may preempt another by its QOS comes before it; then the partition's tier counts."""
        tiers = [
            self.partitions[name].tier
            for name in job.partition.split(",")
            if name in self.partitions
        ]
        rank = self._ranks.get(job.qos, 0) if self.weights.by_qos else 0
        return rank * TIERS + max(tiers, default=1)

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        """QOS -> how many stand below it at least, each of which the next may preempt."""
        ranks = dict.fromkeys(self.qos, 0)
        for _ in range(len(ranks)):  # no chain is longer; where they go round, it ends all the same
            raised = {
                name: max((ranks[other] + 1 for other in one.preempts if other in ranks), default=0)
                for name, one in self.qos.items()
            }
            if raised == ranks:
                return ranks
            ranks = raised
        return dict.fromkeys(self.qos, 0)


def _share(value: float, most: float) -> float:
    return value / most if most > 0 else 0.0


def _of(table: Mapping[Association, float], job: JobRecord, partition: str) -> float:
    """That of the job's association, of its partition if there is one of that."""
    whole = table.get((job.account, job.user, ""), 0.0)
    return table.get((job.account, job.user, partition), whole)


def tres_in(text: str) -> dict[str, float]:
    """`cpu=4,mem=2000M,gres/gpu=2` as numbers, memory in MiB; what makes no sense is left out."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, said = part.strip().lower().rpartition("=")
        match = _AMOUNT.fullmatch(said.upper())
        if name and match is not None:
            value = float(match[1]) * _TIMES[match[2]]
            found[name] = value / _MEBI if name == "mem" and match[2] else value
    return found
