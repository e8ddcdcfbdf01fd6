"""What a simulated cluster is made of, and how long Slurm takes for what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

LAST_JOB_ID = 0x03FF0000 - 1  # Slurm's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Slurm's delays in seconds, as slurm.conf or the programs themselves have them.

    A pair is drawn from anew each time.
    """

    schedule: float = 0.1  # from a change to the pass of the scheduler that sees it
    backfill: float = 30.0  # bf_interval
    backfill_depth: int = 50  # bf_max_job_test
    start: tuple[float, float] = (0.1, 1.5)  # CONFIGURING
    completing: tuple[float, float] = (0.1, 0.6)  # of a job that ends at SIGTERM
    kill_wait: float = 30.0  # KillWait, for one that does not
    requeue_delay: float = 121.0  # a requeued job begins so much later
    same_second_fails: bool = True
    """slurmd refuses a job whose last run was ended in the same second ("Job credential revoked"),
    and Slurm then fails it."""
    min_job_age: float = 300.0  # MinJobAge: from a job's end until slurmctld forgets it
    slurmd_timeout: float = 300.0  # SlurmdTimeout
    missed_after: tuple[float, float] = (10.0, 600.0)
    """From the start of slurmctld until it sees that a job which it takes for running isn't."""
    silence: float = 9.0  # until a program gives up on a slurmctld that is down
    accounting_lag: float = 1.0  # until slurmdbd knows
    first_id: int = 1  # FirstJobId
    last_id: int = LAST_JOB_ID  # MaxJobId: the next is FirstJobId again
    satellites_within: float = 60.0  # a job that ends sooner takes none (job_submit.lua)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node as slurm.conf has it."""

    name: str
    gpus: int = 4
    gpu_type: str = "v100"
    cpus: int = 16
    memory: int = 32000  # MiB
    shards_per_gpu: int = 0
    features: frozenset[str] = frozenset()
    switches: tuple[str, ...] = ()  # above it, leaf first


def numbered(nodes: int, one: NodeSpec, *, below_a_leaf: int) -> tuple[NodeSpec, ...]:
    """So many nodes like this one, with its name and a number, below leaf switches."""
    digits = len(str(nodes))
    return tuple(
        replace(
            one,
            name=f"{one.name}{number:0{digits}}",
            switches=(f"leaf{(number - 1) // below_a_leaf + 1}", "spine"),
        )
        for number in range(1, nodes + 1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """A partition as slurm.conf has it."""

    name: str = "gpu"
    nodes: frozenset[str] = frozenset()  # empty: all
    max_time: float | None = 86400.0
    default_time: float | None = 3600.0
    memory_per_cpu: int = 500  # DefMemPerCPU
    priority: int = 1  # PriorityTier
    qos: str = ""  # whose limits hold for its jobs too
    max_nodes: int | None = None  # MaxNodes
    state: str = "UP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """Limits of a quality of service, of which None is no limit."""

    name: str = "normal"
    gpus: int | None = None  # GrpTRES=gres/gpu
    gpus_per_user: int | None = None  # MaxTRESPerUser=gres/gpu
    gpus_per_job: int | None = None  # MaxTRESPerJob=gres/gpu
    memory: int | None = None  # GrpTRES=mem, MiB
    memory_per_user: int | None = None  # MaxTRESPerUser=mem
    memory_per_job: int | None = None  # MaxTRESPerJob=mem
    jobs: int | None = None  # GrpJobs
    jobs_per_user: int | None = None  # MaxJobsPerUser


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Limits of an account."""

    name: str
    parent: str = ""  # the account above it, whose limits hold for its jobs too
    gpus: int | None = None  # GrpTRES=gres/gpu
    memory: int | None = None  # GrpTRES=mem, MiB
    jobs: int | None = None  # GrpJobs
    jobs_per_user: int | None = None  # MaxJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A whole cluster before anything has happened on it."""

    nodes: tuple[NodeSpec, ...]
    partitions: tuple[PartitionSpec, ...] = (PartitionSpec(),)
    users: dict[str, str] = field(default_factory=lambda: {"alice": "vision", "bob": "vision"})
    """Each user's account."""
    operators: frozenset[str] = frozenset({"ones"})
    administrators: frozenset[str] = frozenset({"root"})
    qos: tuple[Qos, ...] = (Qos(),)
    accounts: tuple[Account, ...] = ()
    licenses: dict[str, int] = field(default_factory=dict)
