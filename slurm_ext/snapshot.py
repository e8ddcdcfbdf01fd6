"""What Slurm says of its jobs and nodes, in one form whichever reader asked it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

MARK = "ONES1:"  # begins the admin_comment of a job that opted in; only job_submit.lua writes it
SATELLITE_MARK = "ONES1S:"  # the same of a job that holds GPUs for another; see satellites
STAGE_MARK = "ONES-STAGE1:"  # the same of a job that stages data in for one that opted in
UNTRIED = frozenset({"", "None", "BeginTime"})  # reasons of a job that Slurm has not yet tried


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job as Slurm reports it. Strings are as users wrote them: hostile until parsed."""

    id: int
    name: str
    user: str
    account: str
    partition: str
    qos: str
    state: str  # base state: PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT ...
    flags: frozenset[str] = frozenset()  # COMPLETING CONFIGURING REQUEUED ... where set
    reason: str = ""  # why it is pending: None, Priority, Resources, JobHeldUser, ...
    priority: int = 0
    held: bool = False
    restarts: int = 0
    submitted: float = 0.0  # Slurm sets this anew at a requeue
    eligible: float = 0.0
    started: float = 0.0  # 0: never; of the present (or, ended, the last) run
    ended: float = 0.0
    time_limit: float | None = None  # seconds; None: unlimited
    nodes_wanted: tuple[int, int] = (1, 1)
    tasks: int = 1
    cpus_per_task: int = 1
    tasks_per_node: int = 0  # 0: not set
    cpus: int = 1
    tres_per_job: str = ""  # such as gres/gpu:v100=4, as written by Slurm
    tres_per_node: str = ""
    tres_per_task: str = ""
    per_gpu: str = ""  # CPUs and memory that it asks for per GPU
    features: str = ""
    dependency: str = ""
    required_nodes: str = ""  # folded hostlist
    excluded_nodes: str = ""
    nodes: str = ""  # folded hostlist it runs on
    gpus_on: Mapping[str, int] = field(default_factory=dict)  # node -> GPUs, running jobs only
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Node -> the GPUs there, by Slurm's index, of which it holds shards; each also counts in
    `gpus_on`."""
    batch_host: str = ""
    admin_comment: str = ""
    requeue: bool = False
    array_job: int = 0  # 0: not of an array
    satellites: tuple[JobRecord, ...] = ()
    """The jobs that hold GPUs for this run of it, running or waiting; see satellites.attach."""

    @property
    def marked(self) -> bool:
        """Whether the job opted in (only job_submit.lua and administrators can write this)."""
        return self.admin_comment.startswith(MARK)

    @property
    def is_satellite(self) -> bool:
        """Whether the job holds GPUs for another one (only job_submit.lua can write this)."""
        return self.admin_comment.startswith(SATELLITE_MARK)

    @property
    def held_on(self) -> Mapping[str, int]:
        """Node -> GPUs of the job and its satellites together."""
        if not self.satellites:
            return self.gpus_on
        held = Counter(self.gpus_on)
        for satellite in self.satellites:
            held.update(satellite.gpus_on)
        return held


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node as Slurm reports it."""

    name: str
    states: frozenset[str]  # base state and flags: IDLE MIXED ALLOCATED DOWN DRAIN NOT_RESPONDING
    reason: str = ""
    gpu_type: str = ""
    gpus: int = 0
    gpus_used: int = 0  # those of which jobs hold shards among them
    shards_per_gpu: int = 0  # 0: GPUs can't be shared there
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All jobs and nodes as Slurm reported them at one time."""

    taken: float
    jobs: Mapping[int, JobRecord]
    nodes: Mapping[str, NodeRecord]
    switches: Mapping[str, tuple[str, ...]]  # node -> switches above it, leaf first


class Reader(Protocol):
    """Reads Slurm in a fixed number of bulk calls, each with a timeout.

    Raises SlurmError (ones.slurm_ext.errors) when Slurm does not answer.
    """

    name: str

    def snapshot(self) -> Snapshot: ...
