"""What would become of one job, were it submitted now: the round's own decisions, rolled forward.

The present jobs do what is left of their work at the speeds believed of them, others come as they
have come lately, and the policy in force decides in between, as it will: whoever is long gets what
those that come leave him, so that without them every forecast of a busy cluster is far too early.
Like `deciding` it knows no clock, file, socket or Slurm; what it may spend is counted by whoever
calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, log
from statistics import NormalDist, fmean, median

import numpy as np

from ones.daemon.onesd.deciding import Question
from ones.daemon.onesd.forecast.model import Forecast, Lately, Length, Newcomer
from ones.daemon.onesd.forecast.outlooks import GUESSED, from_its_beginning, scaled, spread_of
from ones.daemon.onesd.forecast.rollout import Rollout
from ones.estimator.assess import ENOUGH, Knowledge, Priors, assess
from ones.estimator.experience import Experience
from ones.policies.forecast import seconds_left_as_requested
from ones.policies.model import Job, JobId, Outlook, Policy, Problem, Seconds

# Of the job's own length, in each draw: alike everywhere. The first is as believed.
QUANTILES = (0.5, 0.85, 0.15, 0.7, 0.3, 0.95, 0.05)
STANDARD = NormalDist()


def with_newcomer(
    question: Question,
    newcomer: Newcomer,
    experience: Experience,
    *,
    lately: Lately,
    priors: Priors,
    knowledge: Knowledge,
) -> tuple[Question, Length]:
    """The round's question with the job among its jobs, and what is believed of its length."""
    job, problem = newcomer.job, question.problem
    known = problem.outlooks.get(job.id)
    if known is None:
        known = assess(
            now=problem.now,
            nodes=problem.nodes,
            jobs=[job],
            experience=experience,
            round_seconds=problem.round_seconds,
            priors=replace(priors, job_seconds=_typical(problem, lately, priors)),
            knowledge=knowledge,
        ).outlooks[job.id]
    jobs = tuple(one for one in problem.jobs if one.id != job.id)
    problem = replace(problem, jobs=(*jobs, job), outlooks={**problem.outlooks, job.id: known})
    whole = seconds_left_as_requested(problem, job)
    spread = spread_of(known) if newcomer.spread is None else newcomer.spread
    length = Length(whole, spread, *_basis(known))
    if newcomer.length is not None and 0 < whole < inf:
        length = Length(newcomer.length, spread, "as it was asked", guessed=False)
        known = scaled(known, newcomer.length / whole)
        problem = replace(problem, outlooks={**problem.outlooks, job.id: known})
    return replace(question, problem=problem), length


def _basis(outlook: Outlook) -> tuple[str, bool]:
    if outlook.guessed:
        return "a guess: no job of its user and name has told", True
    speed = "" if outlook.points else "; its speed is a guess"
    return f"as jobs of its user and name took or declare{speed}", False


def _typical(problem: Problem, lately: Lately, priors: Priors) -> Seconds:
    """How long a job of which nothing is known lasts at its requested size: as those that came.

    Not as those that are there: the long ones are there for longer.
    """
    known = [
        _whole(problem, one.job, one.outlook)
        for one in lately.came
        if isinstance(one.job, Job)
        and one.outlook is not None
        and not one.outlook.guessed
        and one.outlook.points
    ]
    finite = [seconds for seconds in known if 0 < seconds < inf]
    return median(finite) if len(finite) >= ENOUGH else priors.job_seconds


def _whole(problem: Problem, job: Job, outlook: Outlook) -> Seconds:
    """From its beginning to its end at the size that it asks for."""
    begun = from_its_beginning(outlook)
    return seconds_left_as_requested(replace(problem, outlooks={job.id: begun}), job)


def forecast(
    question: Question,
    job: JobId,
    policy: Policy,
    memory: object,
    *,
    lately: Lately,
    seed: Sequence[int],
    generator: Callable[[Sequence[int]], np.random.Generator],
    wake: Seconds | None = None,
    spent: Callable[[], float] = lambda: 0.0,
    most: float = inf,
    draws: int = len(QUANTILES),
    spread: float = GUESSED,
) -> Forecast:
    """What becomes of the job among the others, over some draws of what nobody knows.

    `lately`: who has come, of whom others are taken to come again. `spread`: standard deviation of
    ln(length) of the job itself.
    `wake`: from an event to the round for it; None: rounds wait for their time. `spent` counts what
    this has cost, of which there is `most`: no draw is begun that would go beyond it.
    """
    found: Forecast | None = None
    ends: list[Seconds | None] = []
    starts: list[Seconds] = []
    for draw in range(draws):
        begun = spent()
        rng = generator([*seed, draw])
        drawn = (
            question
            if draw == 0
            else _drawn(question, job, spread * STANDARD.inv_cdf(QUANTILES[draw]), rng)
        )
        rollout = Rollout.of(drawn, job, policy, memory=memory, rng=rng, wake=wake)
        rollout.expect(lately)
        one = rollout.run(lambda: spent() > most)
        if found is None:
            found = one
        elif rollout.cut:
            break
        ends.append(one.end)
        starts += [] if one.start is None else [one.start]
        if one.end is None or spent() + (spent() - begun) > most:
            break
    assert found is not None, "the first draw is always made"
    known = [max(1.0, end) for end in ends if end is not None]
    return replace(
        found,
        start=median(starts) if starts else None,
        end=exp(fmean(log(end) for end in known)) if found.end is not None else None,
        ends=tuple(ends),
    )


def _drawn(question: Question, which: JobId, own: float, rng: np.random.Generator) -> Question:
    """The question with every job's length drawn; `own`: ln of how many times as long the job is,
    which is the same wherever it is asked."""
    problem, outlooks = question.problem, {}
    for job in problem.jobs:
        outlook = problem.outlooks.get(job.id)
        if outlook is None:
            continue
        times = own if job.id == which else float(rng.standard_normal()) * spread_of(outlook)
        outlooks[job.id] = scaled(outlook, exp(times))
    return replace(question, problem=replace(problem, outlooks=outlooks))
