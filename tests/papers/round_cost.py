"""What a round costs: CPU seconds of assessing and deciding, and the plan's distance to its bound.

usage: scripts/benchmark-round [--rounds N] [SIZE ...]   sizes: 64 1024 10240 (GPUs)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import process_time

import numpy as np

from ones.estimator.assess import Priors, assess
from ones.estimator.experience import Experience, GradientReport
from ones.estimator.progress import Progress
from ones.estimator.speed import Observation
from ones.policies.guard import History, Limits
from ones.policies.model import Batch, Job, JobId, Node, Plan, Problem
from ones.policies.registry import make
from ones.policies.round import Decided, decide
from ones.policies.shapes import realisable
from ones.policies.sizes import Sizes

JOBS = {64: 40, 1024: 500, 10240: 4000}
FAMILIES = 20
EPOCHS = 60
LIMITS = Limits(grace=0.0, exempt=0.0, max_resizes_per_hour=10**6, min_gain=None)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-round", description=__doc__)
    parser.add_argument("gpus", nargs="*", type=int, metavar="SIZE", default=[*JOBS])
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    print("| GPUs | active jobs | policy | CPU s, first round | CPU s, later rounds | gap |")
    print("|---|---|---|---|---|---|")
    for gpus in chosen.gpus:
        for policy in ("ones", "ones:generations=0", "sia", "pollux"):
            rounds = 1 if policy == "pollux" and gpus > 64 else chosen.rounds
            first, later, gap = measure(policy, gpus, JOBS[gpus], rounds)
            print(
                f"| {gpus} | {JOBS[gpus]} | {policy} | {first:.3f}"
                f" | {'-' if later is None else f'{later:.3f}'}"
                f" | {'-' if gap is None else f'{100 * gap:.3f} %'} |",
                flush=True,
            )
    return 0


def measure(policy: str, gpus: int, jobs: int, rounds: int) -> tuple[float, float | None, float]:
    """CPU seconds of the first round and the median of the later ones, and the last plan's gap."""
    site = Site(gpus, jobs)
    chosen = make(policy)
    memory: object = None
    times = []
    decided: Decided | None = None
    for number in range(rounds):
        begun = process_time()
        problem = site.problem()
        decided = decide(
            problem,
            chosen,
            memory,
            np.random.default_rng(number),
            history=History(),
            limits=LIMITS,
        )
        times.append(process_time() - begun)
        if decided.left_out or decided.fault:
            raise SystemExit(f"{policy}: {decided.fault or decided.left_out}")
        memory = decided.memory
        site.carry_out(decided.plan)
    assert decided is not None
    return times[0], median(times[1:]) if times[1:] else None, decided.plan.gap


class Site:
    """Jobs of twenty families on nodes of 4 GPUs, 16 nodes a leaf switch; some come and go."""

    def __init__(self, gpus: int, jobs: int) -> None:
        self.rng = np.random.default_rng(3)
        self.now = 1e6
        self.nodes = tuple(
            Node(name=f"n{i:05d}", gpu_type="t4", gpus=4, switches=(f"leaf{i // 16:03d}", "root"))
            for i in range(gpus // 4)
        )
        self.names = frozenset(node.name for node in self.nodes)
        self.sizes = Sizes(tuple(range(1, min(64, gpus) + 1)))
        self.shapes = realisable(self.sizes, [4] * (gpus // 4))
        self.experience = Experience()
        self.kinds = [self._family(number) for number in range(FAMILIES)]
        self.jobs: list[Job] = []
        self.done: dict[JobId, float] = {}
        self.last = 0
        for _ in range(jobs):
            self._arrives(float(self.rng.uniform(0.0, 0.9)))

    def _family(self, number: int) -> tuple[Batch, float]:
        """A family's batches and the samples of its epoch; what it has taught is kept."""
        rng = self.rng
        base = int(rng.choice([32, 64, 128, 256]))
        batches = Batch(
            submitted=4 * base,
            most_per_gpu=base,
            most=64 * base,
            least_per_gpu=max(1, base // 8),
            initial=base,
            accumulates=True,
            tunes=True,
        )
        pace, sync, far = rng.uniform(0.1, 1.0) / base, rng.uniform(0, 0.05), rng.uniform(0, 0.1)
        family, job = f"ada/family-{number}", JobId(10**9 + number)
        for nodes, gpus in ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16), (8, 32)):
            for local in (base // 4, base // 2, base):
                seconds = 0.02 + pace * local + sync * (gpus > 1) + far * (nodes > 1)
                self.experience.observe(
                    Observation(
                        job=job,
                        family=family,
                        gpu_type="t4",
                        nodes=nodes,
                        gpus=gpus,
                        batch=float(local * gpus),
                        step_seconds=seconds,
                        sync_seconds=sync * (gpus > 1) + far * (nodes > 1),
                    )
                )
        for epoch in range(EPOCHS):
            for power in range(0, 7, 2):
                self.experience.gradient(
                    GradientReport(
                        job=job,
                        family=family,
                        epochs=float(epoch),
                        batch=float(base * 2**power),
                        sqr=1.0,
                        var=float((1 + epoch) * rng.uniform(0.5, 1.0) * 1.3**power),
                    )
                )
        return batches, float(rng.lognormal(11.0, 1.0))

    def _arrives(self, share: float) -> None:
        self.last += 1
        kind = int(self.rng.integers(FAMILIES))
        batches, epoch_samples = self.kinds[kind]
        self.done[JobId(self.last)] = share * EPOCHS * epoch_samples
        self.jobs.append(
            Job(
                id=JobId(self.last),
                name=f"family-{kind}",
                user="ada",
                account="lab",
                submitted=self.now - 1000.0,
                sizes=self.sizes,
                requested=4,
                shapes=self.shapes,
                nodes=self.names,
                batches=batches,
                uneven=True,
            )
        )

    def problem(self) -> Problem:
        """The round's problem, assessed from what the jobs have told."""
        return assess(
            now=self.now,
            nodes=self.nodes,
            jobs=self.jobs,
            experience=self.experience,
            progress={
                job.id: Progress(
                    job=job.id,
                    samples=self.done[job.id],
                    total_samples=EPOCHS * epoch_samples,
                    epoch_samples=epoch_samples,
                )
                for job in self.jobs
                for _, epoch_samples in [self.kinds[int(job.name.rpartition("-")[2])]]
            },
            arrivals=[self.now - 30.0 * k for k in range(40)],
            priors=Priors(restart_seconds=30.0),
        )

    def carry_out(self, plan: Plan) -> None:
        """A minute passes: the plan is done, all get further, 3 % end, as many come."""
        self.now += 60.0
        kept = []
        for job in self.jobs:
            given = plan.assignments.get(job.id)
            if given is None:
                kept.append(replace(job, placement=None, batch=None))
                continue
            self.done[job.id] *= 1.01
            batch = given.batch if given.batch is not None else job.batch
            kept.append(replace(job, placement=given.placement, batch=batch, started=self.now))
        gone = self.rng.random(len(kept)) < 0.03
        self.jobs = [job for job, ended in zip(kept, gone, strict=True) if not ended]
        for _ in range(int(gone.sum())):
            self._arrives(0.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
