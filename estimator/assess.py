"""From what was seen to the question put to the policy: `assess` -> Problem.

The caller (the daemon's round, or a replay) hands in what it knows and gets a Problem back:

* `nodes`, `jobs`: as Slurm has them now (ones.policies.model).
* `experience`: all that reports taught so far (ones.estimator.experience).
* `progress`: each job's last word on its samples; jobs that never reported are simply absent.
* `arrivals`: submission times of elastic jobs in the recent past.
* `knowledge`: which sources may be used; all of them, unless something is to be shown without.

Families are made by `family_of`: jobs of the same user and name are taken to be alike.
Nothing here reads a clock or a file; `now` is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

import numpy as np

from ones.estimator.experience import Experience
from ones.estimator.noise import segments
from ones.estimator.progress import Prediction, Progress, believable
from ones.estimator.records import Records
from ones.estimator.soundness import FAULTS, sound, words
from ones.estimator.speed import DOUBT, AssumedSpeed, LearntSpeed
from ones.policies.forecast import by_name, type_of
from ones.policies.model import Job, JobId, Node, Outlook, Problem, Seconds, Segment, Speed

ENOUGH = 3  # jobs whose length is known, before they count as typical


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """What is assumed where nothing was measured."""

    restart_seconds: Seconds = 30.0
    live_seconds: Seconds = 5.0  # of a resize without a restart
    job_seconds: Seconds = 600.0  # an unknown job's length at its requested size, at first
    arrival_window: Seconds = 1200.0

    def __post_init__(self) -> None:
        if min(self.restart_seconds, self.live_seconds, self.job_seconds, self.arrival_window) <= 0:
            raise ValueError("priors must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Which sources the estimates may draw on."""

    declared: bool = True  # what jobs declare of their own length
    families: bool = True  # what other jobs of the same kind have told
    noise: bool = True  # the gradient noise: right where jobs end after so many efficient samples


def family_of(user: str, name: str) -> str:
    """Jobs that are taken to be alike."""
    return f"{user}/{name}"


def assess(
    *,
    now: Seconds,
    nodes: Sequence[Node],
    jobs: Sequence[Job],
    experience: Experience,
    progress: Mapping[JobId, Progress] | None = None,
    arrivals: Sequence[Seconds] = (),
    round_seconds: Seconds = 60.0,
    priors: Priors | None = None,
    knowledge: Knowledge | None = None,
) -> Problem:
    """The round's problem: every job with its outlook.

    A job of which no estimate can be made, because what was told of it makes no sense, is named.
    While it runs it is left as it is; it is started as if nothing were known of it.
    """
    priors, knowledge = priors or Priors(), knowledge or Knowledge()
    per_node = max((node.gpus for node in nodes), default=1)
    sources = _Sources(experience, knowledge, priors, by_name(nodes), max(per_node, 1))
    told: dict[JobId, Progress] = {}
    strange: dict[JobId, str] = {}
    families = {job.id: family_of(job.user, job.name) for job in jobs if knowledge.families}
    for id_, one in (progress or {}).items():
        try:
            told[id_] = believable(one)
            experience.progress(told[id_], families.get(id_))
        except FAULTS as fault:
            strange[id_] = words(fault)
    known: list[_Known] = []
    for job in jobs:
        try:
            known.append(_heard(job, told.get(job.id), sources))
        except FAULTS as fault:
            strange[job.id] = words(fault)
    typical = _typical_seconds(known, priors)
    outlooks: dict[JobId, Outlook] = {}
    for heard in known:
        try:
            outlooks[heard.job.id] = sound(_outlook(heard, sources, typical))
        except FAULTS as fault:
            strange[heard.job.id] = words(fault)
    strange = {job.id: strange[job.id] for job in jobs if job.id in strange}
    outlooks |= {job.id: _prior(job, priors) for job in jobs if job.id in strange}
    recent = [at for at in arrivals if now - priors.arrival_window < at <= now]
    return Problem(
        now=now,
        nodes=tuple(nodes),
        jobs=tuple(
            replace(job, fixed=job.fixed or strange[job.id])
            if job.id in strange and job.placement is not None
            else job
            for job in jobs
        ),
        outlooks=outlooks,
        arrival_rate=len(recent) / priors.arrival_window,
        round_seconds=round_seconds,
        unestimated=strange,
    )


@dataclass(frozen=True, slots=True)
class _Sources:
    """What every job's outlook is drawn from."""

    experience: Experience
    knowledge: Knowledge
    priors: Priors
    nodes: Mapping[str, Node]
    per_node: int  # GPUs of the largest node
    kinds: dict[frozenset[str], str] = field(default_factory=dict)
    every_kind: dict[frozenset[str], tuple[str, ...]] = field(default_factory=dict)

    def kind(self, nodes: frozenset[str]) -> str:
        """The GPU type of the first of these nodes."""
        found = self.kinds.get(nodes)
        if found is None:
            first = min((name for name in nodes if name in self.nodes), default="")
            found = self.kinds[nodes] = self.nodes[first].gpu_type if first else ""
        return found

    def kinds_of(self, nodes: frozenset[str]) -> tuple[str, ...]:
        """The GPU types of these nodes."""
        found = self.every_kind.get(nodes)
        if found is None:
            there = {self.nodes[name].gpu_type for name in nodes if name in self.nodes}
            found = self.every_kind[nodes] = tuple(sorted(there))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What reports tell of a job; None where they tell nothing."""

    job: Job
    family: str | None
    records: Records
    speed: LearntSpeed | None
    prediction: Prediction | None
    told: Progress | None
    batch: float
    kind: str  # the GPU type it has, or may get


def _heard(job: Job, told: Progress | None, sources: _Sources) -> _Known:
    """What is known of a job. Raises ValueError where its speed is none."""
    known = _known(job, told, sources)
    if known.speed is not None and not 0 < _sample_seconds(known, known.speed) < inf:
        raise ValueError("its speed is no number")
    return known


def _known(job: Job, told: Progress | None, sources: _Sources) -> _Known:
    experience = sources.experience
    family = family_of(job.user, job.name) if sources.knowledge.families else None
    records = experience.of_job(job.id) if family is None else experience.of_family(family)
    held = job.placement
    kind = sources.kind(job.nodes) if held is None else type_of(held, sources.nodes)
    return _Known(
        job=job,
        family=family,
        records=records,
        speed=records.speed(
            requested=job.requested,
            batches=job.batches,
            factors=experience.type_factors(),
            completion=experience.completion(),
        ),
        prediction=experience.predict(told, family, declared=sources.knowledge.declared),
        told=told,
        batch=records.batch or 1.0,
        kind=kind,
    )


def _outlook(one: _Known, sources: _Sources, typical: Seconds) -> Outlook:
    job, prediction, experience = one.job, one.prediction, sources.experience
    speed: LearntSpeed | AssumedSpeed | None = one.speed
    if speed is None:
        # Samples of unknown worth: the whole job is taken to last the typical time.
        total = prediction.total if prediction else typical
        speed = AssumedSpeed(typical / total, job.requested, experience.type_factors())
    if prediction is None:
        total = typical / _sample_seconds(one, speed)
        prediction = Prediction(
            processed=0.0, total=total, alpha=1.0, beta=1.0, epochs=0.0, guessed=True
        )
    prior = sources.priors.restart_seconds
    return Outlook(
        speed=speed,
        processed=prediction.processed,
        alpha=prediction.alpha,
        beta=prediction.beta,
        remaining=prediction.remaining,
        guessed=prediction.guessed,
        restart_cost=experience.restart_cost(job.id, one.family, prior=prior),
        live_cost=None
        if job.keeps is None
        else experience.live_cost(job.id, one.family, prior=sources.priors.live_seconds),
        epochs=prediction.epochs,
        points=len(one.records),
        batch=one.batch,
        segments=_segments(one, experience, prediction) if sources.knowledge.noise else (),
        speed_error=_speed_error(one, speed, sources.per_node, one.kind),
        type_errors=_type_errors(one, speed, sources),
    )


def _prior(job: Job, priors: Priors) -> Outlook:
    """The outlook of a job of which nothing is known."""
    return Outlook(
        speed=AssumedSpeed(1.0, job.requested, {}),
        processed=0.0,
        alpha=1.0,
        beta=1.0,
        remaining=priors.job_seconds,
        guessed=True,
        restart_cost=priors.restart_seconds,
        live_cost=None if job.keeps is None else priors.live_seconds,
        speed_error=2.0 * DOUBT,
    )


def _segments(one: _Known, experience: Experience, found: Prediction) -> tuple[Segment, ...]:
    bounds = one.job.batches
    if bounds is None:
        return ()
    return segments(
        remaining=found.remaining,
        epochs=found.epochs,
        epoch_samples=one.told.epoch_samples if one.told else None,
        own=experience.of_job(one.job.id).noise,
        family=one.records.noise,
        batch=float(one.job.batch or bounds.submitted),
        reference=float(bounds.reference),
    )


def _type_errors(
    one: _Known, speed: LearntSpeed | AssumedSpeed, sources: _Sources
) -> Mapping[str, float]:
    if isinstance(speed, AssumedSpeed):
        return {}
    kinds = sources.kinds_of(one.job.nodes)
    if len(kinds) < 2:
        return {}
    return {kind: _speed_error(one, speed, sources.per_node, kind) for kind in kinds}


def _speed_error(one: _Known, speed: LearntSpeed | AssumedSpeed, per_node: int, kind: str) -> float:
    """Where the job runs; where it waits, at its requested size on as few nodes as there are."""
    job = one.job
    if isinstance(speed, AssumedSpeed):
        return 2.0 * DOUBT
    batch = float(job.batch or (job.batches.submitted if job.batches else one.batch))
    if job.placement is not None:
        return speed.error(kind, len(job.placement.gpus_on), job.placement.gpus, batch)
    return speed.error(kind, -(-job.requested // per_node), job.requested, batch)


def _typical_seconds(known: Sequence[_Known], priors: Priors) -> Seconds:
    """How long a job of which nothing is known lasts at its requested size: as the others do."""
    if all(one.speed is not None and one.prediction is not None for one in known):
        return priors.job_seconds
    others = [
        one.prediction.total * _sample_seconds(one, one.speed)
        for one in known
        if one.speed is not None and one.prediction is not None and not one.prediction.guessed
    ]
    return median(others) if len(others) >= ENOUGH else priors.job_seconds


def _sample_seconds(one: _Known, speed: Speed) -> Seconds:
    """Of one sample at the requested size."""
    job = one.job
    batch = float(job.batches.submitted) if job.batches else one.batch
    step = speed.step_seconds(one.kind, np.array([1]), np.array([job.requested]), np.array([batch]))
    return float(step[0]) / batch
