"""A cluster that has more work than GPUs, on the simulated Slurm, and onesd on it."""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import process_time

from ones.daemon.config import Config
from ones.daemon.demo.people import Arrival, People
from ones.daemon.demo.trainings import Trainings
from ones.daemon.onesd.assembly import assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.wire import Lease, NodeReport
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.job import Job
from ones.slurm_ext.simulated.settings import NodeSpec, Settings, Site, numbered
from ones.slurm_ext.simulated.state import Happening
from ones.slurm_ext.simulated.world import World
from ones.slurm_ext.snapshot import ALIVE

GPUS = 8  # of a node
SWITCH = 32  # nodes below one leaf switch
USERS, ACCOUNTS = 200, 20
ELASTIC = 0.3  # of the jobs
PLAIN_GPUS = 0.6  # of the GPUs, which plain jobs hold when the elastic ones come
CHANGING = 0.02  # of the jobs, from one round to the next
STEPS = ("observe", "estimate", "decide", "check", "act", "record")


class BusyCluster:
    """The cluster, its agents and its people. Nothing happens before `begin`."""

    trainings: Trainings

    def __init__(
        self,
        *,
        nodes: int,
        jobs: int,
        seed: int,
        interval: float,
        changing: float = CHANGING,
        users: Sequence[str] = tuple(f"user{user:03}" for user in range(USERS)),
        now: float = 1_000_000.0,
    ) -> None:
        """`interval`: seconds between two reports of an agent; `changing`: see some_change."""
        self._users = users
        self.nodes, self.jobs = nodes, jobs
        self._changing = changing
        self._rng = Random(f"changes {seed}")
        self._people = People(nodes * GPUS, Random(f"people {seed}"))
        # Backfill is left out: the queue is served in order, and benchmarks are in a hurry.
        settings = Settings(schedule=5.0, backfill=1e12)
        self.world = World(
            a_site(nodes, users),
            settings,
            rng=Random(f"world {seed}"),
            now=now,
            listener=self._happened,
        )
        self._seed, self._interval = seed, interval

    def begin(
        self, *, hear: Callable[[NodeReport], None], lease: Callable[[int], Lease | None]
    ) -> int:
        """Plain jobs run, and elastic ones have come; how many plain ones are still to come once
        onesd has seen to those.

        `hear` takes the agents' reports, `lease` is what onesd tells of a job.
        """
        self.trainings = Trainings(
            self.world,
            Random(f"trainings {self._seed}"),
            hear=hear,
            lease=lease,
            interval=self._interval,
            varied=True,
        )
        plain = self.jobs - round(ELASTIC * self.jobs)
        asked = 0
        while plain and asked < PLAIN_GPUS * self.nodes * GPUS:
            asked += self._comes(elastic=False)
            plain -= 1
        self.world.step(30.0)
        for _ in range(round(ELASTIC * self.jobs)):
            self._comes(elastic=True)
        return plain

    def fill(self, plain: int) -> None:
        """So many plain jobs come, for which there is no room."""
        for _ in range(plain):
            self._comes(elastic=False)

    def _comes(self, *, elastic: bool) -> int:
        """One more job is submitted; the GPUs that it asks for."""
        arrival = next(one for one in iter(self._people.next, None) if _is(one, elastic))
        user = self._users[self._rng.randrange(len(self._users))]
        number = self.world.by(user).submit(arrival.request)
        if arrival.training is not None:
            training = arrival.training
            training.job, training.user = number, user
            self.trainings.of[number] = training
        return int(arrival.request.wants.tres_per_job.rpartition(":")[2])

    def _happened(self, what: Happening, job: Job) -> None:
        if what == "forgotten":
            self.trainings.of.pop(job.id, None)
        self.trainings.happened(what, job)

    def some_change(self) -> None:
        """So many of the jobs change: as many come as end."""
        changing = max(2, round(self._changing * self.jobs))
        self._end(changing // 2)
        for _ in range(changing - changing // 2):
            self._comes(elastic=self._rng.random() < ELASTIC)

    def turnover(self) -> None:
        """So many of the jobs end, and others come in their place, and in that of all that have
        ended by themselves."""
        self._end(max(1, round(self._changing * self.jobs)))
        alive = sum(job.state in ALIVE for job in self.world.state.jobs.values())
        for _ in range(self.jobs - alive):
            self._comes(elastic=self._rng.random() < ELASTIC)

    def _end(self, jobs: int) -> None:
        running = [job for job in self.world.state.jobs.values() if self.world.runs(job.id)]
        for job in self._rng.sample(running, min(len(running), jobs)):
            self.world.finish(job.id)


class _Clock:
    """The world's clock, which goes on while the daemon computes: by its CPU time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since = process_time()

    def __call__(self) -> float:
        return self._world.now + self.spent

    @property
    def spent(self) -> float:
        return process_time() - self._since

    def begin(self) -> None:
        """What was done since the last call was not the daemon's work."""
        self._since = process_time()


class Busy:
    """Such a cluster and its onesd, round by round."""

    def __init__(
        self, folder: Path, *, nodes: int, jobs: int, config: Config, changing: float = CHANGING
    ) -> None:
        self.ticks: list[float] = []  # CPU seconds of each
        self._round = config.round
        self.cluster = BusyCluster(
            nodes=nodes,
            jobs=jobs,
            seed=config.seed,
            interval=config.round,
            changing=changing,
        )
        world = self.cluster.world
        self.metrics = Metrics()
        self._clock = _Clock(world)
        self.store = Store(folder / "ones.sqlite")
        self.onesd = assemble(
            config,
            SimulatedCluster(world),
            self.store,
            clock=self._clock,
            metrics=self.metrics,
        )
        world.new_jobs_are_held(self.onesd.service.steering.holds)
        service = self.onesd.service
        plain = self.cluster.begin(hear=service.hear, lease=service.lease)
        for _ in range(2):
            self.one_round()
        self.cluster.fill(plain)

    def one_round(self, profile: cProfile.Profile | None = None) -> dict[str, float]:
        """CPU seconds of a round by step; behind it the ticks until the next one."""
        self.cluster.trainings.report()
        self._clock.begin()
        if profile is not None:
            profile.enable()
        self.onesd.rounds.round()
        if profile is not None:
            profile.disable()
        seconds = self._clock.spent
        steps = {
            step: self.metrics.registry.get_sample_value("ones_round_step_seconds", {"step": step})
            or 0.0
            for step in STEPS
        }
        left = self._round - seconds
        self._pass(seconds)
        while left > 0:
            pause = min(left, self.onesd.rounds.tick_interval())
            left -= pause
            self._pass(pause)
            if self.onesd.service.open_moves():
                self._clock.begin()
                self.onesd.rounds.tick()
                self.ticks.append(self._clock.spent)
        self._clock.begin()
        return {"round": seconds, **steps}

    def _pass(self, seconds: float) -> None:
        """So much time of the cluster's."""
        self._clock.begin()
        self.cluster.world.step(seconds)
        self.cluster.trainings.signals()

    def forget_ticks(self) -> None:
        self.ticks.clear()

    def close(self) -> None:
        self.store.close()


def _is(arrival: Arrival, elastic: bool) -> bool:
    return (arrival.training is not None) == elastic


def a_site(nodes: int, users: Sequence[str]) -> Site:
    one = NodeSpec(name="n", gpus=GPUS, gpu_type="a100", cpus=128, memory=1_024_000)
    return Site(
        nodes=numbered(nodes, one, below_a_leaf=SWITCH),
        users={user: f"account{at % ACCOUNTS:02}" for at, user in enumerate(users)},
    )
