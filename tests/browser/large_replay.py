"""Made-up runs, as large as one likes: what a report shows, without the time of a replay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from replay_builders import a_trace_job, a_world

from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.report import page
from ones.daemon.replay.simulation import Decision, Run
from ones.estimator.experience import Experience
from ones.policies.model import JobId

WORLD = a_world(nodes=16, gpus=4)
DAYS = 30


def a_run(
    policy: str = "fifo", jobs: int = 2000, *, pace: float = 1.0, names: Sequence[str] = ()
) -> Run:
    """So many jobs within a month, the same under each policy; each has up to twenty sizes."""
    trace, own = random.Random(1), random.Random(policy)
    lived = []
    for number in range(jobs):
        submitted = trace.uniform(0, DAYS * 86400)
        work = trace.lognormvariate(8.0, 1.0)
        name = names[number] if names else f"train-{number}"
        facts = {"family": f"bert-{number % 20}", "user": f"user{number % 37}"}
        if names:
            facts = dict.fromkeys(("family", "user", "account"), name)
        job = SimulatedJob(
            id=JobId(number + 1),
            trace=a_trace_job(name, submitted, requested=2 ** (number % 4), **facts),
            shapes=(),
            nodes=frozenset(),
        )
        job.waited = own.expovariate(1 / 2000)
        at = job.started = submitted + job.waited
        for _ in range(own.randint(1, 20)):
            job.sizes.append((at, own.choice((1, 2, 4, 8))))
            at += work * pace * own.uniform(0.05, 0.15)
        job.sizes.append((at, 0))
        job.finished, job.resizes = at, len(job.sizes) - 2
        job.gpu_seconds = 4 * (at - job.started)
        lived.append(job)
    return Run(
        policy=policy,
        jobs=tuple(lived),
        decisions=(Decision(at=0.0, active=1, cpu_seconds=0.02, gap=None),),
        experience=Experience(),
        nodes=WORLD.nodes,
    )


def a_report(folder: Path, *runs: Run, trace: str = "month.csv") -> str:
    """Its address."""
    file = folder / "report.html"
    file.write_text(page(runs, WORLD.nodes, trace=trace), encoding="utf-8")
    return file.as_uri()
