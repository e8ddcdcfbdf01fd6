"""CPUs and memory beside the GPUs: where they are too few for a job to have all that are free.

Policies count GPUs. Slurm starts a job only where its CPUs and its memory are free as well, and one
that has few GPUs of a node may have all of these. Such a node is crowded: of its GPUs a job can
have as many as the rest suffices for. What Slurm does not share out, or nobody has told, never
crowds a node, nor does what jobs hold where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from ones.policies.caps import SLACK, final, of_counts
from ones.policies.forecast import by_id
from ones.policies.model import Job, JobId, Node, Placement, Plan, Problem, Take
from ones.policies.placement import Room
from ones.policies.rigid import place_of
from ones.policies.sharing import occupied

Amounts = tuple[float, float]  # CPUs, and MiB of memory
NOTHING: Amounts = (0.0, 0.0)
CROWDED = "others hold the CPUs or the memory beside"  # GPUs of a node


def counts(node: Node) -> bool:
    """Whether anything beside its GPUs is known to be shared out there."""
    return min(node.cpus, node.memory) < inf


def needs(job: Job, placement: Placement) -> Iterator[tuple[str, Amounts]]:
    """What the job takes beside its GPUs on each node of a placement."""
    live = job.keeps is not None and job.goes_live(placement)
    kept = dict(job.keeps.gpus_on) if live and job.keeps is not None else {}
    for name, gpus in placement.gpus_on:
        yield name, (_of(job.cpus, name, gpus, kept), _of(job.memory, name, gpus, kept))


def _of(take: Take | None, name: str, gpus: int, kept: Mapping[str, int]) -> float:
    if take is None:
        return 0.0
    nodes = 1.0
    if kept and take.spread:
        # What holds GPUs for it takes as much a GPU as its first node does.
        nodes = (name in kept) + (gpus - kept.get(name, 0)) / min(kept.values())
    return of_counts(take, nodes, float(gpus))


@dataclass(slots=True)
class Crowding:
    """What jobs take beside their GPUs, node by node, and what there is for them."""

    jobs: Mapping[JobId, Job]
    have: Mapping[str, Amounts]  # of nodes that count, for all of them together
    used: dict[str, Amounts]

    @classmethod
    def of(
        cls,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        held: Mapping[JobId, Placement] | None = None,
    ) -> Crowding:
        """As if these were their placements; None: those that they have."""
        known = by_id(jobs)
        now = {job.id: job.placement for job in jobs if job.placement is not None}
        have = {node.name: (node.cpus, node.memory) for node in nodes if counts(node)}
        used = _sums(known, now, have)
        for name, (cpus, memory) in used.items():
            # They run, whatever was reckoned: Slurm rounds, and knows of CPUs that tasks share.
            have[name] = max(have[name][0], cpus), max(have[name][1], memory)
        return cls(known, have, used if held is None else _sums(known, held, have))

    def change(self, id_: JobId, before: Placement | None, after: Placement | None) -> None:
        """The job has the other placement instead."""
        for placement, sign in ((before, -1.0), (after, 1.0)):
            for name, (cpus, memory) in needs(self.jobs[id_], placement) if placement else ():
                if name in self.have:
                    used = self.used.get(name, NOTHING)
                    self.used[name] = used[0] + sign * cpus, used[1] + sign * memory

    def left(self, name: str) -> Amounts:
        """What they leave of a node; without end where nothing is counted."""
        have, used = self.have.get(name, (inf, inf)), self.used.get(name, NOTHING)
        return have[0] - used[0], have[1] - used[1]

    def full(self) -> frozenset[str]:
        """The nodes of which more is used than they have."""
        return frozenset(name for name, used in self.used.items() if _beyond(used, self.have[name]))


def _sums(
    jobs: Mapping[JobId, Job], held: Mapping[JobId, Placement], among: Mapping[str, Amounts]
) -> dict[str, Amounts]:
    found: dict[str, Amounts] = {}
    for id_, placement in held.items() if among else ():
        if id_ not in jobs:
            continue  # which is for others to tell
        for name, (cpus, memory) in needs(jobs[id_], placement):
            if name in among:
                used = found.get(name, NOTHING)
                found[name] = used[0] + cpus, used[1] + memory
    return found


def _beyond(used: Amounts, have: Amounts) -> bool:
    return used[0] > have[0] + SLACK or used[1] > have[1] + SLACK


def _most(takes: tuple[Take | None, Take | None], left: Amounts) -> float:
    """GPUs of a node for which so much is enough."""
    found = inf
    for take, has in zip(takes, left, strict=True):
        if take is not None and has < inf:
            rest = has + SLACK - take.node
            found = min(found, -1.0 if rest < 0 else rest // take.gpu if take.gpu else inf)
    return max(0.0, found)


def with_crowded(problem: Problem) -> Problem:
    """The problem with each job told of which nodes it can't have all GPUs, whoever of the others
    makes way."""
    have = Crowding.of(problem.nodes, problem.jobs).have
    if not have:
        return problem
    known: dict[tuple[Take | None, Take | None], Mapping[str, int]] = {}
    sizes = {node.name: node.gpus for node in problem.nodes if node.name in have}

    def crowded(job: Job) -> Mapping[str, int]:
        takes = job.cpus, job.memory
        if takes not in known:
            most = {name: _most(takes, left) for name, left in have.items()}
            known[takes] = {name: int(few) for name, few in most.items() if few < sizes[name]}
        return known[takes]

    return kept_to(problem, {job.id: found for job in problem.jobs if (found := crowded(job))})


def kept_to(problem: Problem, crowded: Mapping[JobId, Mapping[str, int]]) -> Problem:
    """The problem with these jobs kept to so many GPUs of crowded nodes."""
    if not crowded:
        return problem
    jobs = tuple(
        replace(job, crowded=crowded[job.id]) if job.id in crowded else job for job in problem.jobs
    )
    return replace(problem, jobs=jobs)


def without_useless(problem: Problem) -> Problem:
    """The problem with those GPUs counted as taken that none of its jobs can have beside others'
    CPUs and memory: else sizes would be chosen as if they were free."""
    if not any(job.crowded for job in problem.jobs):
        return problem
    useful: dict[str, float] = {}
    for job in {(id(job.nodes), id(job.crowded)): job for job in problem.jobs}.values():
        for name in job.nodes:
            useful[name] = max(useful.get(name, 0), job.crowded.get(name, inf))
    present = {job.id: job.placement for job in problem.jobs if job.placement is not None}
    held = occupied(present, {})
    return replace(
        problem,
        nodes=tuple(
            _with_use_for(node, max(useful.get(node.name, inf), held[node.name]))
            for node in problem.nodes
        ),
    )


def _with_use_for(node: Node, most: float) -> Node:
    useless = node.gpus - node.taken - most
    return replace(node, taken=node.taken + int(useless)) if useless > 0 else node


def nodes_without(problem: Problem, away: Sequence[Job]) -> tuple[Node, ...]:
    """The nodes once these jobs are nobody's to decide on, and hold what they hold beside GPUs."""
    gone = by_id(away)
    held = {id_: job.placement for id_, job in gone.items() if job.placement is not None}
    used = _sums(gone, held, {node.name: NOTHING for node in problem.nodes if counts(node)})
    return tuple(
        replace(
            node,
            cpus=max(0.0, node.cpus - used[node.name][0]),
            memory=max(0.0, node.memory - used[node.name][1]),
        )
        if node.name in used
        else node
        for node in problem.nodes
    )


def beyond(problem: Problem, plan: Plan) -> dict[JobId, Mapping[str, int]]:
    """The jobs that a plan gives GPUs on nodes where, with the others' there, there is too little
    beside these; and as many as they could have. Who stays comes first, then the others in Slurm's
    order."""
    held = final(problem, plan)
    crowding = Crowding.of(problem.nodes, problem.jobs, held)
    full = crowding.full()
    if not full:
        return {}
    left = {name: crowding.have[name] for name in full}
    before = {job.id: dict(job.placement.gpus_on) if job.placement else {} for job in problem.jobs}

    def comes(id_: JobId, name: str) -> bool:
        return dict(held[id_].gpus_on)[name] > before[id_].get(name, 0)

    there = [
        (name, id_)
        for id_, placement in held.items()
        for name in placement.nodes
        if name in full and id_ in crowding.jobs
    ]
    there.sort(key=lambda one: (comes(one[1], one[0]), place_of(crowding.jobs[one[1]])))
    found: dict[JobId, dict[str, int]] = {}
    for name, id_ in there:
        job = crowding.jobs[id_]
        wants = dict(needs(job, held[id_]))[name]
        if comes(id_, name) and _beyond(wants, left[name]):
            found.setdefault(id_, {})[name] = int(_most((job.cpus, job.memory), left[name]))
        else:
            left[name] = left[name][0] - wants[0], left[name][1] - wants[1]
    return {id_: {**crowding.jobs[id_].crowded, **more} for id_, more in found.items()}


def kept_out(problem: Problem, plan: Plan) -> dict[JobId, str]:
    """Who waits although as many GPUs as are enough for it stand idle on a node, for want of CPUs
    or memory there; and why."""
    if not any(counts(node) for node in problem.nodes):
        return {}
    held = final(problem, plan)
    crowding = Crowding.of(problem.nodes, problem.jobs, held)
    free = Room.of(problem.nodes, held.values()).free
    found: dict[JobId, str] = {}
    known: dict[tuple[object, ...], str] = {}
    for job in problem.jobs:
        if job.id not in plan.idle or not job.startable or not job.shapes:
            continue
        takes, least = (job.cpus, job.memory), min(shape.gpus_per_node for shape in job.shapes)
        key = *takes, least, id(job.nodes)
        if key not in known:
            names = (name for name in sorted(job.nodes) if free.get(name, 0) >= least)
            known[key] = next((n for n in names if _most(takes, crowding.left(n)) < least), "")
        if known[key]:
            found[job.id] = f"{plan.idle[job.id]}; {CROWDED} GPUs of {known[key]}"
    return found


def against(job: Job, placement: Placement) -> str:
    """Why Slurm would not give it new GPUs of this placement, whoever of the others makes way;
    empty: it would."""
    if not job.crowded:
        return ""
    has = dict(job.placement.gpus_on if job.placement else ())
    for name, gpus in placement.gpus_on:
        if gpus > max(has.get(name, 0), job.crowded.get(name, gpus)):
            return f"{CROWDED} GPUs of {name}"
    return ""
