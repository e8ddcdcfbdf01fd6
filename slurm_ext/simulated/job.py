"""A job of the simulated Slurm: what it asks for, what it has, and who holds it in truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.snapshot import JobRecord
from ones.slurm_ext.tres import gpus_by_type, shards_in

Holder = Literal["", "submission", "user", "administrator", "ones", "slurm"]
"""Who keeps a job from starting; `submission` is job_submit.lua, for onesd."""

ALIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED"})
folded = lru_cache(maxsize=4096)(fold)  # of a tuple of names
expanded = lru_cache(maxsize=4096)(expand)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What a job asks for, in the words of sbatch; never edited, only replaced."""

    nodes: tuple[int, int] = (1, 1)
    tasks: int = 0  # 0: as many as nodes
    cpus_per_task: int = 1
    tasks_per_node: int = 0  # 0: not set
    cpus: int = 0  # of all nodes, as updates set them
    cpus_per_node: int = 0  # at least
    cpus_per_gpu: int = 0
    memory: int | None = None  # MiB of each node
    memory_per_gpu: int = 0
    tres_per_job: str = ""
    tres_per_node: str = ""
    tres_per_task: str = ""
    features: str = ""
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    licenses: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """A job's request as numbers."""

    gpu_type: str
    gpus: int  # of all nodes together; 0: not said so
    per_node: int  # GPUs of each node; 0: not said so
    per_task: int  # GPUs of each task; 0: not said so
    shards: int  # of each node
    tasks: int  # 0: one a node

    @property
    def least_gpus(self) -> int:
        """GPUs that it will hold on its fewest nodes, but for those it asks for by node."""
        return self.gpus or self.per_task * self.tasks


@lru_cache(maxsize=4096)
def need_of(wants: Wants) -> Need:
    """Several types of GPU are taken for one that no node has."""
    by_job = gpus_by_type(wants.tres_per_job)
    by_node = gpus_by_type(wants.tres_per_node)
    by_task = gpus_by_type(wants.tres_per_task)
    types = {kind for found in (by_job, by_node, by_task) for kind in found if kind}
    return Need(
        gpu_type="+".join(sorted(types)),
        gpus=sum(by_job.values()),
        per_node=sum(by_node.values()),
        per_task=sum(by_task.values()),
        shards=shards_in(wants.tres_per_node),
        tasks=wants.tasks or wants.tasks_per_node * wants.nodes[0],
    )


def gpus_asked(wants: Wants) -> int:
    """GPUs that limits count for the job; one in shards is none."""
    need = need_of(wants)
    return need.least_gpus or need.per_node * wants.nodes[0]


def cpus_asked(wants: Wants) -> int:
    """CPUs on its fewest nodes."""
    nodes, need = max(wants.nodes[0], 1), need_of(wants)
    tasks = max(need.tasks, nodes)
    by_gpu = gpus_asked(wants) * wants.cpus_per_gpu
    return max(tasks * wants.cpus_per_task, nodes * wants.cpus_per_node, by_gpu)


def memory_asked(wants: Wants, *, memory_per_cpu: int) -> int:
    """MiB that limits count for the job, on its fewest nodes."""
    if wants.memory is not None:
        return max(wants.nodes[0], 1) * wants.memory
    by_gpu = gpus_asked(wants) * wants.memory_per_gpu
    return by_gpu or cpus_asked(wants) * memory_per_cpu


@dataclass(frozen=True, slots=True)
class Part:
    """What a job has of one node."""

    gpus: tuple[int, ...]  # whole ones, by index
    shards: tuple[tuple[int, int], ...]  # GPU's index, shards of it
    cpus: int
    memory: int
    tasks: int

    @property
    def count(self) -> int:
        """GPUs, one of which it has shards among them."""
        return len(self.gpus) + len(self.shards)


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One job. Whoever changes it tells the world so (`State.touch`)."""

    id: int
    name: str
    user: str
    account: str
    qos: str
    partition: str
    wants: Wants
    weight: int  # the priority that it has when nobody holds it
    given: int | None = None  # one that an operator gave it, until it is released again
    submitted: float
    first_submitted: float
    eligible: float
    memory_per_cpu: int = 0  # where it asks for none, MiB
    time_limit: float | None = None
    dependency: str = ""
    reservation: str = ""
    drawn: str = ""  # the magnetic one that this run is in
    admin_comment: str = ""
    comment: str = ""
    requeue: bool = True
    no_kill: bool = False  # --no-kill: goes on where it loses a node
    array: int = 0
    task: str = ""  # its index in the array
    state: str = "PENDING"
    flags: frozenset[str] = frozenset()
    reason: str = "None"
    held: bool = False  # priority 0
    held_by: Holder = ""
    locked: bool = False  # held as an administrator does it: its owner can't release it
    restarts: int = 0
    started: float = 0.0
    ended: float = 0.0
    exit_code: int = 0
    exit_signal: int = 0
    stopped: float = -1.0  # when its last run was ended
    begin: float = 0.0  # not before
    parts: dict[str, Part] = field(default_factory=dict)  # node -> what it has there, in order
    ran_on: tuple[str, ...] = ()  # of this run, or of the last one
    run: int = 0  # counts starts, so that what was foretold of a run is not done to the next
    suspended_at: float = 0.0
    paused: float = 0.0  # seconds of this run that it was suspended
    seconds: float | None = None  # after which a run ends of itself; None: somebody says when
    absent: bool = False  # slurmctld takes it for running, and nothing of it is there
    deaf: bool = False  # does not end at SIGTERM
    own_steps: bool = False  # whether it runs steps beside its batch script
    memory_used: float | None = None  # MiB of each node, for the accounting
    _record: JobRecord | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @property
    def gpus(self) -> int:
        return sum(part.count for part in self.parts.values())

    @property
    def priority(self) -> int:
        return 0 if self.held or self.state == "SUSPENDED" else self.rank

    @property
    def rank(self) -> int:
        """Its priority if nobody holds it."""
        return self.weight if self.given is None else self.given

    def forget_record(self) -> None:
        self._record = None

    def record(self) -> JobRecord:
        """The job as Slurm reports it, in whole seconds."""
        if self._record is None:
            self._record = self._reported()
        return self._record

    def _reported(self) -> JobRecord:
        wants = self.wants
        holding = self.state in ("RUNNING", "SUSPENDED")
        ran = self.state != "PENDING" and bool(self.ran_on)
        tasks = wants.tasks or wants.tasks_per_node * wants.nodes[0] or wants.nodes[0]
        return JobRecord(
            id=self.id,
            name=self.name,
            user=self.user,
            account=self.account,
            partition=self.partition,
            qos=self.qos,
            state=self.state,
            flags=self.flags,
            reason=self.reason,
            priority=self.priority,
            held=self.priority == 0,
            restarts=self.restarts,
            submitted=whole(self.submitted),
            eligible=whole(self.eligible),
            started=whole(self.started) if ran else 0.0,
            ended=whole(self.ended) if self.state not in ALIVE else 0.0,
            exit_code=self.exit_code if self.state not in ALIVE else 0,
            exit_signal=self.exit_signal if self.state not in ALIVE else 0,
            time_limit=self.time_limit,
            nodes_wanted=self._nodes_wanted() if holding else wants.nodes,
            tasks=tasks,
            cpus_per_task=wants.cpus_per_task,
            tasks_per_node=wants.tasks_per_node,
            cpus=sum(part.cpus for part in self.parts.values())
            or wants.cpus
            or max(tasks * wants.cpus_per_task, wants.nodes[0]),
            tres_per_job=wants.tres_per_job,
            tres_per_node=wants.tres_per_node,
            tres_per_task=wants.tres_per_task,
            tres=self._tres(),
            cpus_per_gpu=f"gres/gpu:{wants.cpus_per_gpu}" if wants.cpus_per_gpu else "",
            memory=self._memory_asked(),
            memory_of="cpu" if wants.memory is None and not wants.memory_per_gpu else "node",
            memory_per_gpu=f"gres/gpu:{wants.memory_per_gpu}" if wants.memory_per_gpu else "",
            licenses=",".join(f"{name}:{count}" for name, count in wants.licenses),
            features=wants.features,
            dependency=self.dependency,
            required_nodes=folded(wants.required),
            excluded_nodes=folded(wants.excluded),
            nodes=folded(self.ran_on),
            gpus_on=self.gpus_on() if holding else _NOTHING,
            shares=self._shares() if holding else _NO_SHARES,
            batch_host=self.ran_on[0] if self.ran_on else "",
            admin_comment=self.admin_comment,
            requeue=self.requeue,
            array_job=self.array,
            array_task=self.task,
            reservation=self.reservation or (self.drawn if holding else ""),
        )

    def _memory_asked(self) -> int:
        """MiB of each node, GPU or CPU."""
        if self.wants.memory is not None:
            return self.wants.memory
        return self.wants.memory_per_gpu or self.memory_per_cpu

    def _tres(self) -> str:
        """What it has, or asks for on its fewest nodes."""
        wants, parts = self.wants, self.parts.values()
        held = sum(part.memory for part in parts)
        memory = held or memory_asked(wants, memory_per_cpu=self.memory_per_cpu)
        cpus = sum(part.cpus for part in parts) or cpus_asked(wants)
        gpus = sum(len(part.gpus) for part in parts) if parts else gpus_asked(wants)
        nodes = len(parts) or wants.nodes[0]
        some = f"mem={memory}M," if memory else ""
        return f"cpu={cpus},{some}node={nodes},gres/gpu={gpus}"

    def _nodes_wanted(self) -> tuple[int, int]:
        has, (least, most) = len(self.parts), self.wants.nodes
        return (has, max(has, most)) if has >= least else (has, has)

    def gpus_on(self) -> Mapping[str, int]:
        """Node -> GPUs, where it has any."""
        return {node: part.count for node, part in self.parts.items() if part.count}

    def _shares(self) -> Mapping[str, tuple[int, ...]]:
        return {
            node: tuple(index for index, _ in part.shards)
            for node, part in self.parts.items()
            if part.shards
        }


_NOTHING: Mapping[str, int] = {}
_NO_SHARES: Mapping[str, tuple[int, ...]] = {}


def whole(time: float) -> float:
    """Slurm's times are of whole seconds."""
    return float(int(time))
