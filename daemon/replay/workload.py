"""What a replay is fed with: jobs as a trace has them, and what their training really does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ones.policies.model import Batch, Floats, Node, Seconds
from ones.policies.sizes import Sizes


class OutsideProfile(Exception):
    """A configuration of which the profile says nothing: the job can't run like that."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass on every GPU, measured: with the gradients' synchronisation, and that alone."""

    seconds: Seconds
    sync: Seconds  # what of it the synchronisation adds; 0 on one GPU

    def seconds_of(self, passes: int) -> Seconds:
        """An optimiser step of several passes: only the last of them synchronises."""
        return self.seconds + (passes - 1) * (self.seconds - self.sync)


@dataclass(frozen=True, slots=True)
class Gradient:
    """Squared norm and variance of the gradient at the scale of the batch B0."""

    sqr: float
    var: float

    def gain(self, scale: float) -> float:
        """Progress of a step at `scale` times B0, in steps at B0 (Pollux §3.1)."""
        return (self.var + self.sqr) / (self.var / scale + self.sqr)


class Application(Protocol):
    """How one kind of training job behaves: the truth, which policies never see."""

    @property
    def name(self) -> str: ...

    def __hash__(self) -> int: ...

    @property
    def batches(self) -> Batch | None:
        """What batches it accepts, `submitted` being B0; None: its batch is of no matter."""
        ...

    @property
    def sizes(self) -> Sizes:
        """All GPU counts it can run on."""
        ...

    @property
    def epochs(self) -> Floats:
        """[E] progress at the end of each epoch, ascending, in steps at B0 (samples / B0)."""
        ...

    @property
    def restart_seconds(self) -> Seconds | None:
        """What a restart of it costs; None: as the replay has it."""
        ...

    def runs_on(self, gpu_type: str) -> bool: ...

    def step(self, gpu_type: str, gpus_on: tuple[int, ...], local_batch: int) -> Step:
        """Time of a pass on this many GPUs of each node. Raises OutsideProfile."""
        ...

    def gradient(self, batch: float, epoch: int) -> Gradient | None:
        """Statistics at this global batch in this epoch; None: every sample counts fully."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace."""

    name: str  # as the trace has it
    user: str
    family: str  # jobs with the same user and family are alike as far as anybody can tell
    account: str
    submitted: Seconds  # since the start of the trace
    application: Application
    requested: int  # GPUs its user asked for
    batch: int | None  # the global batch its user asked for; None: does not say
    sizes: Sizes  # it accepts
    gpu_types: frozenset[str] | None = None  # None: any that the application runs on
    priority: int = 0  # Slurm's; larger goes first
    tier: int = 0  # who goes first whatever the priorities; see policies.model.Job
    declared: bool = True  # whether it says how many epochs it will do
    opted_in: bool = True  # False: a plain job, which a plain scheduler starts and nobody moves
    time_limit: Seconds | None = None  # None: its partition's
    partition: str = ""  # empty: the default one
    qos: str = ""  # empty: the default one
    reservation: str = ""
    nodes: int = 0  # in its request; 0: as few as hold its GPUs
    memory: float = 0.0  # MiB of all nodes, in its request
    licenses: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace as read: jobs by submission, and the cluster it was recorded on if known."""

    jobs: tuple[TraceJob, ...]
    nodes: tuple[Node, ...] = ()
