"""A job of the simulated Slurm: what it asks for, what it has, and who holds it in truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.snapshot import JobRecord

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
            per_gpu=_per_gpu(wants),
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


def _per_gpu(wants: Wants) -> str:
    cpus = f"gres/gpu:{wants.cpus_per_gpu}" if wants.cpus_per_gpu else ""
    memory = f"gres/gpu:{wants.memory_per_gpu}" if wants.memory_per_gpu else ""
    return ",".join(filter(None, (cpus, memory)))
