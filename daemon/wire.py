"""What travels between job, agent and controller, as strict msgspec types.

Job to agent: JSON lines on the node-local socket, tagged by `op`. Agent to controller: HTTP with a
munge credential over the body. Every number a job sends is bounded here, at the door.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec

MOST_REPORT = 8 * 2**20  # bytes of a node's report
Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
GpuCount = Annotated[int, msgspec.Meta(ge=1, le=65536)]
StepSeconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
Measure = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
CheckpointSignal = Literal["USR1", "USR2", "HUP", "CONT"]  # all can be caught


class Report(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="report"):
    """A job's word on its own progress. Only `job` is required: an empty one says 'I am ready'."""

    job: Annotated[int, msgspec.Meta(ge=1)]
    restarts: Count = 0  # SLURM_RESTART_COUNT of the run it speaks of
    samples: Count = 0  # committed over the whole life of the job
    epoch: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    loss: float | None = None
    accuracy: float | None = None
    step_seconds: StepSeconds | None = None  # mean since the last report
    sync_seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] | None = None
    """What of a step is only waiting for other GPUs' gradients."""
    batch: Count | None = None  # global batch those steps had
    passes: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None  # of a step, one after other
    grad_sqr: Measure | None = None  # squared norm of the gradient (Pollux §3.1) ...
    grad_var: Measure | None = None  # ... and its variance at the batch `batch_submitted`
    gpus: GpuCount | None = None  # size those steps ran at
    total_samples: Count | None = None  # declared length of the whole job
    epoch_samples: Count | None = None
    batch_submitted: Count | None = None  # the batch the script was written for
    batch_most: Count | None = None  # the largest global batch it accepts
    batch_most_per_gpu: Count | None = None
    resumed_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    """Seconds from the process's start to its first step in this run (part of a restart's cost)."""
    checkpoints: bool = True
    """Whether it saves on the checkpoint signal. False is a training's last word: the batch script
    may go on with something that would die of it."""
    tunes: bool = False  # whether it takes another batch while it runs, from the agent's answer

    @property
    def samples_per_second(self) -> float | None:
        return self.batch / self.step_seconds if self.batch and self.step_seconds else None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="checkpoint"):
    """A checkpoint is complete on disk."""

    job: Annotated[int, msgspec.Meta(ge=1)]
    restarts: Count = 0
    samples: Count = 0
    path: Text = ""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What a live job that lost workers has gone on from, and what it had to do again."""

    generation: Annotated[int, msgspec.Meta(ge=1, le=10**15)]  # the one that came of it
    at: Annotated[float, msgspec.Meta(ge=0, le=1e11)]  # by its node's clock
    lost: Annotated[int, msgspec.Meta(ge=0, le=65536)]  # workers
    source: Literal["memory", "neighbour", "checkpoint"]
    samples: Count | None = None  # of committed steps done again; None: nobody is left to say
    steps: Count | None = None  # that these are


class Live(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="live"):
    """Word of a job's base launcher, which can resize it while it runs; see LiveOrder."""

    job: Annotated[int, msgspec.Meta(ge=1)]
    restarts: Count = 0
    workers: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 0  # that train now
    parts: dict[str, Annotated[int, msgspec.Meta(ge=0, le=65536)]] = {}
    """Satellite's job -> its workers that train now: none of one that is only coming."""
    order: Count = 0  # the last one it has taken, or 0
    state: Literal["idle", "working", "done", "failed"] = "idle"  # of that order
    reason: Annotated[str, msgspec.Meta(max_length=512)] = ""  # why it failed
    own: dict[str, Annotated[int, msgspec.Meta(ge=0, le=65536)]] = {}
    """Further nodes of the job's own allocation -> its workers there, that train or are to; 0: its
    launcher has left the node, or nothing works there."""
    pause: Annotated[float, msgspec.Meta(ge=0, le=86400)] | None = None
    """Seconds for which training stood still for that order."""
    able: bool = True  # False: the training is over, or it can't be resized any more
    recoveries: Annotated[tuple[Recovery, ...], msgspec.Meta(max_length=16)] = ()
    """The last ones of this run."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A job's message with the time at which the agent took it and how its sender was proved."""

    at: float
    evidence: str  # cgroup | slurmstepd | environ | directory
    message: Report | Checkpoint | Live


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; None where the driver does not say."""

    minor: int  # /dev/nvidiaN
    uuid: str
    type: str
    healthy: bool = True
    utilization: float | None = None  # 0..1
    memory_used: int | None = None  # bytes
    memory_total: int | None = None
    power: float | None = None  # watts
    temperature: float | None = None  # Celsius
    xid: int | None = None  # last error event
    jobs: tuple[int, ...] = ()  # whose processes are on it
    linked: tuple[int, ...] | None = None  # minors of those that NVLink joins it to; None: unknown


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes over a node's network since its start; the loopback does not count."""

    received: Annotated[int, msgspec.Meta(ge=0)]
    sent: Annotated[int, msgspec.Meta(ge=0)]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's full state. Full, not a delta: a lost one costs nothing."""

    node: str
    taken: float
    interval: float
    version: str
    gpus: tuple[GpuSample, ...] = ()
    received: tuple[Received, ...] = ()  # latest report and checkpoint of each job on this node
    ended: tuple[int, ...] = ()  # jobs whose last process here went since onesd last heard us
    network: Traffic | None = None
    note: str = ""  # such as: no NVML here


class LivePart(msgspec.Struct, frozen=True, kw_only=True):
    """A satellite to come: so many GPUs on one node."""

    node: str
    gpus: GpuCount


class LiveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a live job is to look like beside its base allocation; the same until it is answered."""

    number: Annotated[int, msgspec.Meta(ge=1)]
    restarts: int  # of the run that it is for
    keep: tuple[int, ...] = ()  # satellites, by job
    add: tuple[LivePart, ...] = ()
    leave: tuple[str, ...] = ()  # nodes of its own allocation that it gives back
    gpu_type: str = ""  # as the job itself names it in its request
    batch: int | None = None
    patience: float = 60.0  # seconds after which it is given up
    withdrawn: bool = False  # given up: what was added for it leaves


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What onesd gave a job: read by the agent for the job's environment."""

    job: int
    sizes: str = ""
    gpus: int | None = None
    batch: int | None = None
    checkpoint_signal: CheckpointSignal = "USR1"
    order: LiveOrder | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """onesd's answer to a node's report: the leases of the jobs there that may change while they
    run. They go with every answer, so that a lost one costs nothing."""

    ok: bool = True
    leases: tuple[Lease, ...] = ()
    staged: tuple[int, ...] = ()  # stage-in jobs whose data are still needed ...
    staged_at: float = 0.0  # ... in Slurm as it was then; 0: not known


# msgspec works a type out where it is first decoded, and where two threads do so at once its
# releases before 0.20 end the process by a segmentation fault. So whoever imports a type that
# threads decode makes its decoder with it.
REPORT = msgspec.json.Decoder(Report)
NODE_REPORT = msgspec.json.Decoder(NodeReport)
LEASE = msgspec.json.Decoder(Lease)
HEARD = msgspec.json.Decoder(Heard)

AGENT_PURPOSE = "ones-agent-report"
LEASE_PURPOSE = "ones-lease"
HEARD_PURPOSE = "ones-heard"  # onesd's own: every answer to an agent
CREDENTIAL = "Ones-Credential"  # the header with onesd's credential for its answer
NODE = "Ones-Node"  # the header with the name of the agent's node, which its credential covers
CTL_PURPOSE = "ones-ctl"


def answer_to(asked: str, answer: bytes) -> bytes:
    """What onesd signs: its answer, and the credential of the very request that it answers."""
    return hashlib.sha256(asked.encode()).hexdigest().encode() + b"\n" + answer
