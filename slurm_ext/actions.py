"""What can be done to one job; the actuator carries it out, moves decide on it.

`restarts` is the restart count that the job must have: with another it is not the job that was
decided upon, and nothing is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from ones.policies.model import Placement, Shape

FIRST = 4294000000  # a priority above all that Slurm reckons, and below its words for none


@dataclass(frozen=True, slots=True)
class Signal:
    """Ask the running job for a checkpoint."""

    job: int
    restarts: int
    signal: str


@dataclass(frozen=True, slots=True)
class RequeueHold:
    """Stop the running job, back into the queue, held."""

    job: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Revive:
    """Put a job that Slurm takes for failed back into the queue, held, as RequeueHold was to."""

    job: int
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a job asks for on each node beside GPUs; None: what it asked for before."""

    memory: int | None = None  # MiB
    cpus: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reshape:
    """Give the held job a shape and the nodes to have it on.

    With `shards` it gets so many shards of its one GPU instead of all of it.
    """

    job: int
    restarts: int
    target: Placement
    request: Request = Request()
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Restore:
    """Have the held job ask for what its owner asked for, in this shape, on any nodes."""

    job: int
    restarts: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Release:
    """Let the held job start; on one that runs, clear a hold that would outlive this run."""

    job: int
    restarts: int


@dataclass(frozen=True, slots=True)
class GoFirst:
    """Put the pending job, which nobody holds any more, before all others that wait.

    It has its nodes, and whoever has a right to them has got it in the plan. Slurm would let it
    wait behind any job that is wider, longer or older, although that can't start there yet.
    """

    job: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the pending job as an administrator does, and take its pinned nodes away."""

    job: int
    restarts: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Take nodes that the running job has left out of its allocation; never its first one."""

    job: int
    restarts: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comment:
    """Tell in the job's comment how it goes; never over what somebody else has written there."""

    job: int
    restarts: int
    text: str


Action = (
    Signal
    | RequeueHold
    | Revive
    | Reshape
    | Restore
    | Release
    | GoFirst
    | Hold
    | GiveBack
    | Comment
)
