"""Who goes first: a higher tier strictly, and within a tier Slurm's priority, as far as is wanted.

A problem whose jobs are not all alike in this is planned rank by rank, by whatever policy: each
rank sees what those before it leave. What it wants beyond its own requests it gets only from what
the requests of later ranks leave, so that going first is no reason to starve the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ones.policies.model import Job, JobId, Node, Plan, Policy, Problem
from ones.policies.placement import Room
from ones.policies.sharing import occupied

MOST = 16  # ranks within a tier, which bounds what a plan costs; all later jobs are of the last
FULL = "jobs that come before it have all GPUs"
KEPT = "ranks"  # where the memories of several ranks are, in the one that is kept


def ranks(jobs: Iterable[Job], strictness: float) -> list[tuple[Job, ...]]:
    """The jobs by rank, the first first.

    With a strictness of 1 each priority is a rank of its own, with 0 a whole tier is one; between
    them a rank takes in priorities that are no further apart than that share of the tier's.
    """
    found: list[tuple[Job, ...]] = []
    tier_of = _tiers(jobs := tuple(jobs))
    for tier in sorted(set(tier_of.values()), reverse=True):
        of_tier = [job for job in jobs if tier_of[job.id] == tier]
        of_tier.sort(key=lambda job: (-job.priority, job.submitted, job.id))
        width = (1.0 - strictness) * (of_tier[0].priority - of_tier[-1].priority)
        first, here = of_tier[0].priority, 0
        begins = [0]
        for index, job in enumerate(of_tier):
            if first - job.priority > width and here < MOST - 1:
                first, here = job.priority, here + 1
                begins.append(index)
        ends = [*begins[1:], len(of_tier)]
        found += [tuple(of_tier[a:b]) for a, b in zip(begins, ends, strict=True)]
    return found


def plan_by_rank(
    policy: Policy, problem: Problem, memory: object, rng: np.random.Generator
) -> tuple[Plan, object]:
    """The policy's plan, one rank after the other; as it is where all jobs are of one rank."""
    found = ranks(problem.jobs, problem.strictness) if _differ(problem) else []
    if len(found) < 2:
        return policy.plan(problem, _own(memory), rng)
    ranked = _Ranked(policy, problem, found)
    plan, kept = ranked.plan(memory, rng, displace=True)
    if ranked.overfull(plan):
        # The policy leaves jobs where they are that an earlier rank has displaced: nobody is.
        plan, kept = ranked.plan(memory, rng, displace=False)
    return plan, {KEPT: kept}


def _differ(problem: Problem) -> bool:
    jobs = problem.jobs
    return len({job.tier for job in jobs}) > 1 or (
        problem.strictness > 0 and len({job.priority for job in jobs}) > 1
    )


def _tiers(jobs: Sequence[Job]) -> dict[JobId, int]:
    """Of two that share a GPU both go with the first of them: they are planned together."""
    own = {job.id: job.tier for job in jobs}
    together = {job.id: max(job.tier, own.get(job.beside, job.tier)) for job in jobs if job.beside}
    return own | together


@dataclass(frozen=True, slots=True)
class _Ranked:
    policy: Policy
    problem: Problem
    ranks: Sequence[tuple[Job, ...]]

    def plan(
        self, memory: object, rng: np.random.Generator, *, displace: bool
    ) -> tuple[Plan, list[object]]:
        """With `displace`, ranks see no later ones but those of whom nobody may be moved."""
        merged, kept = Plan({}, {}), list[object]()
        gaps: list[float | None] = []
        before = _memories(memory)
        for at, rank in enumerate(self.ranks):
            later = [job for others in self.ranks[at + 1 :] for job in others]
            taken = _held([job for others in self.ranks[:at] for job in others], merged)
            taken += self._waited_for(at, merged, taken)
            taken += _held([job for job in later if not displace or self._stays(job)], Plan({}))
            own = _merged([before[at], *before] if at < len(before) else before)
            seen = self._seen(rank, taken)
            plan, memory_after = self.policy.plan(
                replace(seen, nodes=_room_for(later, seen)), own, rng
            )
            unserved = _unserved(rank, plan)
            if unserved:
                second, after = self.policy.plan(seen, own, rng)
                if len(_unserved(rank, second)) < len(unserved):
                    plan, memory_after = second, after
            out = {
                job.id: FULL
                for job in rank
                if at and job.placement and job.id not in plan.assignments and not self._stays(job)
            }
            merged = Plan(
                {**merged.assignments, **plan.assignments}, {**merged.idle, **out, **plan.idle}
            )
            gaps.append(plan.gap)
            kept.append(memory_after)
        known = [gap for gap in gaps if gap is not None]
        return replace(merged, gap=max(known) if len(known) == len(gaps) else None), kept

    def overfull(self, plan: Plan) -> bool:
        """Whether some node would hold more than it has, and than it holds now."""
        held, now = _held(self.problem.jobs, plan), _held(self.problem.jobs, Plan({}))
        nodes = self.problem.by_name
        return any(
            gpus > now[name] and gpus > nodes[name].gpus - nodes[name].taken
            for name, gpus in held.items()
            if name in nodes
        )

    def _stays(self, job: Job) -> bool:
        usable = self.problem.by_name
        return bool(job.fixed) or any(
            name not in usable or not usable[name].usable
            for name in (job.placement.nodes if job.placement else ())
        )

    def _seen(self, rank: Sequence[Job], taken: Mapping[str, int]) -> Problem:
        there = {job.id for job in rank}
        return replace(
            self.problem,
            jobs=tuple(job for job in self.problem.jobs if job.id in there),
            nodes=tuple(_with_taken(node, taken.get(node.name, 0)) for node in self.problem.nodes),
            outlooks={id_: one for id_, one in self.problem.outlooks.items() if id_ in there},
            pairs={both: one for both, one in self.problem.pairs.items() if there.issuperset(both)},
        )

    def _waited_for(self, at: int, plan: Plan, taken: Mapping[str, int]) -> Counter[str]:
        """GPUs that are kept free for jobs of earlier ranks which the plan could not start.

        What is free now and then would go to somebody of a later rank for good otherwise.
        """
        kept = Counter[str]()
        empty = Room.of(self.problem.nodes)
        for job in (job for rank in self.ranks[:at] for job in rank):
            if job.placement is not None or job.id in plan.assignments or not _may_start(job):
                continue
            if not empty.holds(job):
                continue  # it would keep them for ever
            missing = job.requested
            for node in self.problem.nodes:
                if node.usable and node.name in job.nodes and missing:
                    free = node.gpus - node.taken - taken.get(node.name, 0) - kept[node.name]
                    kept[node.name] += min(missing, max(0, free))
                    missing -= min(missing, max(0, free))
        return kept


def _may_start(job: Job) -> bool:
    return job.startable and not job.fixed


def _held(jobs: Iterable[Job], plan: Plan) -> Counter[str]:
    """GPUs by node that these jobs hold once the plan is carried out."""
    there, beside = {}, {}
    for job in jobs:
        given = plan.assignments.get(job.id)
        placement = given.placement if given else None if job.id in plan.idle else job.placement
        if placement is not None:
            there[job.id] = placement
            moved = given is not None and (given.beside is not None or placement != job.placement)
            beside[job.id] = given.beside if given is not None and moved else job.beside
    return occupied(there, beside)


def _with_taken(node: Node, gpus: int) -> Node:
    return replace(node, taken=min(node.gpus, node.taken + gpus)) if gpus else node


def _unserved(rank: Sequence[Job], plan: Plan) -> list[Job]:
    """The jobs that have, or get, less than they asked for."""
    found = []
    for job in rank:
        given = plan.assignments.get(job.id)
        if job.fixed or not (job.startable or job.placement):
            continue
        gpus = given.placement.gpus if given else 0
        if gpus < min(job.requested, job.sizes.most):
            found.append(job)
    return found


def _room_for(later: Sequence[Job], seen: Problem) -> tuple[Node, ...]:
    """The nodes with the requests of later jobs marked as taken, where this rank's leave room.

    Who runs is left where it is; whole each gets its request or not at all.
    """
    taken = Counter[str]()

    def free(node: Node) -> int:
        return max(0, node.gpus - node.taken - taken[node.name]) if node.usable else 0

    for job in sorted(later, key=lambda job: job.placement is None):
        if job.fixed or not (job.startable or job.placement):
            continue
        held = dict(job.placement.gpus_on if job.placement else ())
        room = [node for node in seen.nodes if node.name in job.nodes and free(node)]
        wanted = min(job.requested, sum(held.values())) if held else job.requested
        spare = sum(map(free, room)) - sum(
            one.requested
            for one in seen.jobs
            if (one.startable or one.placement) and not one.nodes.isdisjoint(job.nodes)
        )
        if spare < wanted:
            continue
        for node in sorted(room, key=lambda node: (node.name not in held, -free(node))):
            given = min(wanted, free(node), held.get(node.name, wanted))
            taken[node.name] += given
            wanted -= given
    return tuple(_with_taken(node, taken[node.name]) for node in seen.nodes)


def _own(memory: object) -> object:
    """The memory of a policy that sees all jobs at once."""
    return _merged(_memories(memory)) if _is_ranked(memory) else memory


def _is_ranked(memory: object) -> bool:
    return isinstance(memory, dict) and isinstance(memory.get(KEPT), list)


def _memories(memory: object) -> list[object]:
    if isinstance(memory, dict) and isinstance(memory.get(KEPT), list):
        return list(memory[KEPT])
    return [memory]


def _merged(memories: Sequence[object]) -> object:
    """One memory out of those of all ranks: what jobs it knows are of any, the rest of the first.

    A job goes from one rank to another with its past.
    """
    known = [one for one in memories if one is not None]
    tables = [one for one in known if isinstance(one, dict)]
    if not known or len(tables) < len(known):
        return known[0] if known else None
    keys = dict.fromkeys(key for one in tables for key in one)
    return {key: _merged([one[key] for one in tables if key in one]) for key in keys}
