"""A simulated cluster in which jobs feel where they sit, as far as that was ever measured.

Liquid's authors published how long three models run with a parameter server and two workers on one
node, on two and on three. Traffic over switches further up may be taken to cost more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from math import log
from statistics import fmean
from time import process_time

import numpy as np

from ones.daemon.replay.jobs import SimulatedJob

# The simulation is built by hand, since these jobs are not those of `replay`.
from ones.daemon.replay.simulation import World, _Simulation
from ones.daemon.replay.workload import OutsideProfile, Step, TraceJob
from ones.estimator.assess import Knowledge
from ones.estimator.experience import Experience
from ones.policies.model import Batch, Floats, JobId, Node, Seconds
from ones.policies.network.topology import Topology
from ones.policies.registry import make
from ones.policies.shapes import realisable
from ones.policies.sizes import Sizes


def tree(nodes: int, *, gpus: int, leaf: int, domain: int) -> tuple[Node, ...]:
    """So many nodes a leaf switch and a domain, under one root."""
    return tuple(
        Node(
            name=f"n{at:05d}",
            gpu_type="t4",
            gpus=gpus,
            switches=(f"leaf{at // leaf:03d}", f"domain{at // domain:02d}", "root"),
        )
        for at in range(nodes)
    )


# Seconds of a job as measured (Liquid's own repository): alone; its server and workers together;
# server and worker on a node, the other worker elsewhere; all three apart.
MEASURED = {
    "vgg16": (220.0, 510.0, 767.0, 810.0),
    "resnet50": (146.0, 203.0, 204.0, 210.0),
    "inception3": (253.0, 289.0, 295.0, 290.0),
}
STEPS = 1000.0  # in these seconds


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A job that was measured by placement, on 1 GPU or as 1 server and 2 workers."""

    name: str
    gpus: int
    runs: float  # how many times the measured length

    @property
    def batches(self) -> Batch:
        return Batch(submitted=self.gpus, most_per_gpu=1, most=self.gpus)

    @property
    def sizes(self) -> Sizes:
        return Sizes((self.gpus,))

    @property
    def epochs(self) -> Floats:
        return np.array([self.runs * STEPS])

    @property
    def restart_seconds(self) -> Seconds:
        return 0.0

    def runs_on(self, gpu_type: str) -> bool:
        return True

    def step(self, gpu_type: str, gpus_on: tuple[int, ...], local_batch: int) -> Step:
        return self.step_over(len(gpus_on), 1.0)

    def step_over(self, nodes: int, times: float) -> Step:
        """What was measured beyond the time together counts so many times."""
        alone, *apart = MEASURED[self.name]
        if self.gpus == 1:
            return Step(alone / STEPS, 0.0)
        if not 1 <= nodes <= len(apart):
            raise OutsideProfile(f"{self.name} was not measured on {nodes} nodes")
        extra = times * (apart[nodes - 1] - apart[0])
        return Step((apart[0] + extra) / STEPS, (apart[0] - alone + extra) / STEPS)

    def gradient(self, batch: float, epoch: int) -> None:
        """Every sample counts fully."""


@dataclass(slots=True)
class SitedJob(SimulatedJob):
    """A simulated job whose traffic takes longer over higher switches."""

    topology: Topology | None = None
    factors: tuple[float, ...] = (1.0,)  # by level, leaf first

    def step_seconds(self) -> tuple[Seconds, Seconds] | None:
        application = self.trace.application
        if self.placement is None or self.topology is None or not isinstance(application, Measured):
            return None
        at = np.array([self.topology.index[name] for name in self.placement.nodes])
        same = (self.topology.above[:, at] == self.topology.above[:, at[:1]]).all(axis=1)
        level = int(same.argmax())
        times = self.factors[min(level, len(self.factors) - 1)]
        step = application.step_over(len(at), times)
        return step.seconds, step.sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A replay: which network, how much load, which seed."""

    factors: tuple[float, ...]
    load: float
    seed: int
    jobs: int = 200
    nodes: tuple[Node, ...] = field(
        default_factory=lambda: tree(32, gpus=4, leaf=8, domain=16), hash=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Means over jobs, in seconds."""

    execution: float
    completion: float


def arrivals(setting: Setting) -> list[TraceJob]:
    """Two jobs in three have a server and two workers; GPUs are asked for at the given load."""
    rng = np.random.default_rng([setting.seed, 11])
    made: list[tuple[Measured, float]] = []
    for _ in range(setting.jobs):
        name = str(rng.choice(list(MEASURED)))
        gpus = 3 if rng.random() < 2 / 3 else 1
        made.append((Measured(name, gpus, float(rng.lognormal(log(3.0), 0.7))), rng.exponential()))
    seconds = sum(
        one.gpus * one.runs * MEASURED[one.name][1 if one.gpus > 1 else 0] for one, _ in made
    )
    capacity = sum(node.gpus for node in setting.nodes)
    gap = seconds / capacity / setting.load / setting.jobs
    submitted = np.cumsum([wait for _, wait in made]) * gap
    return [
        TraceJob(
            name=f"job-{number}",
            user="ada",
            family=f"{one.name}-{one.gpus}",
            account="lab",
            submitted=float(at),
            application=one,
            requested=one.gpus,
            batch=None,
            sizes=one.sizes,
        )
        for number, ((one, _), at) in enumerate(zip(made, submitted, strict=True))
    ]


def replayed(policy: str, setting: Setting, *, warm: bool = True) -> Outcome:
    """With `warm` the families have been seen before, scattered at random, as on another day."""
    experience = Experience()
    if warm:
        before = replace(setting, seed=setting.seed + 1000, jobs=100)
        _run("liquid:placement=random", before, experience)
        experience.forget_jobs()
    jobs = _run(policy, setting, experience)
    return Outcome(
        execution=fmean(job.executed for job in jobs),
        completion=fmean((job.finished or 0.0) - job.trace.submitted for job in jobs),
    )


def _run(policy: str, setting: Setting, experience: Experience) -> list[SitedJob]:
    topology = _topology(setting.nodes)
    names = frozenset(node.name for node in setting.nodes)
    shapes = {
        gpus: realisable(Sizes((gpus,)), [node.gpus for node in setting.nodes]) for gpus in (1, 3)
    }
    jobs = [
        SitedJob(
            id=JobId(number),
            trace=trace,
            shapes=shapes[trace.requested],
            nodes=names,
            topology=topology,
            factors=setting.factors,
        )
        for number, trace in enumerate(arrivals(setting), start=1)
    ]
    simulation = _Simulation(
        world=World(nodes=setting.nodes, round_seconds=30.0, seed=setting.seed),
        policy=make(policy),
        jobs=list(jobs),
        experience=experience,
        knowledge=Knowledge(),
        truth=False,
        clock=process_time,
    )
    simulation.run(None)
    return jobs


@cache
def _topology(nodes: tuple[Node, ...]) -> Topology:
    return Topology.of(nodes)
