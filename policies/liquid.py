"""Liquid (TPDS22): jobs in order at the size they asked for, where the network costs them least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from ones.policies.fifo import queue_order
from ones.policies.model import Assignment, Ints, Job, JobId, Plan, Problem
from ones.policies.network.gangs import NOWHERE, Batch, Gang
from ones.policies.network.placers import Placing, placing
from ones.policies.network.seating import place
from ones.policies.network.sensitivity import sensitivity
from ones.policies.network.starts import free_beside, placement_of
from ones.policies.network.topology import Distances, Topology
from ones.policies.shapes import shapes_by_size, size_as_requested
from ones.policies.sharing import pair_up
from ones.policies.sizes import in_gpus

ORDERS = ("priority", "arrival", "fair")
MODES = ("batch", "immediate")


@dataclass(frozen=True, slots=True)
class Liquid:
    """Nobody is moved, and nobody overtakes a job that waits for some of the same nodes.

    In immediate mode each job is placed in its turn; in batch mode all that can start in a round
    are placed together.
    """

    mode: str = "batch"
    placement: str = "subtree"
    order: str = "priority"  # Slurm's, then arrival; arrival alone; or least GPUs of an account
    within: float = 0.0  # two GPUs of a node that NVLink does not join
    leaf: float = 1.0  # distances (Liquid §2.1): two nodes of a leaf switch,
    above: float = 4.0  # of the switch above it,
    beyond: float = 40.0  # and further apart
    share_load: float = inf
    """From this share of the GPUs in use on, jobs that wait are put beside others that may share
    their GPU (Liquid §3.2); inf: never."""
    name: str = "liquid"

    def __post_init__(self) -> None:
        placing(self.placement)
        if self.mode not in MODES:
            raise ValueError(f"its mode '{self.mode}' is none of: {', '.join(MODES)}")
        if self.order not in ORDERS:
            raise ValueError(f"its order '{self.order}' is none of: {', '.join(ORDERS)}")
        if not self.share_load >= 0:
            raise ValueError("its setting share_load must not be below 0")
        self.distances()

    @property
    def shares(self) -> bool:
        return self.share_load < inf

    @property
    def plans_pairs(self) -> bool:
        return False

    def distances(self) -> Distances:
        return Distances(node=self.within, switches=(self.leaf, self.above, self.beyond))

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        assignments: dict[JobId, Assignment] = {}
        idle: dict[JobId, str] = {}
        waiting: list[Job] = []
        for job in problem.jobs:
            if job.placement is not None:
                assignments[job.id] = Assignment(job.placement, job.batch, "runs to its end")
            elif job.fixed or not job.startable:
                idle[job.id] = job.fixed or "waits for a reason of its own"
            else:
                waiting.append(job)
        topology = Topology.of(problem.nodes, self.distances())
        free = free_beside(problem, Plan(assignments, idle), topology)
        starts = self._in_turn(_Site(problem, topology, free.copy()), waiting, idle, rng)
        batch = Batch(topology, free, tuple(start.gang for start in starts))
        sites = np.concatenate([batch.nowhere()[:0], *(start.sites for start in starts)])
        if self.mode == "batch":
            together = placing(self.placement)(batch, rng)
            if (together != NOWHERE).all():
                sites = together
        for number, start in enumerate(starts):
            assignments[start.job.id] = Assignment(
                placement_of(topology, sites[batch.tasks_of(number)], start.gang.tasks),
                None,
                f"its turn; apart its steps would take {100 * start.gang.bandwidth:.0f} % longer",
            )
        return self._shared(problem, Plan(assignments, idle), waiting), None

    def _shared(self, problem: Problem, plan: Plan, waiting: Sequence[Job]) -> Plan:
        """Who found no GPU of its own put beside others, as long as the cluster is full enough."""
        if not (plan.idle and problem.pairs and self.shares):
            return plan
        total = sum(node.gpus for node in problem.nodes if node.usable)
        used = sum(node.taken for node in problem.nodes if node.usable)
        used += sum(one.placement.gpus for one in plan.assignments.values())
        if used < self.share_load * total:
            return plan
        return pair_up(problem, plan, [job.id for job in _ordered(problem, waiting, self.order)])

    def _in_turn(
        self, site: _Site, waiting: Sequence[Job], idle: dict[JobId, str], rng: np.random.Generator
    ) -> list[_Start]:
        """Who can start, with the nodes that each finds in its turn; the others' reasons."""
        alone = self.mode == "immediate" and self.placement != "subtree"
        way = placing(self.placement if alone else "subtree-immediate")
        starts: list[_Start] = []
        head: dict[str, Job] = {}  # node -> the first job that waits for it
        for job in _ordered(site.problem, waiting, self.order):
            ahead = next((head[node] for node in sorted(job.nodes) if node in head), None)
            if ahead is not None:
                idle[job.id] = f"job {ahead.id} is ahead of it and waits for its GPUs"
                continue
            start = site.seat(job, way, rng)
            if start is not None:
                starts.append(start)
            elif not site.ever(job):
                # It would block the queue for ever.
                idle[job.id] = f"the usable nodes can't hold its {in_gpus(job.requested)}"
            else:
                idle[job.id] = f"waits for {in_gpus(job.requested)}"
                head.update(dict.fromkeys(job.nodes, job))
        return starts


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """A job that can start, and where it could."""

    job: Job
    gang: Gang
    sites: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """The cluster while a plan is drawn up; what is seated is no longer free."""

    problem: Problem
    topology: Topology
    free: Ints

    def seat(self, job: Job, way: Placing, rng: np.random.Generator) -> _Start | None:
        """Book the first form of the job that finds room."""
        for gang in self._forms(job):
            sites = way(Batch(self.topology, self.free, (gang,)), rng)
            if (sites != NOWHERE).all():
                np.subtract.at(self.free, sites, np.array(gang.tasks))
                return _Start(job, gang, sites)
        return None

    def ever(self, job: Job) -> bool:
        """Whether the job fits once all that opted in have ended."""
        empty = self.topology.capacity()
        forms = self._forms(replace(job, crowded={}))
        return any(place(self.topology, empty, gang) is not None for gang in forms)

    def _forms(self, job: Job) -> Iterator[Gang]:
        """Single GPUs where any split will do, else one task a node; the fewest nodes first."""
        gpus = size_as_requested(job.shapes, job.requested)
        shapes = shapes_by_size(job.shapes)[gpus] if gpus else []
        nodes = self.problem.by_name
        kinds = sorted({nodes[name].gpu_type for name in job.nodes if name in nodes})
        for shape in shapes[:1] if job.uneven else shapes:
            each = 1 if job.uneven else shape.gpus_per_node
            tight = {name for name, most in job.crowded.items() if most < each}
            allowed = job.nodes - tight if tight else job.nodes
            for kind in kinds:
                yield Gang(
                    tasks=(1,) * shape.gpus if job.uneven else (shape.gpus_per_node,) * shape.nodes,
                    bandwidth=sensitivity(
                        job,
                        self.problem.outlooks[job.id],
                        kind,
                        nodes=shape.nodes,
                        gpus=shape.gpus,
                    ),
                    apart=not job.uneven,
                    where=self.topology.hosts(allowed, kind),
                )


def _ordered(problem: Problem, waiting: Sequence[Job], order: str) -> Iterator[Job]:
    if order == "arrival":
        yield from sorted(waiting, key=lambda job: (job.submitted, job.id))
    elif order == "priority":
        yield from sorted(waiting, key=queue_order)
    else:
        # Whose account holds the fewest GPUs is next, counting those that are ahead of it here.
        held: dict[str, int] = {}
        for job in problem.jobs:
            if job.placement is not None:
                held[job.account] = held.get(job.account, 0) + job.placement.gpus
        left = sorted(waiting, key=queue_order)
        while left:
            job = min(left, key=lambda one: held.get(one.account, 0))
            left.remove(job)
            held[job.account] = held.get(job.account, 0) + job.requested
            yield job
