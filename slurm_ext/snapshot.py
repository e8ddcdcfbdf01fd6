"""What Slurm says of its jobs and nodes, in one form whichever reader asked it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

OUR_COMMENT = "ONES:"  # begins a job's comment that onesd wrote
MARK = "ONES1:"  # begins the admin_comment of a job that opted in; only job_submit.lua writes it
SATELLITE_MARK = "ONES1S:"  # the same of a job that holds GPUs for another; see satellites
STAGE_MARK = "ONES-STAGE1:"  # the same of a job that stages data in for one that opted in
ENDED = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
    | {"DEADLINE", "OUT_OF_MEMORY"}
)  # states of a job that is over
NOT_DONE = ENDED - {"COMPLETED"}  # of one that is over without being done
HOLDING = frozenset({"RUNNING", "SUSPENDED"})  # the states in which a job holds its GPUs
ALIVE = HOLDING | {"PENDING"}  # those of a job that is not over
BY_RESERVATION = frozenset({"MAINTENANCE", "RESERVED"})  # of a node in one that is active
OUT_OF_SERVICE = (
    frozenset({"DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "UNKNOWN", "INVALID_REG"})
    | {"POWERING_DOWN", "REBOOT_ISSUED"}
    | BY_RESERVATION
)
"""States of a node on which nothing new is placed, but for jobs of its reservation."""
ASLEEP = frozenset({"POWERED_DOWN", "POWERING_UP"})  # of a node that Slurm wakes for a job
NOT_KNOWN = "not known"  # what a reader that is older than this cannot tell
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
    nice: int = 0  # what its user, or an administrator, takes off its priority
    held: bool = False
    restarts: int = 0
    submitted: float = 0.0  # Slurm sets this anew at a requeue
    eligible: float = 0.0
    expected: float = 0.0  # of a pending job: when Slurm foretells its start; 0: it does not
    started: float = 0.0  # 0: never; of the present (or, ended, the last) run
    ended: float = 0.0
    exit_code: int = 0
    exit_signal: int = 0  # that ended it; 0: none
    time_limit: float | None = None  # seconds; None: unlimited
    nodes_wanted: tuple[int, int] = (1, 1)
    tasks: int = 1
    cpus_per_task: int = 1
    tasks_per_node: int = 0  # 0: not set
    cpus: int = 1
    tres_per_job: str = ""  # such as gres/gpu:v100=4, as written by Slurm
    tres_per_node: str = ""
    tres_per_task: str = ""
    tres: str = ""  # of all nodes, such as cpu=4,mem=2000M,node=1,gres/gpu=2: has, or asks for
    cpus_per_gpu: str = ""  # that it asks for, such as gres/gpu:2
    memory: int = 0  # MiB that it asks for of each node or CPU; 0: all of each node, or a default
    memory_of: str = ""  # `node` or `cpu`, where that is told; NOT_KNOWN
    memory_per_gpu: str = ""  # MiB, such as gres/gpu:2048; gpu:2048 is its partition's default
    licenses: str = ""  # such as matlab:2,ansys
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
    array_task: str = ""  # its index; of tasks that wait together, as one job, such as 0-3,7
    reservation: str = ""  # names that it asked for; of a running job also one that drew it
    satellites: tuple[JobRecord, ...] = ()
    """The jobs that hold GPUs for this run of it, running or waiting; see satellites.attach."""

    @property
    def marked(self) -> bool:
        """Whether the job opted in (only job_submit.lua and administrators can write this)."""
        return self.admin_comment.startswith(MARK)

    @property
    def several(self) -> bool:
        """Whether it stands for tasks of an array that Slurm has not made jobs of yet."""
        return bool(self.array_task) and not self.array_task.isdecimal()

    def ended_by(self, signal: int) -> bool:
        """Whether it failed of a signal: its script, or what that waited for last."""
        return self.state == "FAILED" and signal in (self.exit_signal, self.exit_code - 128)

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
    cpus: int = 0  # that jobs may have; 0: not known
    cpus_used: int = 0
    memory: int = 0  # MiB; 0: not known
    memory_used: int = 0  # MiB that jobs have been given, of which they may use less
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()

    @property
    def asleep(self) -> bool:
        """Whether it is powered down to save power, or not up again: nothing can report from it."""
        return not self.states.isdisjoint(ASLEEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes that are kept for some jobs for some time, as Slurm reports it."""

    name: str
    nodes: frozenset[str]
    start: float = 0.0
    end: float = inf
    flags: frozenset[str] = frozenset()  # MAINT FLEX MAGNETIC OVERLAP ANY_NODES DAILY ...
    users: frozenset[str] = frozenset()  # one that begins with `-` is kept out
    accounts: frozenset[str] = frozenset()  # the same
    groups: str = ""
    part: str = ""  # what of each node it has, such as `4 cores`; empty: all
    licenses: str = ""  # such as matlab:2

    def active(self, now: float) -> bool:
        return self.start <= now < self.end

    def admits(self, user: str, account: str) -> bool:
        """Whether Slurm lets jobs of this user and account in; of groups nothing is known here."""
        if self.groups and not self.users:
            return False
        return _among(user, self.users) and _among(account, self.accounts)


def _among(name: str, listed: frozenset[str]) -> bool:
    """Slurm's lists name either who may, or, with a `-` before each, who may not."""
    kept_out = {each[1:] for each in listed if each.startswith("-")}
    return name not in kept_out if kept_out or not listed else name in listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All jobs and nodes, and the reservations, as Slurm reported them at one time."""

    taken: float
    jobs: Mapping[int, JobRecord]
    nodes: Mapping[str, NodeRecord]
    switches: Mapping[str, tuple[str, ...]]  # node -> switches above it, leaf first
    unread: Mapping[str, str] = field(default_factory=dict)
    """`job 7` or `node n1` -> why its record could not be read, so that it is left out above."""
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    booted: str = ""  # when the slurmctld that answers was started, in its words; '': not known

    def barred(self, node: NodeRecord) -> frozenset[str]:
        """The states that keep everything new off a node; reservations keep off each job anew."""
        out = node.states & OUT_OF_SERVICE
        if out <= BY_RESERVATION and any(
            node.name in each.nodes and each.active(self.taken)
            for each in self.reservations.values()
        ):
            return frozenset()
        return out

    def makes_no_sense(self, job: int) -> bool:
        """Whether Slurm lists the job in words that can't be read: nothing is concluded of it."""
        return f"job {job}" in self.unread


class Reader(Protocol):
    """Reads Slurm in a fixed number of bulk calls, each with a timeout.

    Raises SlurmError (ones.slurm_ext.errors) when Slurm does not answer.
    """

    name: str

    def snapshot(self) -> Snapshot: ...
