"""What a replay came to, in the figures by which schedulers are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.simulation import Run
from ones.policies.model import JobId, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run's figures. A completion time (JCT) counts from submission to end."""

    policy: str
    average_jct_s: Seconds
    median_jct_s: Seconds
    p90_jct_s: Seconds
    p99_jct_s: Seconds
    makespan_s: Seconds  # from the start of the trace to the last end
    average_wait_s: Seconds  # without GPUs, before the first start and between runs
    gpu_hours: float  # held, restarts included
    utilisation: float  # GPU-hours held, as a share of the cluster's until the last end
    cost: float | None  # of the GPU-hours held; None where a type's price isn't known
    resizes_per_job: float  # changes of placement after the first start
    lost_to_moves: float  # as a share of the GPU-hours held
    decide_s_mean: Seconds  # CPU time of a round, its assessment included
    decide_s_p99: Seconds

    @classmethod
    def of(cls, run: Run) -> Figures:
        times = [completion_seconds(job) for job in run.jobs]
        rounds = [one.cpu_seconds for one in run.decisions] or [0.0]
        hours = held_hours(run)
        makespan = max(job.finished or 0.0 for job in run.jobs)
        there = sum(node.gpus for node in run.nodes) * _begun_to(makespan, run.jobs) / 3600
        return cls(
            policy=run.policy,
            average_jct_s=float(np.mean(times)),
            median_jct_s=float(np.median(times)),
            p90_jct_s=float(np.percentile(times, 90)),
            p99_jct_s=float(np.percentile(times, 99)),
            makespan_s=makespan,
            average_wait_s=float(np.mean([job.waited for job in run.jobs])),
            gpu_hours=sum(hours.values()),
            utilisation=sum(hours.values()) / there if there else 0.0,
            cost=_cost(hours, run.prices),
            resizes_per_job=float(np.mean([job.resizes for job in run.jobs])),
            lost_to_moves=lost_to_moves(run.jobs),
            decide_s_mean=float(np.mean(rounds)),
            decide_s_p99=float(np.percentile(rounds, 99)),
        )


def held_hours(run: Run) -> dict[str, float]:
    """GPU-hours held of each type."""
    hours: dict[str, float] = {}
    for job in run.jobs:
        for kind, seconds in job.held.items():
            hours[kind] = hours.get(kind, 0.0) + seconds / 3600
    return hours


def lost_to_moves(jobs: Sequence[SimulatedJob]) -> float:
    """The share of the GPU time these jobs held in which they were restarted because of a move.

    A job's first start is none. Zero where nobody held anything.
    """
    held = sum(job.gpu_seconds for job in jobs)
    return sum(job.lost for job in jobs) / held if held else 0.0


def _cost(hours: Mapping[str, float], prices: Mapping[str, float]) -> float | None:
    if not hours.keys() <= prices.keys():
        return None
    return sum(prices[kind] * spent for kind, spent in hours.items())


def _begun_to(end: Seconds, jobs: Sequence[SimulatedJob]) -> Seconds:
    """From the first submission."""
    return end - min(job.trace.submitted for job in jobs)


def completion_seconds(job: SimulatedJob) -> Seconds:
    """From submission to end; every job of a finished run has ended."""
    return (job.finished or 0.0) - job.trace.submitted


def labels(jobs: Sequence[SimulatedJob]) -> list[str]:
    """The jobs' names in the trace; where several share one, the later ones get a number."""
    seen: Counter[str] = Counter()
    found = []
    for job in jobs:
        seen[job.trace.name] += 1
        again = seen[job.trace.name]
        found.append(job.trace.name if again == 1 else f"{job.trace.name}#{again}")
    return found


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A job that stayed as it was because nothing could be decided with it."""

    job: str | None  # its label; None: nothing could be decided at all
    rounds: int
    why: str  # in the last of these rounds

    def __str__(self) -> str:
        who = "nothing was decided" if self.job is None else f"job {self.job} was left out"
        return f"{who} in {self.rounds} {'round' if self.rounds == 1 else 'rounds'}: {self.why}"


def left_out(run: Run) -> list[LeftOut]:
    """Who was, and for how long."""
    rounds: Counter[JobId | None] = Counter()
    why: dict[JobId | None, str] = {}
    for one in run.decisions:
        found: dict[JobId | None, str] = dict(one.left_out.items())
        if one.fault:
            found[None] = one.fault
        rounds.update(found.keys())
        why |= found
    named: dict[JobId | None, str] = {
        job.id: label for job, label in zip(run.jobs, labels(run.jobs), strict=True)
    }
    return [LeftOut(named.get(job), count, why[job]) for job, count in rounds.items()]


def remarks(run: Run) -> list[str]:
    """What its figures do not tell, in a line each: who was left out, and who was not done."""
    ended = sum(job.at_limit for job in run.jobs)
    limits = []
    if ended == 1:
        limits = ["1 job was ended by its time limit before it was done"]
    elif ended:
        limits = [f"{ended} jobs were ended by their time limit before they were done"]
    return [*limits, *(str(one) for one in left_out(run))]


def as_json(run: Run) -> dict[str, Any]:
    """A run as `onesctl replay --json` prints it."""
    figures = Figures.of(run)
    return {
        **{name: getattr(figures, name) for name in figures.__dataclass_fields__},
        "left_out": [
            {"id": one.job, "rounds": one.rounds, "why": one.why} for one in left_out(run)
        ],
        "jobs": [
            {
                "id": label,
                "submitted_s": job.trace.submitted,
                "started_s": job.started,
                "finished_s": job.finished,
                "resizes": job.resizes,
                "at_limit": job.at_limit,  # which ended it before it was done
            }
            for job, label in zip(run.jobs, labels(run.jobs), strict=True)
        ],
    }
