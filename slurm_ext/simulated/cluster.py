"""The simulated Slurm behind the protocol by which onesd knows Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ones.slurm_ext.accounting import Run
from ones.slurm_ext.cluster import JobDetails, NodeSize
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.holding import STALE
from ones.slurm_ext.limits import SiteLimits
from ones.slurm_ext.priority import Order
from ones.slurm_ext.simulated.accounting import Accounting
from ones.slurm_ext.simulated.gate import (
    Altered,
    Call,
    Gate,
    Hang,
    Late,
    Lose,
    OpenGate,
    Refuse,
    Stale,
    Twice,
    Verdict,
)
from ones.slurm_ext.simulated.limits import as_read
from ones.slurm_ext.simulated.order import SimulatedOrder
from ones.slurm_ext.simulated.people import ONES
from ones.slurm_ext.simulated.world import World
from ones.slurm_ext.snapshot import Snapshot
from ones.slurm_ext.usage import Usage

Answer = TypeVar("Answer")
SILENT = "Unable to contact slurm controller (connect failure); see `scontrol ping`"
NO_ANSWER = "no answer in time; see `scontrol ping`"


class SimulatedCluster:
    """A Cluster over a World. Every call goes through the gate."""

    def __init__(self, world: World, gate: Gate | None = None) -> None:
        self.world = world
        self.gate: Gate = gate or OpenGate()
        self._ones = world.by(ONES)
        self._last: Snapshot | None = None

    @property
    def name(self) -> str:
        return "simulated"

    def snapshot(self) -> Snapshot:
        verdict = self._judge("snapshot")
        found = self._carry_out("snapshot", verdict, self.world.snapshot)
        last = self._last
        if isinstance(verdict, Stale) and last is not None and found.taken - last.taken < STALE:
            return replace(last, taken=found.taken)
        self._last = found
        return verdict.change(found) if isinstance(verdict, Altered) else found

    def job(self, number: int) -> JobDetails | None:
        return self._read("job", partial(self._details, number), number)

    def _details(self, number: int) -> JobDetails | None:
        job = self.world.state.jobs.get(number)
        if job is None:
            return None
        return JobDetails(
            record=job.record(),
            cpus_per_gpu=job.wants.cpus_per_gpu,
            memory_per_node=job.wants.memory,
            comment=job.comment,
        )

    def has_steps(self, number: int) -> bool:
        def look() -> bool:
            job = self.world.state.jobs.get(number)
            return job is not None and job.state == "RUNNING" and job.own_steps

        return self._read("has_steps", look, number)

    def runs(self, jobs: Iterable[int]) -> list[Run]:
        wanted = tuple(jobs)
        return self._read("runs", lambda: self._books.runs(wanted, self._known), wanted)

    def usage(self, jobs: Iterable[int]) -> list[Usage]:
        wanted = tuple(jobs)
        return self._read("usage", lambda: self._books.usage(wanted, self._known), wanted)

    def node_sizes(self) -> Mapping[str, NodeSize]:
        nodes = self.world.state.nodes.values()
        return self._read(
            "node_sizes",
            lambda: {
                node.spec.name: NodeSize(cpus=node.spec.cpus, memory=node.spec.memory)
                for node in nodes
            },
        )

    def order(self) -> Order:
        return self._read("order", lambda: SimulatedOrder.of(self.world.state))

    def limits(self) -> SiteLimits:
        return self._read("limits", lambda: as_read(self.world.state))

    def operators(self) -> frozenset[str]:
        state = self.world.state
        return self._read("operators", lambda: frozenset(state.operators | state.administrators))

    def update(self, number: int, fields: Mapping[str, str]) -> None:
        self._write("update", partial(self._ones.update, number, dict(fields)), number, fields)

    def hold(self, number: int) -> None:
        self._write("hold", partial(self._ones.hold, number), number)

    def release(self, number: int) -> None:
        self._write("release", partial(self._ones.release, number), number)

    def requeue_hold(self, number: int) -> None:
        self._write("requeue_hold", partial(self._ones.requeuehold, number), number)

    def revive(self, number: int) -> None:
        again = partial(self._ones.requeuehold, number, incomplete=False)
        self._write("revive", again, number)

    def signal(self, number: int, signal: str, *, script: bool) -> None:
        send = partial(self._ones.signal, number, signal, script=script)
        self._write("signal", send, number, signal, script)

    def cancel(self, number: int) -> None:
        self._write("cancel", partial(self._ones.cancel, number), number)

    @property
    def _books(self) -> Accounting:
        return self.world.state.accounting

    @property
    def _known(self) -> float:
        return self.world.now - self.world.settings.accounting_lag

    def _judge(self, name: str, *arguments: object, writes: bool = False) -> Verdict:
        return self.gate.judge(Call(name, arguments, writes))

    def _read(self, name: str, read: Callable[[], Answer], *arguments: object) -> Answer:
        return self._carry_out(name, self._judge(name, *arguments), read)

    def _write(self, name: str, write: Callable[[], None], *arguments: object) -> None:
        self._carry_out(name, self._judge(name, *arguments, writes=True), write)

    def _carry_out(self, name: str, verdict: Verdict, act: Callable[[], Answer]) -> Answer:
        world = self.world
        if world.state.down and name not in _BY_SLURMDBD:
            world.step(world.settings.silence)
            raise SlurmUnreachable(name, SILENT)
        match verdict:
            case Refuse(words):
                raise SlurmError(name, words)
            case Hang(timeout):
                world.step(timeout)
                raise SlurmUnreachable(name, NO_ANSWER)
            case Late(seconds, waited):
                world.state.at(world.now + seconds, partial(_in_silence, act))
                world.step(waited)
                raise SlurmUnreachable(name, NO_ANSWER)
            case Lose():
                act()
                raise SlurmUnreachable(name, NO_ANSWER)
            case Twice():
                answer = act()
                _in_silence(act)
                return answer
        return act()


_BY_SLURMDBD = frozenset({"runs", "usage", "operators"})


def _in_silence(act: Callable[[], object]) -> None:
    """What Slurm makes of a call that nobody waits for any more."""
    with suppress(SlurmError):
        act()
