"""From what was seen to the question put to the policy: `assess` -> Problem.

The caller (the daemon's round, or a replay) hands in plain records and gets a Problem back:

* `nodes`, `jobs`: as Slurm has them now (ones.policies.model).
* `observations`: reported step times, oldest first; some tens per job and configuration will do.
* `progress`: each job's last word on its samples; jobs that never reported are simply absent.
* `finished`: total samples of jobs that ran to their end, oldest first.
* `restarts`: measured restarts, oldest first.
* `arrivals`: submission times of elastic jobs in the recent past.

Records carry a `family`, made by `family_of`: jobs of the same user and name are taken to be alike.
Nothing here reads a clock or a file; `now` is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ones.estimator.progress import Finished, Prediction, Progress, predict
from ones.estimator.restart import RestartCost, restart_cost
from ones.estimator.speed import AssumedSpeed, LearntSpeed, Observation, learn, type_factors
from ones.policies.model import Job, JobId, Node, Outlook, Problem, Seconds

ENOUGH = 3  # jobs whose length is known, before they count as typical


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """What is assumed where nothing was measured."""

    restart_seconds: Seconds = 30.0
    job_seconds: Seconds = 600.0  # an unknown job's length at its requested size, at first
    arrival_window: Seconds = 1200.0

    def __post_init__(self) -> None:
        if min(self.restart_seconds, self.job_seconds, self.arrival_window) <= 0:
            raise ValueError("priors must be positive")


def family_of(user: str, name: str) -> str:
    """Jobs that are taken to be alike."""
    return f"{user}/{name}"


def assess(
    *,
    now: Seconds,
    nodes: Sequence[Node],
    jobs: Sequence[Job],
    observations: Sequence[Observation] = (),
    progress: Mapping[JobId, Progress] | None = None,
    finished: Sequence[Finished] = (),
    restarts: Sequence[RestartCost] = (),
    arrivals: Sequence[Seconds] = (),
    priors: Priors | None = None,
) -> Problem:
    """The round's problem: every job with its outlook."""
    priors = priors or Priors()
    factors = type_factors(observations)
    families: dict[str, list[Observation]] = {}
    for one in observations:
        families.setdefault(one.family, []).append(one)
    lengths: dict[str, list[float]] = {}
    for done in finished:
        lengths.setdefault(done.family, []).append(done.total_samples)

    known = {
        job.id: _known(job, families, lengths, factors, (progress or {}).get(job.id))
        for job in jobs
    }
    typical = _typical_seconds(jobs, known, priors)

    def outlook(job: Job) -> Outlook:
        one = known[job.id]
        speed: LearntSpeed | AssumedSpeed | None = one.speed
        if speed is None:
            # Samples of unknown worth: the whole job is taken to last the typical time.
            total = one.prediction.total if one.prediction else typical
            speed = AssumedSpeed(typical / total, job.requested, tuple(factors.items()))
        prediction = one.prediction
        if prediction is None:
            total = typical / _sample_seconds(job, speed, one.batch)
            prediction = Prediction(processed=0.0, total=total, alpha=1.0, beta=1.0, epochs=0.0)
        family = family_of(job.user, job.name)
        return Outlook(
            speed=speed,
            processed=prediction.processed,
            alpha=prediction.alpha,
            beta=prediction.beta,
            remaining=prediction.remaining,
            restart_cost=restart_cost(job.id, family, restarts, prior=priors.restart_seconds),
            epochs=prediction.epochs,
            points=len(families.get(family, [])),
            batch=one.batch,
        )

    recent = [at for at in arrivals if now - priors.arrival_window < at <= now]
    return Problem(
        now=now,
        nodes=tuple(nodes),
        jobs=tuple(jobs),
        outlooks={job.id: outlook(job) for job in jobs},
        arrival_rate=len(recent) / priors.arrival_window,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """What reports tell of a job; None where they tell nothing."""

    speed: LearntSpeed | None
    prediction: Prediction | None
    batch: float


def _known(
    job: Job,
    families: Mapping[str, Sequence[Observation]],
    lengths: Mapping[str, Sequence[float]],
    factors: Mapping[str, float],
    progress: Progress | None,
) -> _Known:
    family = family_of(job.user, job.name)
    seen = families.get(family, [])
    return _Known(
        learn(seen, requested=job.requested, factors=factors),
        predict(progress, lengths.get(family, [])),
        float(seen[-1].batch) if seen else 1.0,
    )


def _typical_seconds(jobs: Sequence[Job], known: Mapping[JobId, _Known], priors: Priors) -> Seconds:
    """How long a job of which nothing is known lasts at its requested size: as the others do."""
    others = [
        one.prediction.total * _sample_seconds(job, one.speed, one.batch)
        for job in jobs
        if (one := known[job.id]).speed is not None
        and one.prediction is not None
        and not one.prediction.guessed
    ]
    return median(others) if len(others) >= ENOUGH else priors.job_seconds


def _sample_seconds(job: Job, speed: LearntSpeed | AssumedSpeed, batch: float) -> Seconds:
    """Of one sample at the requested size."""
    kind = speed.curve.types[0] if isinstance(speed, LearntSpeed) else ""
    step = speed.step_seconds(kind, np.array([1]), np.array([job.requested]), np.array([batch]))
    return float(step[0]) / batch
