"""Whether the cluster that `onesctl where` names is the one in which a job ends first.

usage: scripts/benchmark-where [--cases N] [--seed S] [--policy P] [--json]

Each case is two simulated clusters of other sizes and loads, each with a whole onesd, after three
quarters of an hour of jobs that come and go. Both are asked what would become of a job, as onesctl
asks them; then it is submitted to both, and each goes on until it has ended, while others go on
coming. Jobs of one user and name are alike but for their length, which differs by about a third;
what is known of the job is what others of its user and name have reported in that cluster, if any.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from random import Random
from statistics import median

from ones.daemon.config import Config
from ones.daemon.ctl.where import Told, one_length, ranked
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

SEED = 840_000
ROUND, STEP = 60.0, 5.0  # seconds
AGENTS = 10.0  # between two reports of an agent
WARM = 2700.0  # seconds before the question
LAST = 3 * 86400.0  # seconds after it, in which the job must have ended
NODES = (2, 3, 4, 6, 8)
LOADS = (0.1, 1.2)
ELASTIC = 0.8  # so many of the jobs
SHORTEST, LONGEST = 300.0, 1800.0  # seconds at the size asked for, of families
SPREAD = 0.3  # of ln(length) within one
SIZED = (1, 2, 2, 4, 4, 8)
FAMILIES = 16
ALIKE = 60.0  # seconds: of two ends that are this near either cluster was the right one


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


class Cluster:
    """One cluster with its people and its onesd."""

    def __init__(
        self, name: str, policy: str, *, seed: str, rng: Random, there: list[Family]
    ) -> None:
        self.name = name
        self.nodes = rng.choice(NODES)
        self.load = rng.uniform(*LOADS)
        self._there = there
        self._draw = Random(f"people {seed}")
        config = Config(policy=policy, mode="act", round=ROUND, store=":memory:")
        self._woken = False
        self.world = World(
            a_site(self.nodes, "root"), Settings(), rng=Random(f"world {seed}"),
            now=1.7e9, listener=self._happened,
        )  # fmt: skip
        self.onesd: Onesd = assemble(
            config,
            SimulatedCluster(self.world),
            Store(":memory:"),
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
        self.submit(family, seconds, elastic=self._draw.random() < ELASTIC)

    def submit(self, family: Family, seconds: float, *, elastic: bool = True) -> int:
        number = self.world.by(family.user).submit(family.request(elastic=elastic, seconds=seconds))
        if elastic:
            training = family.training(seconds, self._draw)
            training.job = number
            self._trainings.of[number] = training
        return number

    def _happened(self, what: Happening, job: Job) -> None:
        # As the hooks and the agents tell onesd, which looks again as soon as it hears of it.
        self._woken |= what in ("submitted", "ended")
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
        self._attempt(self.onesd.rounds.round)
        self._woken = False
        until = self.world.now + ROUND
        while self.world.now < until and not self._woken:
            self.world.step(min(STEP, until - self.world.now))
            self._trainings.signals()
            if self.world.now - self._reported >= AGENTS:
                self._trainings.report()
                self._reported = self.world.now
            if self.onesd.service.open_moves():
                self._attempt(self.onesd.rounds.tick)

    @staticmethod
    def _attempt(work: object) -> None:
        try:
            work()  # type: ignore[operator]
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
            there = self.world.state.jobs.get(job)
            if there is None or there.state not in ("PENDING", "RUNNING", "SUSPENDED"):
                ended = there.ended if there is not None and there.ended else self.world.now
                return ended - began
        return LAST


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What was foretold, and what came."""

    seed: int
    named: str
    foretold: dict[str, float | None]
    ended: dict[str, float]
    clear: bool  # whether every draw said the same
    known: int  # clusters that knew jobs like it
    nodes: dict[str, int]
    loads: dict[str, float]

    @property
    def lost(self) -> float:
        """Seconds by which the job ended later than in the other cluster."""
        return max(0.0, self.ended[self.named] - min(self.ended.values()))

    @property
    def right(self) -> bool:
        return self.lost <= ALIKE


def one_case(chosen: tuple[int, str]) -> Case:
    seed, policy = chosen
    logging.disable(logging.CRITICAL)
    rng = Random(f"case {seed}")
    every = families(rng)
    newcomer = every[0]
    clusters = []
    for name in ("a", "b"):
        # Half of the clusters have seen nobody like it.
        there = every if rng.random() < 0.5 else every[1:]
        clusters.append(Cluster(name, policy, seed=f"{seed} {name}", rng=rng, there=there))
    seconds = newcomer.length(rng)
    for one in clusters:
        one.live(WARM)
    told = [one.asked(newcomer) for one in clusters]
    best = one_length(told)
    known = sum(not (one.answer["length"] or {"guessed": True})["guessed"] for one in told)
    if best is not None:
        told = [
            one
            if one is best or not one.answer["length"]["guessed"]
            else cluster.asked(newcomer, best.answer["length"])
            for one, cluster in zip(told, clusters, strict=True)
        ]
    ranks = ranked(told)
    sooner = ranks[1].before(ranks[0])[0]
    ended = {one.name: one.until_over(one.submit(newcomer, seconds)) for one in clusters}
    return Case(
        seed=seed,
        named=ranks[0].cluster,
        foretold={one.cluster: one.end for one in told},
        ended=ended,
        clear=not sooner,
        known=known,
        nodes={one.name: one.nodes for one in clusters},
        loads={one.name: round(one.load, 2) for one in clusters},
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-where", description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=SEED, help="of the first case")
    parser.add_argument("--policy", default="ones")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", dest="as_json")
    chosen = parser.parse_args(arguments)
    asked = [(chosen.seed + number, chosen.policy) for number in range(chosen.cases)]
    cases = []
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        for case in pool.imap(one_case, asked):
            cases.append(case)
            if not chosen.as_json:
                print(_line(case), flush=True)
    print(json.dumps(_summary(cases), indent=2) if chosen.as_json else _words(cases))
    return 0


def _line(case: Case) -> str:
    parts = [
        f"{name} ({case.nodes[name]} nodes, load {case.loads[name]}):"
        f" {case.foretold[name] or float('nan'):.0f} s foretold, {case.ended[name]:.0f} s"
        for name in sorted(case.ended)
    ]
    verdict = "right" if case.right else f"WRONG by {case.lost:.0f} s"
    doubt = "" if case.clear else ", in doubt"
    return f"{case.seed}: {'; '.join(parts)}; named {case.named}{doubt}: {verdict}"


def _summary(cases: Sequence[Case]) -> dict[str, object]:
    wrong = [case for case in cases if not case.right]
    clear = [case for case in cases if case.clear]
    stayed = [case for case in cases if case.ended["a"] <= min(case.ended.values()) + ALIKE]
    return {
        "cases": len(cases),
        "right": len(cases) - len(wrong),
        "agreement": (len(cases) - len(wrong)) / len(cases),
        "clear": len(clear),
        "clear_right": sum(case.right for case in clear),
        "lost_median_s": median(case.lost for case in wrong) if wrong else 0.0,
        "lost_most_s": max((case.lost for case in wrong), default=0.0),
        "submitting_right": len(stayed),
        "each": [asdict(case) for case in cases],
    }


def _words(cases: Sequence[Case]) -> str:
    found = _summary(cases)
    return (
        f"right in {found['right']} of {found['cases']} cases ({found['agreement']:.0%});"
        f" where all draws agreed, in {found['clear_right']} of {found['clear']}."
        f" The wrong ones lost {found['lost_median_s']:.0f} s in the median,"
        f" {found['lost_most_s']:.0f} s at most."
        f" To stay in the submitting cluster would have been right in {found['submitting_right']}."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
