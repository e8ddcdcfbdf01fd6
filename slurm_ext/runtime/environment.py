"""Who a worker is: its place among the workers, its job, and what ONES tells it."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from ones.slurm_ext.errors import OnesError

log = logging.getLogger(__name__)
# Of a satellite, a job that works for another one: by which order it comes, and whose it is.
TICKET, LEADER, LEADER_RESTARTS = "ONES_TICKET", "ONES_LEADER_JOB", "ONES_LEADER_RESTARTS"
FIRST_PORT, PORTS = 16384, 16384  # below the ports that Linux hands out by itself


class EnvironmentFault(OnesError):
    """The environment contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A worker's place among the workers of its job, one worker per GPU."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    nodes: int = 1
    master: str = "localhost"
    port: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise EnvironmentFault(
                f"rank {self.rank} is not one of {self.world_size} workers;"
                " look at RANK and WORLD_SIZE, or at srun's --ntasks"
            )

    def variables(self) -> dict[str, str]:
        """The place in the names that torchrun gives its workers."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "MASTER_ADDR": self.master,
            "MASTER_PORT": str(self.port),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a worker's environment says."""

    place: Place = field(default_factory=Place)
    job: int | None = None  # Slurm's id; None outside Slurm
    restarts: int = 0
    socket: str = ""  # where the node's agent takes reports; empty: nobody listens
    batch: int | None = None  # global batch size of the plan
    checkpoint_signal: signal.Signals = signal.SIGUSR1
    report_seconds: float = 1.0
    started: float | None = None  # when the launcher started, in seconds since the epoch


def read_environment(environ: Mapping[str, str]) -> Environment:
    """What the variables of torchrun, Slurm and ONES say, in that order for the place."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        place = _torchrun_place(environ)
    elif in_step(environ):
        place = slurm_place(environ)
    else:
        place = Place()
    leader = _whole(environ, LEADER)
    restarts = "SLURM_RESTART_COUNT" if leader is None else LEADER_RESTARTS
    return Environment(
        place=place,
        job=_whole(environ, "SLURM_JOB_ID") if leader is None else leader,
        restarts=_whole(environ, restarts) or 0,
        socket=environ.get("ONES_SOCKET", ""),
        batch=_whole(environ, "ONES_BATCH_SIZE", least=1),
        checkpoint_signal=_signal(environ),
        report_seconds=max(0.1, _number(environ, "ONES_REPORT_SECONDS") or 1.0),
        started=_number(environ, "ONES_STARTED"),
    )


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started us; the batch script has a rank in its environment, but no step."""
    return all(
        name in environ for name in ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    )


def slurm_place(environ: Mapping[str, str]) -> Place:
    """The place of a task of srun, where every task is one worker."""
    tasks_here = tasks_on_node(environ)
    return Place(
        rank=_whole(environ, "SLURM_PROCID") or 0,
        world_size=_whole(environ, "SLURM_STEP_NUM_TASKS", least=1) or 1,
        local_rank=_whole(environ, "SLURM_LOCALID") or 0,
        local_world_size=tasks_here,
        node_rank=_whole(environ, "SLURM_NODEID") or 0,
        nodes=_whole(environ, "SLURM_STEP_NUM_NODES", least=1) or 1,
        master=first_host(environ.get("SLURM_STEP_NODELIST", "localhost")),
        port=meeting_port(environ),
    )


def tasks_on_node(environ: Mapping[str, str]) -> int:
    """How many tasks of this step run on this node, from a list such as 4(x2),1."""
    counts: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    node = _whole(environ, "SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else 1


def first_host(hostlist: str) -> str:
    """The first name of a folded hostlist: n07 of n[07-09,12],m1."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hostlist)
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", first[0] if first else hostlist)


def meeting_port(environ: Mapping[str, str]) -> int:
    """The port at which the workers of one step meet: known to all of them, and hardly to others.

    It differs between the runs of a requeued job, whose first node may still hold the last one's.
    """
    job = _whole(environ, "SLURM_JOB_ID") or 0
    step = _whole(environ, "SLURM_STEP_ID") or 0
    restarts = _whole(environ, "SLURM_RESTART_COUNT") or 0
    return FIRST_PORT + (job * 61 + restarts * 7 + step) % PORTS


def _torchrun_place(environ: Mapping[str, str]) -> Place:
    return Place(
        rank=_whole(environ, "RANK") or 0,
        world_size=_whole(environ, "WORLD_SIZE", least=1) or 1,
        local_rank=_whole(environ, "LOCAL_RANK") or 0,
        local_world_size=_whole(environ, "LOCAL_WORLD_SIZE", least=1) or 1,
        node_rank=_whole(environ, "GROUP_RANK") or 0,
        nodes=_whole(environ, "GROUP_WORLD_SIZE", least=1) or 1,
        master=environ.get("MASTER_ADDR", "localhost"),
        port=_whole(environ, "MASTER_PORT") or 29500,
    )


def _whole(environ: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    """A whole number, or None where it is absent or unusable: a bad one must not end a job."""
    text = environ.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) < least:
        log.warning("ones: %s is '%s', no whole number from %d up; ignored", name, text, least)
        return None
    return int(text)


def _number(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]*)?", text):
        log.warning("ones: %s is '%s', not a number of seconds; it is ignored", name, text)
        return None
    return float(text)


def _signal(environ: Mapping[str, str]) -> signal.Signals:
    name = environ.get("ONES_CHECKPOINT_SIGNAL", "USR1").removeprefix("SIG")
    try:
        return signal.Signals["SIG" + name]
    except KeyError:
        log.warning("ones: ONES_CHECKPOINT_SIGNAL is '%s', no signal; USR1 is used", name)
        return signal.SIGUSR1
