"""Who trains on the cluster of the demonstration: jobs come, at random, for as long as it runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from random import Random

from ones.daemon.demo.trainings import Training
from ones.slurm_ext.simulated.job import Wants
from ones.slurm_ext.simulated.settings import NodeSpec, Site, numbered
from ones.slurm_ext.simulated.submission import Request

GPUS_PER_NODE = 4
NODES_PER_SWITCH = 16
USERS = {
    **{"alice": "vision", "bob": "vision", "carol": "language"},
    **{"dave": "language", "erin": "speech", "frank": "biology"},
}
NAMES = ("resnet50", "bert-large", "gpt2-medium", "whisper", "unet3d", "alphafold", "dlrm", "vit-b")
SIZES = {1: "1-8", 2: "1-16", 4: "2-16", 8: "4-32", 16: "8-64"}  # asked for -> accepted
NOTEBOOK = "jupyter"  # a plain job in which nothing computes
ASKED = (1, 1, 2, 2, 4, 4, 4, 8, 8, 16)
LOAD = 1.3  # GPU seconds that are asked for, to those that the cluster has
ELASTIC, LIVE, TUNES = 0.85, 0.4, 0.3  # so many of the jobs
NOTEBOOKS = 0.6  # so many of the plain ones for one or two GPUs
SHORTEST, LONGEST = 300.0, 14400.0  # seconds at the size asked for
LIMIT = 2.0  # time limit of a job, to how long it would run


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job to come, and what runs in it; None: a plain job."""

    user: str
    request: Request
    training: Training | None


def a_site(nodes: int, operator: str) -> Site:
    """So many nodes of four GPUs below leaf switches, with one more user who may steer."""
    one = NodeSpec(name="n", gpus=GPUS_PER_NODE, gpu_type="a100", cpus=64, memory=512_000)
    return Site(
        nodes=numbered(nodes, one, below_a_leaf=NODES_PER_SWITCH),
        users=dict(USERS),
        operators=frozenset({"ones", operator}),
    )


class People:
    """Arrivals that ask for more than the cluster has."""

    def __init__(self, gpus: int, rng: Random) -> None:
        self._rng = rng
        asked = sum(ASKED) / len(ASKED)
        seconds = (LONGEST - SHORTEST) / log(LONGEST / SHORTEST)
        self._between = asked * seconds / (LOAD * gpus)
        self.at_first = max(4, round(gpus / asked))  # jobs that are there from the start on
        self.most_waiting = max(4, round(gpus / asked / 2))  # jobs; then nobody else comes

    def until_next(self) -> float:
        """Seconds."""
        return self._rng.expovariate(1 / self._between)

    def next(self) -> Arrival:
        rng = self._rng
        user, name, asked = rng.choice(sorted(USERS)), rng.choice(NAMES), rng.choice(ASKED)
        seconds = SHORTEST * (LONGEST / SHORTEST) ** rng.random()
        elastic = rng.random() < ELASTIC
        if not elastic and asked <= 2 and rng.random() < NOTEBOOKS:
            name = NOTEBOOK
        request = Request(
            wants=Wants(tres_per_job=f"gres/gpu:{asked}", nodes=(1, ceil(asked / GPUS_PER_NODE))),
            name=name,
            elastic=SIZES[asked] if elastic else None,
            time_limit=min(86400.0, max(1800.0, LIMIT * seconds)),
            seconds=None if elastic else seconds,
        )
        return Arrival(user, request, self._training(user, asked, seconds) if elastic else None)

    def _training(self, user: str, asked: int, seconds: float) -> Training:
        rng = self._rng
        speed, scale = rng.uniform(50.0, 400.0), rng.uniform(0.75, 0.95)
        batch = rng.choice((64, 128, 256)) * asked
        tunes = rng.random() < TUNES
        step = batch / (speed * asked**scale)  # seconds
        return Training(
            job=0,
            user=user,
            total=speed * asked**scale * seconds,
            speed=speed,
            scale=scale,
            submitted=batch,
            batch=batch,
            most_batch=8 * batch,
            most_per_gpu=batch,
            # What of a step does not grow with the batch makes larger ones worth having.
            fixed=rng.uniform(0.1, 0.3) * step if tunes else 0.0,
            loss=rng.uniform(2.0, 11.0),
            epochs=rng.choice((30, 90, 300)),
            tunes=tunes,
            live=rng.random() < LIVE,
            answers=rng.uniform(2.0, 10.0),
        )
