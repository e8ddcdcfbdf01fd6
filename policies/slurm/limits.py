"""Limits of QOS and associations: what is in use by whom, and why a job may not start.

Slurm tests some of them before it looks for nodes, and those on GPUs and nodes only once it has
found some: a job that has no room is in the way of others even where its limits forbid its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ones.policies.model import Job, Seconds
from ones.policies.slurm.settings import ROOT, Bounds, SlurmSettings

Holder = tuple[str, ...]  # of whom something is counted: ("qos", name) or ("account", name, user)
NOBODY: Holder = ()
NO_LICENSES: Mapping[str, int] = {}


@dataclass(slots=True)
class InUse:
    """What one holder's running jobs have."""

    jobs: int = 0
    gpus: int = 0
    nodes: int = 0
    memory: float = 0.0  # MiB


@dataclass(frozen=True, slots=True)
class Source:
    """Bounds that a job is under, and of whom they count."""

    name: Literal["QOS", "Assoc"]
    bounds: Bounds
    group: Holder
    user: Holder
    account: Holder = NOBODY


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job would add to what is in use."""

    sources: tuple[Source, ...]  # those whose limits come before the others' stand first
    gpus: int
    nodes: int
    limit: Seconds
    memory: float = 0.0  # MiB
    licenses: tuple[tuple[str, int], ...] = ()
    jobs: int = 1


@dataclass(slots=True)
class Usage:
    """Everybody's running jobs, the GPU seconds that each holder has used lately, and licences."""

    spent: Mapping[Holder, float] = field(default_factory=dict)
    of: dict[Holder, InUse] = field(default_factory=dict)
    licenses: Counter[str] = field(default_factory=Counter)

    def add(self, ask: Ask) -> None:
        """Count a job that runs."""
        for holder in holders(ask.sources):
            found = self.of.setdefault(holder, InUse())
            found.jobs += 1
            found.gpus += ask.gpus
            found.nodes += ask.nodes
            found.memory += ask.memory
        if ask.licenses:
            self.licenses.update(dict(ask.licenses))

    def by(self, holder: Holder) -> InUse:
        return self.of.get(holder, InUse())


def holders(sources: tuple[Source, ...]) -> set[Holder]:
    """All of whom a job of theirs counts."""
    found = {holder for one in sources for holder in (one.group, one.user, one.account)}
    return found - {NOBODY}


@dataclass(frozen=True, slots=True)
class Rules:
    """All bounds of a site, by whom they hold for."""

    qos: Mapping[str, Bounds]
    default_qos: str
    associations: Mapping[tuple[str, str], Bounds]
    parents: Mapping[str, str]

    @classmethod
    def of(cls, settings: SlurmSettings) -> Rules:
        return cls(
            {one.name: one.bounds for one in settings.qos},
            settings.default_qos,
            {(one.account, one.user): one.bounds for one in settings.associations},
            {one.account: one.parent for one in settings.associations if not one.user},
        )

    def sources(self, job: Job, partition_qos: str) -> tuple[Source, ...]:
        """The bounds that the job is under."""
        return tuple(self._sources(job, partition_qos))

    def _sources(self, job: Job, partition_qos: str) -> Iterator[Source]:
        for name in dict.fromkeys((partition_qos, job.qos or self.default_qos)):
            if name in self.qos:
                of = ("qos", name)
                account = ("qos", name, "", job.account)
                yield Source("QOS", self.qos[name], of, (*of, job.user), account)
        own = ("account", job.account, job.user)
        if (job.account, job.user) in self.associations:
            yield Source("Assoc", self.associations[job.account, job.user], own, own)
        account_name = job.account
        while account_name != ROOT:
            if (account_name, "") in self.associations:
                bounds = self.associations[account_name, ""]
                yield Source("Assoc", bounds, ("account", account_name), own)
            account_name = self.parents.get(account_name, ROOT)
        if (ROOT, "") in self.associations:
            yield Source("Assoc", self.associations[ROOT, ""], ("account", ROOT), own)


@dataclass(frozen=True, slots=True)
class _Check:
    bound: str  # of Bounds
    counts: Literal["jobs", "gpus", "nodes", "memory"]
    scope: Literal["group", "user", "account", "job"]
    word: str  # in Slurm's reason, behind QOS
    of_association: str = ""  # the same behind Assoc, where it is another


_BEFORE = (
    _Check("grp_jobs", "jobs", "group", "GrpJobsLimit"),
    _Check("jobs_per_user", "jobs", "user", "MaxJobsPerUserLimit", "MaxJobsLimit"),
    _Check("jobs_per_account", "jobs", "account", "MaxJobsPerAccountLimit"),
)
_AFTER = (
    _Check("grp_gpus", "gpus", "group", "GrpGRES"),
    _Check("grp_nodes", "nodes", "group", "GrpNodeLimit"),
    _Check("grp_memory", "memory", "group", "GrpMemLimit"),
    _Check("gpus_per_job", "gpus", "job", "MaxGRESPerJob"),
    _Check("nodes_per_job", "nodes", "job", "MaxNodePerJobLimit"),
    _Check("memory_per_job", "memory", "job", "MaxMemoryPerJob", "MaxMemPerJob"),
    _Check("gpus_per_user", "gpus", "user", "MaxGRESPerUser"),
    _Check("nodes_per_user", "nodes", "user", "MaxNodePerUserLimit"),
    _Check("memory_per_user", "memory", "user", "MaxMemoryPerUser"),
    _Check("gpus_per_account", "gpus", "account", "MaxGRESPerAccount"),
    _Check("memory_per_account", "memory", "account", "MaxMemoryPerAccount"),
)


def before_placing(ask: Ask, usage: Usage, licenses: Mapping[str, int] = NO_LICENSES) -> str:
    """Slurm's reason why the job waits whatever is free; '' where it need not."""
    for source, most in _in_force(ask.sources, "wall"):
        if ask.limit > most:
            return f"{source.name}MaxWallDurationPerJobLimit"
    if why := _against(_BEFORE, ask, usage):
        return why
    for name, count in ask.licenses:
        if usage.licenses[name] + count > licenses.get(name, 0):
            return "Licenses"
    return ""


def after_placing(ask: Ask, usage: Usage) -> str:
    """Slurm's reason why the job may not have the nodes that were found; '' where it may."""
    for source, least in _in_force(ask.sources, "least_gpus"):
        if ask.gpus < least:
            return f"{source.name}MinGRES"
    for source, most in _in_force(ask.sources, "grp_gpu_minutes"):
        if usage.spent.get(source.group, 0.0) >= 60.0 * most:
            return f"{source.name}GrpGRESMinutes"
    return _against(_AFTER, ask, usage)


def _against(checks: tuple[_Check, ...], ask: Ask, usage: Usage) -> str:
    for check in checks:
        wanted = getattr(ask, check.counts)
        for source, most in _in_force(ask.sources, check.bound):
            has = 0
            if check.scope != "job":
                has = getattr(usage.by(getattr(source, check.scope)), check.counts)
            if has + wanted > most:
                other = source.name == "Assoc" and check.of_association
                return f"{source.name}{other or check.word}"
    return ""


def _in_force(sources: tuple[Source, ...], bound: str) -> Iterator[tuple[Source, float]]:
    """The first QOS that has the limit; without one the nearest association, or, of what a group
    has together, every one up to the root."""
    for source in sources:
        most = getattr(source.bounds, bound)
        if most is not None:
            yield source, most
            if source.name == "QOS" or not bound.startswith("grp_"):
                return
