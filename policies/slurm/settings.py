"""What a site has set of Slurm's scheduling, in the words of slurm.conf and sacctmgr.

Of trackable resources there are GPUs, nodes, memory and licences; usage is billed by the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf, isfinite

from ones.policies.model import Seconds

DAY = 86400.0
ROOT = "root"  # the account above all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a QOS or an association; None: not set here.

    Where several have the same limit, the first of these counts: the partition's QOS, the job's
    QOS, its association. The group limits of an account hold for all accounts below it together.
    """

    grp_gpus: int | None = None  # GrpTRES=gres/gpu
    grp_nodes: int | None = None  # GrpTRES=node
    grp_memory: float | None = None  # GrpTRES=mem, MiB
    grp_jobs: int | None = None  # GrpJobs
    grp_gpu_minutes: float | None = None  # GrpTRESMins=gres/gpu; decays as usage does
    gpus_per_user: int | None = None  # MaxTRESPerUser=gres/gpu, of a QOS
    nodes_per_user: int | None = None  # MaxTRESPerUser=node, of a QOS
    memory_per_user: float | None = None  # MaxTRESPerUser=mem, of a QOS
    jobs_per_user: int | None = None  # MaxJobsPerUser of a QOS, MaxJobs of an association
    gpus_per_account: int | None = None  # MaxTRESPerAccount=gres/gpu, of a QOS
    memory_per_account: float | None = None  # MaxTRESPerAccount=mem, of a QOS
    jobs_per_account: int | None = None  # MaxJobsPerAccount, of a QOS
    gpus_per_job: int | None = None  # MaxTRESPerJob=gres/gpu
    nodes_per_job: int | None = None  # MaxTRESPerJob=node
    memory_per_job: float | None = None  # MaxTRESPerJob=mem
    least_gpus: int | None = None  # MinTRESPerJob=gres/gpu, of a QOS
    wall: Seconds | None = None  # MaxWallDurationPerJob

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not value >= 0:
                raise ValueError(f"the limit {each.name} is {value}, below 0")


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service."""

    name: str
    priority: int = 0
    usage_factor: float = 1.0  # UsageFactor: how much of its jobs' usage counts
    bounds: Bounds = NO_BOUNDS

    def __post_init__(self) -> None:
        if self.priority < 0 or not (isfinite(self.usage_factor) and self.usage_factor >= 0):
            raise ValueError(f"qos {self.name}: priority and usage_factor must not be below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """An account, or a user in one, as a knot of the tree of shares."""

    account: str
    user: str = ""  # empty: it is the account itself
    parent: str = ROOT  # of an account; users are below theirs
    shares: int = 1  # Fairshare
    bounds: Bounds = NO_BOUNDS

    def __post_init__(self) -> None:
        if self.shares < 0:
            raise ValueError(f"account {self.account}: shares must not be below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of slurm.conf."""

    name: str
    nodes: frozenset[str] = frozenset()  # empty: all
    tier: int = 1  # PriorityTier
    job_factor: int = 1  # PriorityJobFactor
    max_time: Seconds | None = None
    default_time: Seconds | None = None
    qos: str = ""  # whose limits hold for its jobs too

    def __post_init__(self) -> None:
        for name in ("max_time", "default_time"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"partition {self.name}: its {name} must be above 0")
        for name in ("tier", "job_factor"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"partition {self.name}: its {name} must not be below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes that only some jobs may have for a time; others run there if they end before."""

    name: str
    nodes: frozenset[str]
    start: Seconds = 0.0
    end: Seconds = inf

    def __post_init__(self) -> None:
        if not self.start < self.end:
            raise ValueError(f"reservation {self.name} ends before it starts")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """slurm.conf and the accounting, with Slurm's own defaults where it has any that schedule."""

    weight_age: float = 1000.0  # PriorityWeightAge
    weight_fair_share: float = 10000.0
    weight_job_size: float = 0.0
    weight_partition: float = 1000.0
    weight_qos: float = 10000.0
    weight_gpus: float = 0.0  # PriorityWeightTRES=gres/gpu
    max_age: Seconds = 7 * DAY  # PriorityMaxAge
    favor_small: bool = False  # PriorityFavorSmall
    half_life: Seconds = 7 * DAY  # PriorityDecayHalfLife; 0: usage never decays
    calc_period: Seconds = 300.0  # PriorityCalcPeriod
    bf_interval: Seconds = 30.0
    bf_window: Seconds = DAY
    bf_resolution: Seconds = 60.0
    bf_max_job_test: int = 500
    default_time: Seconds = DAY  # limit of a job without one, in a partition without DefaultTime
    kill_wait: Seconds = 30.0  # KillWait: what a job past its limit is taken to have left
    partitions: tuple[Partition, ...] = ()  # the first is the default; none: one of all nodes
    qos: tuple[Qos, ...] = ()
    default_qos: str = "normal"
    associations: tuple[Association, ...] = ()
    """Users and accounts that are not listed have one share each, accounts below the root."""
    reservations: tuple[Reservation, ...] = ()
    licenses: tuple[tuple[str, int], ...] = ()  # Licenses: how many of each, by name

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(each.default, float):
                value = float(getattr(self, each.name))
                if not (isfinite(value) and value >= 0):
                    raise ValueError(f"its setting {each.name} is {value:g}, not 0 or more")
                object.__setattr__(self, each.name, value)  # whole numbers, too
        for name in ("max_age", "calc_period", "bf_interval", "bf_resolution", "default_time"):
            if not getattr(self, name) > 0:
                raise ValueError(f"its setting {name} must be above 0")
        for name, count in self.licenses:
            if count < 0:
                raise ValueError(f"the licences of {name} are {count}, below 0")
        if self.bf_max_job_test < 0:
            raise ValueError("its setting bf_max_job_test must not be below 0")
        _once("partition", [one.name for one in self.partitions])
        _once("qos", [one.name for one in self.qos])
        known = {one.name for one in self.qos}
        for partition in self.partitions:
            if partition.qos and partition.qos not in known:
                raise ValueError(
                    f"partition {partition.name} has the qos {partition.qos}, which is not there"
                )
        _once("reservation", [one.name for one in self.reservations])
        _once("association", [f"{one.account}/{one.user}" for one in self.associations])
        _check_tree({one.account: one.parent for one in self.associations if not one.user})


def _once(what: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{what} {twice} is there twice")


def _check_tree(parents: Mapping[str, str]) -> None:
    """Raise ValueError where an account is its own ancestor."""
    for account in parents:
        above, seen = account, {account}
        while above != ROOT:
            above = parents.get(above, ROOT)
            if above in seen:
                raise ValueError(f"account {account} is below itself")
            seen.add(above)
