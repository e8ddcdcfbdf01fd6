"""The demonstration: the daemon's own rounds on a simulated cluster, faster than time."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeVar

import msgspec

from ones.daemon.config import Config
from ones.daemon.demo.people import GPUS_PER_NODE, NOTEBOOK, People, a_site
from ones.daemon.demo.trainings import Trainings
from ones.daemon.onesd.assembly import Onesd, assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.wire import NodeReport
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.gate import Verdict
from ones.slurm_ext.simulated.job import Job
from ones.slurm_ext.simulated.settings import Settings
from ones.slurm_ext.simulated.state import Happening
from ones.slurm_ext.simulated.world import World

log = logging.getLogger(__name__)
STEP = 2.0  # seconds of the cluster's time between two ticks
Answer = TypeVar("Answer")


class _Shared(SimulatedCluster):
    """A cluster that onesd's doors ask while its time goes on."""

    def __init__(self, world: World, one: threading.RLock) -> None:
        super().__init__(world)
        self._one = one

    def _carry_out(self, name: str, verdict: Verdict, act: Callable[[], Answer]) -> Answer:
        with self._one:
            return super()._carry_out(name, verdict, act)


class Show:
    """The cluster, its people and its onesd. Whoever has it calls `one_round` again and again."""

    def __init__(
        self, config: Config, store: Store, *, nodes: int, operator: str, seed: int, now: float
    ) -> None:
        self.begun: Counter[str] = Counter()  # moves, by kind
        self._one = threading.RLock()
        self._people = People(nodes * GPUS_PER_NODE, Random(f"people {seed}"))
        self.world = World(
            a_site(nodes, operator),
            Settings(),
            rng=Random(f"world {seed}"),
            now=now,
            listener=self._happened,
        )
        cluster = _Shared(self.world, self._one)
        self.onesd: Onesd = assemble(config, cluster, store, clock=lambda: self.world.now)
        self._trainings = Trainings(
            self.world,
            Random(f"trainings {seed}"),
            hear=self._hears,
            lease=self.onesd.service.lease,
            interval=config.round,
            varied=True,
        )
        self.world.new_jobs_are_held(self.onesd.service.steering.holds)
        self._round = config.round
        for _ in range(self._people.at_first):
            self._comes()
        self.world.at(self.world.now + self._people.until_next(), self._next_comes)

    def one_round(self) -> None:
        """A round, and what happens until the next one."""
        with self._one:
            self._trainings.report()
        self._attempt(self.onesd.rounds.round)
        decisions = self.onesd.service.published.decisions
        self.begun.update(each.kind for each in decisions if each.verdict == "begun")
        until = self.world.now + self._round
        while self.world.now < until:
            with self._one:
                self.world.step(min(STEP, until - self.world.now))
                self._trainings.signals()
            if self.onesd.service.open_moves():
                self._attempt(self.onesd.rounds.tick)

    def _attempt(self, work: Callable[[], object]) -> None:
        """As onesd's loop does it: a failure ends nothing."""
        try:
            work()
        except SlurmError as fault:
            log.warning("%s", fault)

    def _hears(self, report: NodeReport) -> None:
        """A node's report: on the GPUs of notebooks nothing computes."""
        state = self.world.state
        holders = state.nodes[report.node].whole
        idle = {
            gpu
            for gpu, job in enumerate(holders)
            if job in state.jobs and state.jobs[job].name == NOTEBOOK
        }
        gpus = (
            msgspec.structs.replace(gpu, utilization=0.0) if gpu.minor in idle else gpu
            for gpu in report.gpus
        )
        self.onesd.service.hear(msgspec.structs.replace(report, gpus=tuple(gpus)))

    def _happened(self, what: Happening, job: Job) -> None:
        if what == "forgotten":
            self._trainings.of.pop(job.id, None)
        self._trainings.happened(what, job)

    def _next_comes(self) -> None:
        waiting = sum(job.state == "PENDING" for job in self.world.state.alive())
        if waiting < self._people.most_waiting:
            self._comes()
        self.world.at(self.world.now + self._people.until_next(), self._next_comes)

    def _comes(self) -> None:
        arrival = self._people.next()
        number = self.world.by(arrival.user).submit(arrival.request)
        if arrival.training is not None:
            arrival.training.job = number
            self._trainings.of[number] = arrival.training
