"""The site's limits as Slurm has them: of partitions, qualities of service and associations.

Which of them counts for a job where several say something of the same is in Slurm's manual
(Resource Limits, hierarchy): the partition's QOS, the job's own, the user's association, then the
accounts above. The first that says anything wins, but of sums over a tree each level counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Amounts = Mapping[str, int]  # by Slurm's name: cpu, mem (MiB), gres/gpu:v100, license/matlab
Key = tuple[str, str, str]  # account, user, partition; empty where it is not of one
Lists = tuple[frozenset[str], frozenset[str]]  # who alone may (empty: all), and who may not
MOST_LEVELS = 64  # of accounts above one another


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service; what is None or not named is not limited."""

    name: str
    together: Amounts = field(default_factory=dict)  # GrpTRES
    a_user: Amounts = field(default_factory=dict)  # MaxTRESPerUser
    an_account: Amounts = field(default_factory=dict)  # MaxTRESPerAccount
    a_job: Amounts = field(default_factory=dict)  # MaxTRESPerJob
    a_node: Amounts = field(default_factory=dict)  # MaxTRESPerNode
    least: Amounts = field(default_factory=dict)  # MinTRESPerJob
    minutes: Amounts = field(default_factory=dict)  # GrpTRESMins
    jobs: int | None = None  # GrpJobs
    jobs_a_user: int | None = None  # MaxJobsPerUser
    jobs_an_account: int | None = None  # MaxJobsPerAccount
    wall: float | None = None  # MaxWall, seconds
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """An account, or a user in one; what applies to one job of it is passed down already."""

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""  # of an account, the one above
    together: Amounts = field(default_factory=dict)  # GrpTRES
    a_job: Amounts = field(default_factory=dict)  # MaxTRESPerJob
    a_node: Amounts = field(default_factory=dict)  # MaxTRESPerNode
    minutes: Amounts = field(default_factory=dict)  # GrpTRESMins
    jobs: int | None = None  # GrpJobs
    own_jobs: int | None = None  # MaxJobs
    wall: float | None = None  # MaxWall, seconds

    @property
    def key(self) -> Key:
        return self.account, self.user, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What a partition allows one job."""

    name: str
    state: str = "UP"
    default: bool = False  # whether jobs that name none are in it
    accounts: Lists = (frozenset(), frozenset())
    qualities: Lists = (frozenset(), frozenset())
    least_nodes: int = 0
    most_nodes: int | None = None
    most_memory: int | None = None  # MaxMemPerNode, MiB
    memory_per_cpu: int = 0  # DefMemPerCPU, MiB; 0: there is none
    memory_per_gpu: int = 0  # DefMemPerGPU
    wall: float | None = None
    qos: str = ""
    exclusive: bool = False  # whether a job has all of its nodes there, whatever it asks for
    oversubscribes: bool = False  # whether several jobs can have the same CPUs there


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLimits:
    """All limits of the site. With none of them nothing is limited."""

    enforced: bool = False  # whether Slurm holds jobs to those of QOS and associations
    qos: Mapping[str, Qos] = field(default_factory=dict)
    associations: Mapping[Key, Association] = field(default_factory=dict)
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    licenses: Mapping[str, int] = field(default_factory=dict)  # of the cluster, by name
    shares_out_cpus: bool = True  # whether Slurm gives each CPU to one job (SelectTypeParameters)
    used: Mapping[tuple[str, str], Amounts] = field(default_factory=dict)
    """Of those with GrpTRESMins, `account` or `qos` and its name, what is used up."""
    faults: tuple[str, ...] = ()  # what of it made no sense, and is left out
    unread: str = ""  # why QOS and associations could not be read

    def association(self, account: str, user: str, partition: str) -> Association | None:
        """The user's own; None where there is none."""
        found = self.associations.get((account, user, partition))
        return found or self.associations.get((account, user, ""))

    def above(self, account: str) -> Iterator[Association]:
        """The account and those above it, as far as they are known and don't go round."""
        met: set[str] = set()
        while account and account not in met and len(met) < MOST_LEVELS:
            met.add(account)
            found = self.associations.get((account, "", ""))
            if found is None:
                return
            yield found
            account = found.parent

    def rules(self, qos: str, partition: str) -> Iterator[Qos]:
        """The qualities of service whose limits count for a job, the stronger one first."""
        theirs = self.partitions[partition].qos if partition in self.partitions else ""
        own, other = self.qos.get(qos), self.qos.get(theirs) if theirs != qos else None
        stronger = own is not None and "OverPartQOS" in own.flags
        for one in (own, other) if stronger else (other, own):
            if one is not None:
                yield one


NO_LIMITS = SiteLimits()
