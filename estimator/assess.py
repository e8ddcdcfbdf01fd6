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

import numpy as np

from ones.estimator.progress import Finished, Prediction, Progress, predict
from ones.estimator.restart import RestartCost, restart_cost
from ones.estimator.speed import AssumedSpeed, LearntSpeed, Observation, learn, type_factors
from ones.policies.model import Job, JobId, Node, Outlook, Problem, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """What is assumed where nothing was measured."""

    restart_seconds: Seconds = 30.0
    job_seconds: Seconds = 600.0  # length of an unknown job at its requested size
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

    def outlook(job: Job) -> Outlook:
        family = family_of(job.user, job.name)
        seen = families.get(family, [])
        batch = float(seen[-1].batch) if seen else 1.0
        prediction = predict((progress or {}).get(job.id), lengths.get(family, []))
        speed: LearntSpeed | AssumedSpeed | None = learn(
            seen, requested=job.requested, factors=factors
        )
        if speed is None:
            # Samples of unknown worth: the whole job is taken to last the prior time.
            total = prediction.total if prediction else priors.job_seconds
            speed = AssumedSpeed(priors.job_seconds / total, job.requested, tuple(factors.items()))
        if prediction is None:
            prediction = _of_prior_length(job, speed, batch, priors)
        return Outlook(
            speed=speed,
            processed=prediction.processed,
            alpha=prediction.alpha,
            beta=prediction.beta,
            remaining=prediction.remaining,
            restart_cost=restart_cost(job.id, family, restarts, prior=priors.restart_seconds),
            epochs=prediction.epochs,
            points=len(seen),
            batch=batch,
        )

    recent = [at for at in arrivals if now - priors.arrival_window < at <= now]
    return Problem(
        now=now,
        nodes=tuple(nodes),
        jobs=tuple(jobs),
        outlooks={job.id: outlook(job) for job in jobs},
        arrival_rate=len(recent) / priors.arrival_window,
    )


def _of_prior_length(
    job: Job, speed: LearntSpeed | AssumedSpeed, batch: float, priors: Priors
) -> Prediction:
    """A job whose length nothing tells: the samples of the prior time at the requested size."""
    kind = speed.curve.types[0] if isinstance(speed, LearntSpeed) else ""
    one, size = np.array([1]), np.array([job.requested])
    step = float(speed.step_seconds(kind, one, size, np.array([batch]))[0])
    total = priors.job_seconds * batch / step
    return Prediction(processed=0.0, total=total, alpha=1.0, beta=1.0, epochs=0.0)
