"""Simulated clusters with people who submit jobs, and a whole onesd beside each.

Jobs of one user and name are alike but for their length, which differs by about a third.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from random import Random

from ones.daemon.config import Config
from ones.daemon.ctl.where import Told
from ones.daemon.demo.people import GPUS_PER_NODE, NAMES, SIZES, USERS, a_site
from ones.daemon.demo.trainings import Training, Trainings
from ones.daemon.onesd.assembly import Onesd, assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.doors.askers import Peer
from ones.daemon.onesd.doors.where import Question, where
from ones.daemon.onesd.forecast.process import foresee
from ones.slurm_ext.described import Described
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.job import Job, Wants
from ones.slurm_ext.simulated.settings import Settings
from ones.slurm_ext.simulated.state import Happening
from ones.slurm_ext.simulated.submission import Request
from ones.slurm_ext.simulated.world import World

ROUND = 60.0  # seconds
AGENTS = 10.0  # between two reports of an agent
LAST = 3 * 86400.0  # seconds in which a job must have ended
NODES = (2, 3, 4, 6, 8)
SHORTEST, LONGEST = 300.0, 1800.0  # seconds at the size asked for, of families
SPREAD = 0.3  # of ln(length) within one
SIZED = (1, 2, 2, 4, 4, 8)
FAMILIES = 16


@dataclass(frozen=True, slots=True)
class Family:
    """What the jobs of one user and name have in common."""

    user: str
    name: str
    gpus: int
    seconds: float  # at that size
    speed: float
    scale: float
    live: bool

    def request(self, *, elastic: bool, seconds: float) -> Request:
        return Request(
            wants=Wants(
                tres_per_job=f"gres/gpu:{self.gpus}", nodes=(1, ceil(self.gpus / GPUS_PER_NODE))
            ),
            name=self.name,
            elastic=SIZES[self.gpus] if elastic else None,
            time_limit=86400.0 if elastic else 2.0 * seconds,
            seconds=None if elastic else seconds,
        )

    def training(self, seconds: float, rng: Random) -> Training:
        rate = self.speed * self.gpus**self.scale
        return Training(
            job=0,
            user=self.user,
            total=rate * seconds,
            speed=self.speed,
            scale=self.scale,
            submitted=64 * self.gpus,
            batch=64 * self.gpus,
            most_batch=512 * self.gpus,
            most_per_gpu=64 * self.gpus,
            live=self.live,
            epochs=60,
            answers=rng.uniform(2.0, 10.0),
        )

    def length(self, rng: Random) -> float:
        return self.seconds * rng.lognormvariate(0.0, SPREAD)


def families(rng: Random) -> list[Family]:
    pairs = rng.sample([(user, name) for user in sorted(USERS) for name in NAMES], FAMILIES)
    return [
        Family(
            user=user,
            name=name,
            gpus=rng.choice(SIZED),
            seconds=SHORTEST * (LONGEST / SHORTEST) ** rng.random(),
            speed=rng.uniform(50.0, 400.0),
            scale=rng.uniform(0.75, 0.95),
            live=rng.random() < 0.4,
        )
        for user, name in pairs
    ]


@dataclass(frozen=True, slots=True)
class Came:
    """A job that somebody submitted."""

    job: int
    at: float
    seconds: float  # at the size that it asks for
    elastic: bool


class Cluster:
    """One cluster with its people and its onesd."""

    def __init__(
        self,
        name: str,
        policy: str,
        *,
        seed: str,
        rng: Random,
        there: list[Family],
        loads: tuple[float, float],
        elastic: float,
        tick: float,
    ) -> None:
        """`loads`: from how much to how much is asked for of what there is. `elastic`: so many of
        the jobs. `tick`: seconds between two looks of onesd at moves under way."""
        self.name = name
        self.nodes = rng.choice(NODES)
        self.load = rng.uniform(*loads)
        self._there = there
        self._elastic = elastic
        self._tick = tick
        self.came: list[Came] = []
        self.idle = 0.0  # GPU seconds while somebody waits
        self._ended: dict[int, float] = {}
        self._draw = Random(f"people {seed}")
        config = Config(policy=policy, mode="act", round=ROUND, store=":memory:")
        self._woken = False
        self.world = World(
            a_site(self.nodes, "root"), Settings(), rng=Random(f"world {seed}"),
            now=1.7e9, listener=self._happened,
        )  # fmt: skip
        self._store = Store(":memory:")
        self.onesd: Onesd = assemble(
            config,
            SimulatedCluster(self.world),
            self._store,
            clock=lambda: self.world.now,
        )
        self._trainings = Trainings(
            self.world,
            Random(f"trainings {seed}"),
            hear=self.onesd.service.hear,
            lease=self.onesd.service.lease,
            interval=AGENTS,
        )
        self._reported = self.world.now
        self.world.new_jobs_are_held(self.onesd.service.steering.holds)
        gpus = self.nodes * GPUS_PER_NODE
        asked = sum(one.gpus * one.seconds for one in there) / len(there)
        self._between = asked / (self.load * gpus)
        per_job = sum(one.gpus for one in there) / len(there)
        for _ in range(round(self.load * gpus / per_job)):
            self._comes()
        self.world.at(self.world.now + self._until_next(), self._next_comes)

    def _until_next(self) -> float:
        return self._draw.expovariate(1 / self._between)

    def _next_comes(self) -> None:
        self._comes()
        self.world.at(self.world.now + self._until_next(), self._next_comes)

    def _comes(self) -> None:
        family = self._draw.choice(self._there)
        seconds = family.length(self._draw)
        self.submit(family, seconds, elastic=self._draw.random() < self._elastic)

    def submit(self, family: Family, seconds: float, *, elastic: bool = True) -> int:
        number = self.world.by(family.user).submit(family.request(elastic=elastic, seconds=seconds))
        if elastic:
            training = family.training(seconds, self._draw)
            training.job = number
            self._trainings.of[number] = training
        self.came.append(Came(number, self.world.now, seconds, elastic))
        return number

    def _happened(self, what: Happening, job: Job) -> None:
        # As the hooks and the agents tell onesd, which looks again as soon as it hears of it.
        self._woken |= what in ("submitted", "ended")
        if what == "ended":
            self._ended[job.id] = job.ended
        if what == "forgotten":
            self._trainings.of.pop(job.id, None)
        self._trainings.happened(what, job)

    def live(self, seconds: float) -> None:
        """Let the time pass, round by round."""
        until = self.world.now + seconds
        while self.world.now < until:
            self._round()

    def _round(self) -> None:
        """A round, and the time to the next one, which an event brings forward."""
        with self._tried_again():
            self.onesd.rounds.round()
        self._woken = False
        until = self.world.now + ROUND
        while self.world.now < until and not self._woken:
            step = min(self._tick, until - self.world.now)
            self.world.step(step)
            self.idle += step * self._idle_now()
            self._trainings.signals()
            if self.world.now - self._reported >= AGENTS:
                self._trainings.report()
                self._reported = self.world.now
            with self._tried_again():
                self._woken |= self.onesd.rounds.tick()

    def _idle_now(self) -> int:
        """GPUs that nobody holds, or whose job has not begun to work; none if nobody waits."""
        jobs = self.world.state.jobs.values()
        if not any(job.state == "PENDING" for job in jobs):
            return 0
        busy = sum(job.gpus for job in jobs if job.state == "RUNNING" and not job.flags)
        return self.nodes * GPUS_PER_NODE - busy

    def ended(self, job: int) -> float:
        """When it has ended; one that has not ends now."""
        return self._ended.get(job, self.world.now)

    def moves(self) -> Counter[tuple[str, str]]:
        """How many moves of each kind had which outcome; '' of those under way."""
        rows = self._store.rows("SELECT kind, outcome FROM moves")
        return Counter((row["kind"], row["outcome"]) for row in rows)

    @staticmethod
    @contextmanager
    def _tried_again() -> Iterator[None]:
        """A fault of Slurm's is met in the next round, or tick, once more."""
        try:
            yield
        except SlurmError as fault:
            logging.getLogger(__name__).debug("%s", fault)

    def asked(self, family: Family, length: dict[str, float] | None = None) -> Told:
        """What its onesd answers onesctl."""
        describes = Described(
            sizes=SIZES[family.gpus],
            name=family.name,
            gpus=str(family.gpus),
            nodes=1,
            most_nodes=ceil(family.gpus / GPUS_PER_NODE),
            time_limit=86400.0,
        )
        of = {} if length is None else {"length": length["seconds"], "spread": length["spread"]}
        peer = Peer(uid=1000, name=family.user, admin=False)
        question = Question(asks=describes, **of)
        answer = where(self.onesd.service, foresee, peer, question)
        return Told(self.name, self.name == "a", answer)

    def until_over(self, job: int) -> float:
        """Seconds until the job has ended."""
        began = self.world.now
        while self.world.now < began + LAST:
            self._round()
            if job in self._ended:
                return self._ended[job] - began
        return LAST
