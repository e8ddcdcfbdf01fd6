"""What a round of the whole daemon costs at scale: CPU seconds by step, and memory.

usage: scripts/benchmark-scale [--nodes N] [--jobs N] [--rounds N] [--policy NAME] [--json]
       scripts/benchmark-scale --slurm [--nodes N] [--jobs N] [--rounds N] [--json]

onesd's own round, in act mode, on a simulated Slurm: nodes of eight GPUs, three jobs in ten
elastic, users with limits of nothing but GPUs. From one round to the next one job in fifty changes:
half of them end, as many are submitted. All agents report before each round, and moves are advanced
between rounds as often as onesd does it. Seconds are of this process's CPU and of the daemon alone;
memory is that of the whole process, the simulated Slurm included. With --slurm it is a real one in
containers, and seconds are those that passed; see laboratory.py.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import process_time

from laboratory import measured

from ones.daemon.config import Config
from ones.daemon.demo.people import Arrival, People
from ones.daemon.demo.trainings import Trainings
from ones.daemon.onesd.assembly import assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.job import Job
from ones.slurm_ext.simulated.settings import NodeSpec, Settings, Site, numbered
from ones.slurm_ext.simulated.state import Happening
from ones.slurm_ext.simulated.world import World

NODES, JOBS, ROUNDS = 1280, 10_000, 10
GPUS = 8  # of a node
SWITCH = 32  # nodes below one leaf switch
USERS, ACCOUNTS = 200, 20
ELASTIC = 0.3  # of the jobs
PLAIN_GPUS = 0.6  # of the GPUs, which plain jobs hold when the elastic ones come
CHANGING = 0.02  # of the jobs, from one round to the next
WARM = 8  # rounds before those that are measured: jobs start and report
ROUND = 15.0
STEPS = ("observe", "estimate", "decide", "check", "act", "record")
PROFILED = 60  # functions that --profile shows


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--policy", default="ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--slurm", action="store_true", help="a real slurmctld, in containers")
    parser.add_argument("--profile", action="store_true", help="where the rounds' time goes")
    chosen = parser.parse_args(arguments)
    if min(chosen.nodes, chosen.jobs, chosen.rounds) < 1:
        parser.error("--nodes, --jobs and --rounds are at least 1")
    if chosen.slurm:
        found = measured(
            nodes=chosen.nodes, jobs=chosen.jobs, rounds=chosen.rounds, seed=chosen.seed
        )
        print(json.dumps(found, indent=2) if chosen.json else table(found))
        return 0
    profile = cProfile.Profile() if chosen.profile else None
    with tempfile.TemporaryDirectory(prefix="ones-scale-") as folder:
        site = Busy(
            Path(folder),
            nodes=chosen.nodes,
            jobs=chosen.jobs,
            policy=chosen.policy,
            seed=chosen.seed,
        )
        for _ in range(WARM):
            site.one_round()
        site.forget_ticks()
        rounds = []
        for _ in range(chosen.rounds):
            site.some_change()
            rounds.append(site.one_round(profile))
        found = figures(site, rounds)
        site.close()
    print(json.dumps(found, indent=2) if chosen.json else table(found))
    if profile is not None:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(PROFILED)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(PROFILED)
    return 0


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
    """A cluster that has more work than GPUs, with its agents, its people and its onesd."""

    def __init__(self, folder: Path, *, nodes: int, jobs: int, policy: str, seed: int) -> None:
        self.nodes, self.jobs = nodes, jobs
        self.ticks: list[float] = []  # CPU seconds of each
        self._rng = Random(f"changes {seed}")
        self._people = People(nodes * GPUS, Random(f"people {seed}"))
        # Backfill is left out: the queue is served in order, and benchmarks are in a hurry.
        settings = Settings(schedule=5.0, backfill=1e12)
        self.world = World(
            a_site(nodes), settings, rng=Random(f"world {seed}"), listener=self._happened
        )
        self.metrics = Metrics()
        self._clock = _Clock(self.world)
        self._store = Store(folder / "ones.sqlite")
        self.onesd = assemble(
            Config(mode="act", policy=policy, round=ROUND, seed=seed),
            SimulatedCluster(self.world),
            self._store,
            clock=self._clock,
            metrics=self.metrics,
        )
        self._trainings = Trainings(
            self.world,
            Random(f"trainings {seed}"),
            hear=self.onesd.service.hear,
            lease=self.onesd.service.lease,
            interval=ROUND,
            varied=True,
        )
        self.world.new_jobs_are_held(self.onesd.service.steering.holds)
        self._fill(round(ELASTIC * jobs))

    def _fill(self, elastic: int) -> None:
        """Plain jobs run, then elastic ones come, and then more plain ones than there is room."""
        plain = self.jobs - elastic
        asked = 0
        while plain and asked < PLAIN_GPUS * self.nodes * GPUS:
            asked += self._comes(elastic=False)
            plain -= 1
        self.world.step(30.0)
        for _ in range(elastic):
            self._comes(elastic=True)
        for _ in range(2):
            self.one_round()
        for _ in range(plain):
            self._comes(elastic=False)

    def _comes(self, *, elastic: bool) -> int:
        """One more job is submitted; the GPUs that it asks for."""
        arrival = next(one for one in iter(self._people.next, None) if _is(one, elastic))
        user = f"user{self._rng.randrange(USERS):03}"
        number = self.world.by(user).submit(arrival.request)
        if arrival.training is not None:
            training = arrival.training
            training.job, training.user = number, user
            self._trainings.of[number] = training
        return int(arrival.request.wants.tres_per_job.rpartition(":")[2])

    def _happened(self, what: Happening, job: Job) -> None:
        if what == "forgotten":
            self._trainings.of.pop(job.id, None)
        self._trainings.happened(what, job)

    def some_change(self) -> None:
        """One job in fifty: as many come as end."""
        changing = max(2, round(CHANGING * self.jobs))
        running = [job for job in self.world.state.jobs.values() if self.world.runs(job.id)]
        for job in self._rng.sample(running, min(len(running), changing // 2)):
            self.world.finish(job.id)
        for _ in range(changing - changing // 2):
            self._comes(elastic=self._rng.random() < ELASTIC)

    def one_round(self, profile: cProfile.Profile | None = None) -> dict[str, float]:
        """CPU seconds of a round by step; behind it the ticks until the next one."""
        self._trainings.report()
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
        left = ROUND - seconds
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
        self.world.step(seconds)
        self._trainings.signals()

    def forget_ticks(self) -> None:
        self.ticks.clear()

    def close(self) -> None:
        self._store.close()


def _is(arrival: Arrival, elastic: bool) -> bool:
    return (arrival.training is not None) == elastic


def a_site(nodes: int) -> Site:
    one = NodeSpec(name="n", gpus=GPUS, gpu_type="a100", cpus=128, memory=1_024_000)
    return Site(
        nodes=numbered(nodes, one, below_a_leaf=SWITCH),
        users={f"user{user:03}": f"account{user % ACCOUNTS:02}" for user in range(USERS)},
    )


def figures(site: Busy, rounds: Sequence[dict[str, float]]) -> dict[str, object]:
    """What --json prints. Seconds are of CPU, steps are [median, worst]."""
    seconds = [one["round"] for one in rounds]
    snapshot = site.onesd.service.published.snapshot
    held = [job for job in snapshot.jobs.values() if job.gpus_on]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "nodes": site.nodes,
        "gpus": site.nodes * GPUS,
        "jobs": len(snapshot.jobs),
        "elastic": len(site.onesd.service.published.jobs),
        "running": len(held),
        "rounds": len(rounds),
        "round_median_s": round(median(seconds), 3),
        "round_worst_s": round(max(seconds), 3),
        "steps": {
            step: [
                round(median(one[step] for one in rounds), 3),
                round(max(one[step] for one in rounds), 3),
            ]
            for step in STEPS
        },
        "tick_median_s": round(median(site.ticks or [0.0]), 3),
        "slurmctld_share": None,  # nobody's: the Slurm is simulated
        "memory_mib": round(peak / 1024),
    }


def table(found: dict[str, object]) -> str:
    """The same as lines of a Markdown table."""
    steps = found["steps"]
    assert isinstance(steps, dict)
    head = ["nodes", "GPUs", "jobs", "elastic", "run", "", "round", *STEPS, "tick", "MiB"]
    name = [f"{found[key]:,}" for key in ("nodes", "gpus", "jobs", "elastic", "running")]
    rows = [
        [
            *name,
            "median",
            f"{found['round_median_s']:.2f}",
            *(f"{steps[step][0]:.2f}" for step in STEPS),
            f"{found.get('tick_median_s', 0.0):.2f}",
            f"{found['memory_mib']:,}",
        ],
        [
            *[""] * len(name),
            "worst",
            f"{found['round_worst_s']:.2f}",
            *(f"{steps[step][1]:.2f}" for step in STEPS),
            "",
            "",
        ],
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
