"""The pure half of a round, shared by daemon and replay: freeze, decide, validate, check.

One job may never stop the others. A job over which a plan is refused is left as it is, and it is
decided again without it; where nobody can be told to be at fault everything stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ones.policies.caps import kept_off, narrow, without
from ones.policies.crowding import (
    beyond,
    kept_out,
    kept_to,
    nodes_without,
    with_crowded,
    without_useless,
)
from ones.policies.cutting import held_down, within
from ones.policies.forecast import by_id
from ones.policies.guard import (
    History,
    Limits,
    Verdict,
    check,
    freeze,
    in_turn,
    kept_waiting,
    one_first,
)
from ones.policies.invariants import PlanError, faults
from ones.policies.live import settle
from ones.policies.model import Job, JobId, Plan, Policy, Problem, SharesGpus
from ones.policies.moves import reconcile
from ones.policies.ranks import plan_by_rank
from ones.policies.sharing import occupied, with_riders, without_riders

AGAIN = 5  # times a policy may plan anew for what a limit of the site has left free
SHIFTS = 2  # of these, for jobs that would crowd each other out of a node's CPUs or memory
TRIES = 8  # each leaves out all that were at fault in the one before
LONGEST = 200  # characters of a reason
FAULTS = (ArithmeticError, LookupError, ValueError)
"""What a policy raises over numbers that make no sense to it."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a round comes to, before anything is done about it."""

    problem: Problem  # with the jobs that may not be moved marked as fixed
    plan: Plan
    verdict: Verdict
    memory: object  # for the policy's next round
    left_out: Mapping[JobId, str] = field(default_factory=dict)  # stay as they are, and why
    fault: str = ""  # why everything stays as it is; empty: it was decided
    capped: Mapping[JobId, str] = field(default_factory=dict)
    """Jobs that got less than the policy wanted for them, and the site's limit that says so."""


class _Refused(Exception):
    """A plan with its faults."""

    def __init__(self, faults: Sequence[PlanError]) -> None:
        super().__init__(str(faults[0]))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class _Round:
    """What stays the same however often it is decided."""

    policy: Policy
    memory: object
    history: History
    limits: Limits

    def decide(self, problem: Problem, rng: np.random.Generator) -> Decided:
        """One decision. Raises _Refused where the policy breaks a job's or the cluster's terms."""
        decided = self._decide(problem, problem, rng)
        if kept_waiting(decided.verdict, problem, self.limits):
            first = one_first(problem, self.limits)
            decided = self._decide(problem, first, rng) if first is not problem else decided
        return decided

    def _decide(self, problem: Problem, shown: Problem, rng: np.random.Generator) -> Decided:
        """One decision, with the problem as the policy is to see it."""
        capped = dict[JobId, str]()
        shown = without_useless(shown)
        for tried in range(1 + AGAIN):
            plan, memory = self._plan(shown, rng)
            cut = within(shown, plan)
            plan = cut.plan
            crowded = beyond(shown, plan) if tried < SHIFTS else {}
            if not (cut.words or crowded):
                break
            capped |= cut.words
            # What it can't give those is there for others: planned anew, it is not left idle.
            shown = held_down(shown, cut) if cut.words else shown
            shown = kept_to(shown, crowded)
        capped = kept_off(problem, plan) | capped
        told = {id_: capped[id_] for id_ in plan.idle if id_ in capped}
        told = kept_out(problem, plan) | told
        plan = replace(plan, idle={**plan.idle, **told}) if told else plan
        if found := tuple(faults(problem, plan)):
            raise _Refused(found)
        verdict = check(reconcile(problem, plan), problem, self.history, self.limits)
        return Decided(problem, plan, in_turn(verdict, problem), memory, capped=capped)

    def _plan(self, problem: Problem, rng: np.random.Generator) -> tuple[Plan, object]:
        """The policy's own plan, with pairs and live jobs where they are."""
        policy = self.policy
        if isinstance(policy, SharesGpus) and policy.plans_pairs:
            plan, memory = plan_by_rank(policy, problem, self.memory, rng)
        else:
            plan, memory = plan_by_rank(policy, without_riders(problem), self.memory, rng)
            plan = with_riders(problem, plan)
        return settle(problem, plan), memory

    def fails(self, problem: Problem, rng: np.random.Generator, only: Collection[JobId]) -> bool:
        """Whether it does so with these jobs alone."""
        away = {job.id for job in problem.jobs}.difference(only)
        try:
            self.decide(_seen(problem, {}, away), deepcopy(rng))
        except FAULTS:
            return True
        except _Refused:
            return False  # another fault, which has its own turn
        return False


def decide(
    problem: Problem,
    policy: Policy,
    memory: object,
    rng: np.random.Generator,
    *,
    history: History,
    limits: Limits,
) -> Decided:
    """One decision, without the jobs over which none can be made.

    Such a job is fixed at first. Where it is at fault again, or the policy fails over it, it is
    kept from the policy's sight for this round, what it holds counted as taken.
    """
    try:
        problem, left_out = _with_terms(problem, history, limits)
    except FAULTS as fault:
        return _unchanged(problem, memory, {}, f"what jobs may have can't be told: {_words(fault)}")
    round_ = _Round(policy, memory, history, limits)
    away = set(left_out)
    words = ""
    for _ in range(TRIES):
        before = deepcopy(rng)
        shown = _seen(problem, left_out, away)
        there = {job.id for job in shown.jobs}
        found: dict[JobId, str] = {}
        try:
            decided = round_.decide(shown, rng)
        except _Refused as refused:
            words = _words(refused.faults[0])
            found = {one.job: _words(one) for one in refused.faults if one.job in there}
            away.update(id_ for id_ in found if id_ in left_out)
        except FAULTS as fault:
            words = f"the policy {policy.name} fails: {_words(fault)}"
            if there and not round_.fails(shown, before, ()):
                fails = partial(round_.fails, shown, before)
                found = dict.fromkeys(_culprits(fails, sorted(there)), words)
                away.update(found)
        else:
            return replace(
                decided, problem=_seen(problem, left_out, frozenset()), left_out=dict(left_out)
            )
        if not found:
            break
        left_out = {**found, **left_out}
    return _unchanged(_seen(problem, left_out, frozenset()), memory, left_out, words)


def _with_terms(
    problem: Problem, history: History, limits: Limits
) -> tuple[Problem, dict[JobId, str]]:
    """The problem with what may not be moved fixed, and without sizes beyond a cap; and the jobs
    over which that fails, which stay as they are, with why. Raises where it is over none of them.
    """
    try:
        return narrow(freeze(with_crowded(problem), history, limits)), {}
    except FAULTS as fault:
        words = f"what it may have can't be told: {_words(fault)}"
    everybody = {job.id for job in problem.jobs}

    def only(these: Collection[JobId]) -> Problem:
        seen = _seen(problem, {}, everybody.difference(these))
        return narrow(freeze(with_crowded(seen), history, limits))

    def fails(these: Collection[JobId]) -> bool:
        try:
            only(these)
        except FAULTS:
            return True
        return False

    found = dict.fromkeys([] if fails(()) else _culprits(fails, sorted(everybody)), words)
    others = by_id(only(everybody.difference(found)).jobs)
    jobs = tuple(others.get(job.id, job) for job in problem.jobs)
    return replace(problem, jobs=jobs), found


def _culprits(fails: Callable[[Collection[JobId]], bool], among: Sequence[JobId]) -> list[JobId]:
    """The jobs over which it fails although all but a few are away, by halves."""
    if not fails(among):
        return []
    if len(among) <= 1:
        return list(among)
    half = len(among) // 2
    return [*_culprits(fails, among[:half]), *_culprits(fails, among[half:])]


def _unchanged(
    problem: Problem, memory: object, left_out: Mapping[JobId, str], fault: str
) -> Decided:
    """Everything stays as it is."""
    idle = {job.id: f"no plan: {fault}" for job in problem.jobs if job.placement is None}
    return Decided(problem, Plan({}, idle), Verdict((), ()), memory, left_out, fault)


def _seen(problem: Problem, fixed: Mapping[JobId, str], away: Set[JobId]) -> Problem:
    """The problem with some jobs fixed, and without others, whose GPUs are taken."""
    if not fixed and not away:
        return problem
    jobs = tuple(
        replace(job, fixed=job.fixed or f"left out of the plan: {fixed[job.id]}")
        if job.id in fixed
        else job
        for job in problem.jobs
        if job.id not in away
    )
    if not away:
        return replace(problem, jobs=jobs)
    gone = [job for job in problem.jobs if job.id in away]
    taken = _held_by(gone, jobs)
    return replace(
        problem,
        jobs=jobs,
        nodes=tuple(
            replace(node, taken=min(node.gpus, node.taken + taken[node.name]))
            if taken.get(node.name)
            else node
            for node in nodes_without(problem, gone)
        ),
        outlooks={id_: one for id_, one in problem.outlooks.items() if id_ not in away},
        pairs={pair: one for pair, one in problem.pairs.items() if away.isdisjoint(pair)},
        caps=without(problem, gone),
    )


def _held_by(away: Sequence[Job], others: Sequence[Job]) -> Mapping[str, int]:
    """GPUs by node that they hold; one that another job shares is that one's."""
    there = {job.id: job.placement for job in others}
    alone = {
        job.id: job for job in away if job.beside not in there or there[job.beside] != job.placement
    }
    return occupied(
        {id_: job.placement for id_, job in alone.items() if job.placement is not None},
        {id_: job.beside for id_, job in alone.items()},
    )


def _words(fault: Exception) -> str:
    said = str(fault) if isinstance(fault, PlanError) else f"{type(fault).__name__}: {fault}"
    return " ".join(said.split())[:LONGEST]
