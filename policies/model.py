"""What a cluster, a job and a plan are: the ground on which policies, guard and estimator stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import NewType, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ones.policies.sizes import Sizes

JobId = NewType("JobId", int)
Seconds = float  # since the epoch where it is a point in time
MAX_WAIT: Seconds = 24 * 3600.0  # by default; who waited longer comes first, whatever the policy
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A form that one Slurm allocation can promise: the same number of GPUs on every node."""

    nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise ValueError(f"shape {self.nodes} x {self.gpus_per_node} has an empty side")

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which nodes hold how many of a job's GPUs; sorted by node name, no empty entries."""

    gpus_on: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.gpus_on]
        if not names or names != sorted(set(names)) or any(n < 1 for _, n in self.gpus_on):
            raise ValueError(f"placement {self.gpus_on} is empty, unsorted or has an empty node")

    @classmethod
    def of(cls, gpus_on: Mapping[str, int]) -> Placement:
        return cls(tuple(sorted((node, gpus) for node, gpus in gpus_on.items() if gpus)))

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.gpus_on)

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.gpus_on)

    def covers(self, other: Placement) -> bool:
        """Whether it has, on every node of the other one, as many GPUs at least."""
        here = dict(self.gpus_on)
        return all(here.get(node, 0) >= gpus for node, gpus in other.gpus_on)

    @property
    def shape(self) -> Shape | None:
        """The uniform shape, or None where the nodes hold unequal numbers of GPUs."""
        counts = {gpus for _, gpus in self.gpus_on}
        return Shape(len(self.gpus_on), counts.pop()) if len(counts) == 1 else None


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU node: its GPUs (one type) and the switches above it, leaf first."""

    name: str
    gpu_type: str
    gpus: int
    switches: tuple[str, ...] = ()
    usable: bool = True  # False: down, drained, reserved or stale; nothing new is placed there
    taken: int = 0  # GPUs that jobs which did not opt in hold now
    links: frozenset[tuple[int, int]] | None = None
    """Pairs of its GPUs, numbered from 0, that NVLink joins; None: not known."""
    shares: bool = False  # whether two jobs can share a GPU here
    cpus: float = inf  # that the problem's jobs may have here together; inf: not counted
    memory: float = inf  # MiB, the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A job's batch sizes in samples per optimiser step, over all its GPUs unless per GPU."""

    submitted: int  # what its user wrote
    most_per_gpu: int  # what one GPU's memory holds
    most: int  # the largest global batch the job accepts
    least_per_gpu: int = 1
    initial: int | None = None  # B0, to which statistical efficiency refers; None: `submitted`
    accumulates: bool = False  # adds gradients up over several passes where memory is too small
    tunes: bool = False  # takes another batch while it runs, without a restart

    @property
    def reference(self) -> int:
        """B0: the batch size at which a sample counts fully (Pollux §3.1)."""
        return self.initial or self.submitted

    def bounds(self, gpus: Ints) -> tuple[Floats, Floats]:
        """The least and the largest global batch on so many GPUs; empty where least > largest."""
        count = np.asarray(gpus, dtype=np.float64)
        room = np.inf if self.accumulates else count * self.most_per_gpu
        least = np.maximum(self.initial or 1, count * self.least_per_gpu)
        return least, np.minimum(float(self.most), room) + 0.0 * count

    def accepts(self, batch: int, gpus: int) -> bool:
        """Whether the job can run with this global batch on so many GPUs."""
        room = self.most if self.accumulates else min(self.most, gpus * self.most_per_gpu)
        return gpus * self.least_per_gpu <= batch <= room

    def split(self, batch: Floats, gpus: Ints) -> tuple[Floats, Floats]:
        """Samples per GPU and pass, and passes per step, of a global batch.

        On one GPU a batch above B0 takes two passes at least: with fewer than two gradients a step
        the noise scale can't be measured.
        """
        count = np.asarray(gpus, dtype=np.float64)
        each = np.ceil(np.asarray(batch, dtype=np.float64) / count - 1e-8)
        if not self.accumulates:
            return each, np.ones_like(each)
        passes = np.maximum(1.0, np.ceil(each / self.most_per_gpu - 1e-8))
        alone = (count == 1) & (np.asarray(batch) > self.reference)
        passes = np.where(alone, np.maximum(passes, 2.0), passes)
        most = np.floor(self.most / (count * passes) + 1e-8)
        return np.maximum(1.0, np.minimum(np.ceil(each / passes - 1e-8), most)), passes

    def even(self, batch: Floats, gpus: Ints) -> Floats:
        """The global batch in whole samples, as many for each GPU and pass: rounded up, or down
        where that would be more than `most`. Shares are uneven only where no even one is left."""
        local, passes = self.split(batch, gpus)
        step = np.asarray(gpus, dtype=np.float64) * passes
        least, _ = self.bounds(gpus)
        down = np.maximum(np.floor(self.most / step) * step, least)
        return np.where(local * step > self.most, down, local * step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that opted in and is pending or running, as Slurm and its own reports describe it."""

    id: JobId
    name: str
    user: str
    account: str
    submitted: Seconds  # first submission, kept through requeues
    sizes: Sizes
    requested: int  # GPUs in the job's own request: its size without ONES
    shapes: tuple[Shape, ...]  # what one allocation can promise, form and limits respected
    nodes: frozenset[str]  # where it may run: partition, GPU type, features
    priority: int = 0  # Slurm's multifactor one, of held jobs too; larger goes first
    tier: int = 0
    """Its partition's PriorityTier, above that its QOS's right to preempt; larger goes first,
    strictly and under any policy."""
    placement: Placement | None = None  # None: not running
    batch: int | None = None  # global batch it runs with, None where it does not say
    batches: Batch | None = None  # None: the job keeps its own batch, whatever its size
    started: Seconds | None = None  # of the present run
    executed: Seconds = 0.0  # run time over all runs
    limit_used: Seconds | None = None
    """What its runs have used up of its time limit: see `renewal.limit_share`; None: not known."""
    waited: Seconds = 0.0  # time spent without GPUs over all its life
    time_left: Seconds | None = None  # until Slurm's time limit ends it
    time_limit: Seconds | None = None  # of a run of its own request; None: its partition's
    partition: str = ""  # empty: the default one
    qos: str = ""  # empty: the default one
    reservation: str = ""  # in which it is to run; empty: none
    nice: int = 0
    requested_nodes: int = 0  # nodes in its own request; 0: as few as hold its GPUs
    requested_memory: float = 0.0  # MiB of all nodes in its own request (in a replay)
    licenses: tuple[tuple[str, int], ...] = ()  # the same
    due: Seconds | None = None  # when it would have ended, were every elastic job rigid
    fixed: str = ""  # why it may not be moved now; empty: it may
    startable: bool = True  # False: pending for a reason of its own (dependency, user's hold)
    queued: bool = False  # waits in Slurm's own queue, at its request; a plan may start it sooner
    stays: str = ""  # why Slurm would start it nowhere once it was stopped; empty: it would
    keeps: Placement | None = None
    """What of its placement stays when it is resized live; None: a resize is a restart. A live job
    takes any split over nodes that has this in it."""
    closed: frozenset[str] = frozenset()  # nodes it has, and where Slurm would start it no more
    uneven: bool = False  # any split over nodes will do, not only `shapes` (in a replay)
    limited: str = ""  # the site's limit that keeps it from sizes it would accept, in words
    cpus: Take | None = None  # what it takes of a node beside its GPUs; None: not known, or nothing
    memory: Take | None = None  # MiB
    crowded: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Node -> the most GPUs it can have there, for want of CPUs or memory; of others all."""
    share: bool = False  # it runs on half of the one GPU that `placement` names
    beside: JobId | None = None  # who has the other half, opted in or not; None: nobody

    def goes_live(self, target: Placement | None) -> bool:
        """Whether it gets there without a restart: what it keeps is part of the target."""
        return self.keeps is not None and target is not None and target.covers(self.keeps)


class Speed(Protocol):
    """Learnt speed of one job. Arrays broadcast against each other."""

    def step_seconds(self, gpu_type: str, nodes: Ints, gpus: Ints, global_batch: Floats) -> Floats:
        """Seconds of one optimiser step on `gpus` GPUs over `nodes` nodes, all passes of it."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the work still to do in which the gradient noise scale hardly changes."""

    samples: float  # efficient ones: what it would take at the batch B0
    noise: float | None  # gradient noise scale phi in samples (Pollux §3.1); None: not known
    noise_at: tuple[tuple[float, float], ...] = ()
    """(batch, phi), by batch, where the noise scale was measured at several batch sizes: it isn't
    the constant that the theory has it be, and grows with the batch in most trainings."""

    def noise_of(self, batch: Floats) -> Floats:
        """phi at each batch, between measurements in logarithms; inf where it isn't known."""
        if not self.noise_at:
            return np.full(np.shape(batch), np.inf if self.noise is None else self.noise)
        known = np.array(self.noise_at)
        return np.asarray(
            np.exp(np.interp(np.log(batch), np.log(known[:, 0]), np.log(known[:, 1])))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the estimator believes of one job, and on how much evidence."""

    speed: Speed
    processed: float  # samples so far
    alpha: float  # progress ~ Beta(alpha, beta) (ONES §4.1); mean = alpha / (alpha + beta)
    beta: float
    remaining: float  # expected samples still to go
    restart_cost: Seconds  # measured, or the prior
    live_cost: Seconds | None = None  # of a resize without a restart; None: it can have none
    guessed: bool = False  # whether nothing but guesses tells how long it is
    epochs: float = 0.0  # of training behind it; 0 where it does not say what an epoch is
    points: int = 0  # speed measurements behind it
    batch: float = 1.0  # global batch of a job that names none: its family's, or single samples
    segments: tuple[Segment, ...] = ()  # of `remaining`; empty: every sample counts fully
    speed_error: float = (
        0.0  # standard error of ln(step seconds), where it has run or will run next
    )
    type_errors: Mapping[str, float] = field(default_factory=dict)
    """The same on every GPU type it may run on, at that size; empty where there is one type."""

    def error_on(self, gpu_type: str) -> float:
        """Standard error of ln(step seconds) on GPUs of this type."""
        return self.type_errors.get(gpu_type, self.speed_error)


Pairs = Mapping[tuple[JobId, JobId], tuple[float, float]]
"""Jobs that may share a GPU, the smaller number first, and how fast each is then expected to be,
relative to its speed alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """How much of what a cap bounds a job takes: a straight line in its nodes and its GPUs."""

    once: float = 0.0  # whatever its size
    each: float = 0.0  # for every job that Slurm would count
    node: float = 0.0
    gpu: float = 0.0
    spread: bool = False
    """A job that holds GPUs for it live takes of `node` as much a GPU as its first node does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """A limit of the site on what some of the problem's jobs may have together."""

    words: str  # such as "QOS normal allows 4 GPUs a user; alice has 2"
    left: float  # for these jobs, after what all others hold of it
    takes: Mapping[JobId, Take]  # the jobs that count
    held: Mapping[JobId, float] = field(default_factory=dict)  # of it, in Slurm's books now
    gpu_type: str = ""  # only what is on nodes of this type counts; empty: any
    awaited: str = ""
    """What a job outside our hands waits for of it, in words; empty: none does."""
    lacks: float = 0.0
    """How much more of it than Slurm has free now that one needs; of several that wait, the one
    that needs least."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One round's question: who runs where, with which batch."""

    now: Seconds
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    outlooks: Mapping[JobId, Outlook]
    arrival_rate: float = 0.0  # jobs per second, recent
    round_seconds: Seconds = 60.0  # from one round to the next
    pairs: Pairs = field(default_factory=dict)  # who may share a GPU; empty: nobody
    strictness: float = 0.0
    """How far Slurm's priority counts within a tier: from 0, where the policy alone decides who
    goes first, to 1, where it decides only among jobs of the same priority."""
    unestimated: Mapping[JobId, str] = field(default_factory=dict)
    """Jobs whose outlook is a mere prior, because what they told makes no sense, and why."""
    caps: tuple[Cap, ...] = ()  # the site's limits on several jobs together

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def caps_of(self) -> Mapping[JobId, Sequence[int]]:
        """The caps that count each job, by their places; without jobs that none counts."""
        found: dict[JobId, list[int]] = {}
        for at, cap in enumerate(self.caps):
            for id_ in cap.takes:
                found.setdefault(id_, []).append(at)
        return found

    @cached_property
    def awaited(self) -> Mapping[JobId, str]:
        """The jobs that take of a cap for which a job outside our hands waits, with that in
        words."""
        return {id_: cap.awaited for cap in self.caps if cap.awaited for id_ in cap.takes}


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a plan gives one job."""

    placement: Placement
    batch: int | None
    reason: str
    beside: JobId | None = None
    """The job with which it shares its one GPU; that one has the same placement and names it, too.
    None of a job that shares now: it stays where it is, whoever else is there."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs where. A job in neither mapping is left as it is."""

    assignments: Mapping[JobId, Assignment]
    idle: Mapping[JobId, str] = field(default_factory=dict)  # job -> why it gets nothing now
    gap: float | None = None  # how far its score may be below the best possible, as a share


class Policy(Protocol):
    """A scheduler. `memory` is whatever it returned last time (None at first), JSON-able."""

    @property
    def name(self) -> str: ...

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]: ...


@runtime_checkable
class TunesBetweenRounds(Protocol):
    """A policy under which a job chooses its batch anew at every epoch's end (Pollux §4.2)."""

    def batch_after_epoch(self, job: Job, outlook: Outlook, gpu_type: str) -> int | None:
        """The global batch of a running job for its next epoch; None: the one it has."""
        ...


@runtime_checkable
class SharesGpus(Protocol):
    """A policy that may put two jobs on one GPU."""

    @property
    def shares(self) -> bool:
        """Whether it does, as it is set: then it is told who may."""
        ...

    @property
    def plans_pairs(self) -> bool:
        """Whether it says itself of every pair there is what becomes of it. Otherwise one job
        stands for both, and they stay together."""
        ...


@runtime_checkable
class TakesTurns(Protocol):
    """A policy to which a round is a turn: an event is no reason to begin the next one early."""

    @property
    def turns(self) -> bool: ...


def node_order(nodes: Sequence[Node]) -> list[Node]:
    """Nodes in topology order: by switches from the root down, then by name."""
    return sorted(nodes, key=lambda node: (tuple(reversed(node.switches)), node.name))
