"""A whole onesd on the simulated Slurm: agents and jobs are played, all on the world's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulated_world import a_world

from ones.daemon.config import Config
from ones.daemon.onesd.assembly import Onesd, assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import Checkpoint, GpuSample, NodeReport, Received, Report
from ones.policies.guard import Move
from ones.policies.model import JobId
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.satellites import attach
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.gate import PASS, Call, Verdict
from ones.slurm_ext.simulated.job import Job
from ones.slurm_ext.simulated.world import World, gpus

Judge = Callable[[Call], Verdict]


@dataclass
class Door:
    """The gate between onesd and Slurm, which a test may replace at any time."""

    judge: Judge = field(default=lambda _call: PASS)


class AtWork:
    """onesd in its loop: a tick each second, a round every 15, agents heard every ten.

    Jobs report as soon as they run, and confirm a checkpoint a second after they are asked.
    """

    def __init__(self, world: World | None = None, **config: Any) -> None:
        self.world = world or a_world()
        self.config = Config(**({"mode": "act", "policy": "fifo", "round": 15.0} | config))
        self.door = Door()
        self.cluster = SimulatedCluster(self.world, self.door)
        self.store = Store(":memory:")
        self.failures: list[str] = []
        self.confirms = True
        self.says: dict[str, Any] = {}  # what jobs report of themselves beside
        self.said_by: dict[int, dict[str, Any]] = {}  # the same of single ones
        self.again = False  # whether they report again and again, or once a run
        self.gpus: tuple[GpuSample, ...] = ()  # as every agent sees those of its node
        self.mute: set[str] = set()  # nodes whose agents say nothing
        self.offset = 0.0  # of onesd's clock
        self._answered = 0
        self.onesd = self._born()

    def _born(self) -> Onesd:
        return assemble(self.config, self.cluster, self.store, clock=self._clock)

    def _clock(self) -> float:
        return self.world.now + self.offset

    def reborn(self, *, forgetful: bool = False) -> None:
        """onesd was killed, and is there again; `forgetful`: its database was lost."""
        if forgetful:
            self.store = Store(":memory:")
        self.onesd = self._born()

    def submit(self, count: int = 4, user: str = "alice", **options: Any) -> int:
        return self.world.submit(user, wants=gpus(count), **({"elastic": "1-8"} | options))

    def running(self, **options: Any) -> int:
        """A job that has been at work for a while."""
        job = self.submit(**options)
        self.live(60, until=lambda: self.job(job).state == "RUNNING")
        self.live(20)
        assert self.job(job).state == "RUNNING"
        return job

    def job(self, number: int) -> Job:
        return self.world.job(number)

    def report(self) -> None:
        """Every agent's report, with the last word of each job on its node."""
        for name, node in self.world.state.nodes.items():
            if not node.answers or name in self.mute:
                continue
            said: list[Received] = []
            for number in sorted(node.jobs):
                job = self.world.job(number)
                if not self.world.runs(number) or job.nodes[0] != name:
                    continue
                says = {"samples": 1} | self.says | self.said_by.get(number, {})
                hello = Report(job=number, restarts=job.restarts, **says)
                at = self.world.now if self.again else job.started + 1
                said.append(Received(at=at, evidence="cgroup", message=hello))
                asked = [
                    sent
                    for sent in self.world.state.signals
                    if sent.job == number and sent.restarts == job.restarts
                ]
                if asked and self.confirms and self.world.now >= asked[-1].at + 1:
                    saved = Checkpoint(job=number, restarts=job.restarts)
                    at = asked[-1].at + 1
                    said.append(Received(at=at, evidence="cgroup", message=saved))
            report = NodeReport(
                node=name,
                taken=self.world.now,
                interval=10.0,
                version="0",
                gpus=self.gpus,
                received=tuple(said),
            )
            self.onesd.service.hear(report)

    def second(self, number: int) -> None:
        """One second of onesd's life."""
        self.world.step(1.0)
        if number % 10 == 0 or self.world.state.signals:
            self.report()
        rounds = self.onesd.rounds
        for act in [rounds.round, rounds.tick] if number % 15 == 0 else [rounds.tick]:
            try:
                act()
            except SlurmError as fault:
                self.failures.append(str(fault))

    def live(self, seconds: int, *, until: Callable[[], bool] = lambda: False) -> float:
        """Let the time pass, at most until this is so; returns when that was."""
        for number in range(seconds):
            self.second(number)
            if until():
                break
        return self.world.now

    def alone(self, seconds: float) -> None:
        """The time passes without onesd."""
        self.world.step(seconds)

    def outcomes(self, job: int) -> list[str]:
        rows = self.store.rows("SELECT outcome FROM moves WHERE job = ? ORDER BY id", job)
        return [row["outcome"] for row in rows]

    def step_of(self, job: int) -> str:
        """Where the job's move stands, or ''."""
        moves = self.onesd.service.open_moves()
        return next((move.step for move in moves if move.job == job), "")

    def preempt(self, job: int) -> None:
        """Begin what a policy may plan: stop this job, and keep it held."""
        self.move(Move(job=JobId(job), kind="preempt", reason="a test"))

    def move(self, move: Move) -> None:
        """Begin a move as if a policy had planned it."""
        (job,) = (job for job in self.onesd.rounds.published.jobs if job.id == move.job)
        self.onesd.moves.begin(move, {job.id: job}, attach(self.cluster.snapshot()), by="a test")
