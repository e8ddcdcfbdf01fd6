"""The pure half of a round, shared by daemon and replay: freeze, decide, validate, check."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ones.policies.guard import History, Limits, Verdict, check, freeze, reconcile, validate
from ones.policies.live import settle
from ones.policies.model import Plan, Policy, Problem, SharesGpus
from ones.policies.sharing import with_riders, without_riders


@dataclass(frozen=True, slots=True)
class Decided:
    """What a round comes to, before anything is done about it."""

    problem: Problem  # with the jobs that may not be moved marked as fixed
    plan: Plan
    verdict: Verdict
    memory: object  # for the policy's next round


def decide(
    problem: Problem,
    policy: Policy,
    memory: object,
    rng: np.random.Generator,
    *,
    history: History,
    limits: Limits,
) -> Decided:
    """One decision. Raises PlanError where the policy breaks a job's or the cluster's terms."""
    problem = freeze(problem, history, limits)
    if isinstance(policy, SharesGpus) and policy.plans_pairs:
        plan, memory = policy.plan(problem, memory, rng)
    else:
        plan, memory = policy.plan(without_riders(problem), memory, rng)
        plan = with_riders(problem, plan)
    plan = settle(problem, plan)
    validate(problem, plan)
    verdict = check(reconcile(problem, plan), problem, history, limits)
    return Decided(problem, plan, verdict, memory)
