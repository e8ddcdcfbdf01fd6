"""The progress predictor on replays: predicted against real remaining work, and its intervals.

usage: scripts/evaluate-predictor [--spread S ...] [--workload N ...] [--policy NAME] [--seed N]

Every prediction was made in a round before the job's end, so each is out of sample. Jobs of the
published workloads that run the same application are equally long; --spread lets their numbers of
epochs differ by a log-normal factor, as they do in life.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from time import process_time

import numpy as np
from scipy.stats import beta as beta_distribution  # type: ignore[import-untyped]

from ones.daemon.replay import traces
from ones.daemon.replay.profiles import Profile
from ones.daemon.replay.simulation import World, replay
from ones.daemon.replay.workload import TraceJob, Workload
from ones.estimator.assess import Knowledge
from ones.estimator.experience import Experience
from ones.policies.model import Floats, JobId, Node, Plan, Policy, Problem
from ones.policies.registry import make

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "pollux"
NODES = tuple(Node(name=f"n{i:02d}", gpu_type="t4", gpus=4) for i in range(16))
EVEN = (2, 4, 6, 8)
POINTS = 12  # of each job, evenly over its rounds, so that long jobs don't outweigh the others
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Foretold:
    """What was expected of a job in one round."""

    job: JobId
    processed: float
    remaining: float
    alpha: float
    beta: float


@dataclass(slots=True)
class Watching:
    """A policy that also notes what it was told of every job that has begun."""

    policy: Policy
    foretold: list[Foretold] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        for job in problem.jobs:
            seen = problem.outlooks[job.id]
            if seen.processed > 0:
                self.foretold.append(
                    Foretold(job.id, seen.processed, seen.remaining, seen.alpha, seen.beta)
                )
        return self.policy.plan(problem, memory, rng)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/evaluate-predictor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--spread", type=float, nargs="+", default=[0.0, 0.25, 0.5])
    parser.add_argument("--workload", type=int, nargs="+", default=list(EVEN))
    parser.add_argument("--policy", default="ones:generations=0")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    if not SHARED.is_dir():
        print(f"{SHARED} is not there: the published workloads are not part of this repository")
        return 1
    cells = [("nothing declared", Knowledge(declared=False)), ("epochs declared", Knowledge())]
    for spread in chosen.spread:
        for label, knowledge in cells:
            found = [
                points(number, spread, knowledge, chosen.policy, chosen.seed)
                for number in chosen.workload
            ]
            table(f"{label}; lengths differ by a factor e^{spread:g}", np.concatenate(found))
    return 0


def points(number: int, spread: float, knowledge: Knowledge, policy: str, seed: int) -> Floats:
    """[N, 6] real share done, real and foretold remaining over the length, alpha, beta, job."""
    workload = traces.read(
        SHARED / "workloads" / f"workload-{number}.csv", profiles=SHARED / "profiles"
    )
    rng = np.random.default_rng([seed, number])
    jobs = tuple(longer(job, float(np.exp(spread * rng.normal()))) for job in workload.jobs)
    watching = Watching(make(policy))
    run = replay(
        Workload(jobs, workload.nodes),
        watching,
        World(nodes=NODES, seed=seed),
        clock=process_time,
        knowledge=knowledge,
        experience=Experience(),
    )
    lengths = {
        job.id: job.progress * (job.batches.reference if job.batches else 1) for job in run.jobs
    }
    return chosen_rows(watching.foretold, lengths, number)


def longer(job: TraceJob, factor: float) -> TraceJob:
    """The job with so many times its epochs; those beyond the profile are like its last."""
    profile = job.application
    if not isinstance(profile, Profile):
        return job
    before = len(profile.epochs)
    epochs = max(1, round(before * factor))
    more = max(epochs - before, 0)
    last = profile.epochs[-1] - (profile.epochs[-2] if before > 1 else 0.0)
    progress = np.concatenate([profile.epochs, profile.epochs[-1] + last * np.arange(1, more + 1)])
    statistics = np.pad(profile.statistics, ((0, 0), (0, more), (0, 0)), mode="edge")
    changed = replace(
        profile, epochs=progress[:epochs], statistics=statistics[:, :epochs], _gradients={}
    )
    return replace(job, application=changed)


def chosen_rows(
    foretold: Sequence[Foretold], lengths: Mapping[JobId, float], number: int
) -> Floats:
    by_job: dict[JobId, list[Foretold]] = {}
    for one in foretold:
        by_job.setdefault(one.job, []).append(one)
    rows = []
    for job, told in by_job.items():
        for k in np.unique(np.linspace(0, len(told) - 1, POINTS).astype(int)):
            one, length = told[k], lengths[job]
            done = one.processed / length
            if done < 1.0:
                rows.append(
                    (
                        done,
                        1 - done,
                        one.remaining / length,
                        one.alpha,
                        one.beta,
                        1e4 * number + job,
                    )
                )
    return np.array(rows)


def table(title: str, rows: Floats) -> None:
    """A line for each quarter of a job's way, and one for all of it."""
    print(f"\n### {title}\n")
    print(
        "| share done | jobs | predictions | predicted / real remaining: 10 % | median | 90 %"
        " | in 50 % interval | in 90 % interval |\n|---|---|---|---|---|---|---|---|"
    )
    for low, high in [*pairwise(QUARTERS), (0.0, 1.0)]:
        part = rows[(rows[:, 0] >= low) & (rows[:, 0] < high)]
        if not len(part):
            continue
        ratio = np.quantile(part[:, 2] / part[:, 1], (0.1, 0.5, 0.9))
        inside = [covered(part, share) for share in (0.5, 0.9)]
        print(
            f"| {low:.0%} to {high:.0%} | {len(np.unique(part[:, 5]))} | {len(part)} | "
            + " | ".join(f"{one:.2f}" for one in ratio)
            + f" | {inside[0]:.0%} | {inside[1]:.0%} |",
            flush=True,
        )


def covered(rows: Floats, share: float) -> float:
    ends = [(1 - share) / 2, (1 + share) / 2]
    low, high = (beta_distribution.ppf(end, rows[:, 3], rows[:, 4]) for end in ends)
    return float(np.mean((low <= rows[:, 0]) & (rows[:, 0] <= high)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
