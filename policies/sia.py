"""Sia (SOSP'23): an integer programme over few configurations, by goodput, on mixed GPU types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]
from scipy.optimize import (  # type: ignore[import-untyped]
    Bounds,
    LinearConstraint,
    milp,
)

from ones.policies.model import (
    Floats,
    Ints,
    Job,
    JobId,
    Outlook,
    Placement,
    Plan,
    Problem,
    Seconds,
    Shape,
)
from ones.policies.peers import (
    Draft,
    Past,
    accepted_sizes,
    batch_for,
    look_back,
    rate,
    remember,
)
from ones.policies.placement import Room

Bools = NDArray[np.bool_]
LEFT_OUT = 1.1  # lambda_n: what a job without GPUs costs; one on its least configuration costs 1
POWER = -0.5
COSTLIEST = 3000.0
GAP = 1e-4  # how far from the optimum the solver may stop
SOLVER_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Menu:
    """The forms in which GPUs are handed out: a part of a node, or whole nodes (Sia §3.3).

    Powers of two within a node, then whole nodes, of each GPU type.
    """

    kinds: tuple[str, ...]
    free: Ints  # [K] GPUs of each type
    kind: Ints  # [C] index into kinds
    shapes: tuple[Shape, ...]  # [C]
    nodes: Ints  # [C]
    gpus: Ints  # [C]
    kind_of: Mapping[str, str]  # node -> its type

    @classmethod
    def of(cls, room: Room, *, most: int) -> Menu:
        """What the usable nodes offer, up to the first size that holds `most` GPUs."""
        free = room.free
        usable = [node for node in room.nodes if node.usable]
        kinds = tuple(sorted({node.gpu_type for node in usable}))
        offers: list[tuple[int, Shape]] = []
        for number, kind in enumerate(kinds):
            nodes = [node for node in usable if node.gpu_type == kind]
            size = max(node.gpus for node in nodes)
            within = [Shape(1, 2**k) for k in range(size.bit_length()) if 2**k < size]
            whole = min(sum(1 for node in nodes if node.gpus == size), -(-most // size))
            shapes = [*within, *(Shape(count, size) for count in range(1, whole + 1))]
            offers += [(number, shape) for shape in shapes]
        return cls(
            kinds=kinds,
            free=np.array(
                [sum(free[node.name] for node in usable if node.gpu_type == kind) for kind in kinds]
            ),
            kind=np.array([number for number, _ in offers], dtype=np.int64),
            shapes=tuple(shape for _, shape in offers),
            nodes=np.array([shape.nodes for _, shape in offers], dtype=np.int64),
            gpus=np.array([shape.gpus for _, shape in offers], dtype=np.int64),
            kind_of={node.name: node.gpu_type for node in room.nodes},
        )

    def has(self, job: Job) -> Bools:
        """[C] Which of them the job runs on now."""
        if job.placement is None or self.kind_of[job.placement.nodes[0]] not in self.kinds:
            return np.zeros(len(self.gpus), dtype=np.bool_)
        kind = self.kinds.index(self.kind_of[job.placement.nodes[0]])
        return np.asarray((self.kind == kind) & (self.gpus == job.placement.gpus))

    def named(self, choice: int) -> str:
        return f"configuration {self.shapes[choice]} {self.kinds[self.kind[choice]]}".rstrip()


@dataclass(frozen=True, slots=True)
class Sia:
    """The configurations of the least sum of goodput^-0.5, each against the job's least (Sia §3.4).

    Changes count with (age - restarts x cost) / (age + cost) of their goodput; who is in the midst
    of a restart is left alone. A job gets at most twice the GPUs it has run on so far.
    """

    power: float = POWER
    left_out: float = LEFT_OUT
    max_wait: Seconds = inf  # as published; a daemon sets its own
    name: str = "sia"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        draft = Draft.of(problem)
        past = look_back(problem, memory)
        kept = remember(problem.now, past)
        kind_of = {node.name: node.gpu_type for node in problem.nodes}
        jobs = []
        for job in draft.open:
            if job.placement is not None and _restarting(problem, job):
                kind = kind_of[job.placement.nodes[0]]
                batch = batch_for(job, problem.outlooks[job.id], kind, job.placement)
                draft.give(job, job.placement, "in the midst of a restart", batch=batch)
            else:
                jobs.append(job)
        if not jobs or not any(node.usable for node in problem.nodes):
            return draft.plan(), kept
        most = [_most(job, past[job.id]) for job in jobs]
        menu = Menu.of(draft.room, most=max(most))
        cost = np.stack(
            [
                self._costs(problem, job, past[job.id], menu, most=bound)
                for job, bound in zip(jobs, most, strict=True)
            ]
        )
        left_out = np.array(
            [COSTLIEST if job.waited > self.max_wait else self.left_out for job in jobs]
        )
        chosen = _solve(cost - left_out[:, None], menu)
        _place(problem, draft, menu, jobs, chosen)
        return draft.plan(), kept

    def _costs(self, problem: Problem, job: Job, past: Past, menu: Menu, *, most: int) -> Floats:
        """[C] Normalised goodput to the power; inf where the job can't have it."""
        goodput = _goodputs(problem.outlooks[job.id], job, menu, most=most)
        able = goodput > 0
        if not able.any():
            return np.full(len(goodput), np.inf)
        worth = goodput / goodput[able].min()
        age, delay = problem.now - job.submitted, problem.outlooks[job.id].restart_cost
        if job.placement is not None and age >= delay:
            factor = max(age - past.restarts * delay, 0.0) / (age + delay)
            worth = np.where(menu.has(job), worth, worth * factor)
        with np.errstate(divide="ignore"):
            cost = np.where(worth > 0, np.round(worth**self.power, 2), COSTLIEST)
        return np.where(able, np.minimum(cost, COSTLIEST), np.inf)


def _most(job: Job, past: Past) -> int:
    """The GPUs it may get; no fewer than its least size."""
    most = max(2 * past.largest, 1)
    if job.batches is not None:
        most = min(most, job.batches.most // job.batches.least_per_gpu)
    return max(most, min(accepted_sizes(job), default=1))


def _goodputs(outlook: Outlook, job: Job, menu: Menu, *, most: int) -> Floats:
    """[C] Goodput; 0 where the job can't have it. All alike as long as nothing was measured."""
    allowed = {menu.kind_of[name] for name in job.nodes if name in menu.kind_of}
    sizes = frozenset(job.shapes)
    takes = np.array(
        [shape.gpus in job.sizes if job.uneven else shape in sizes for shape in menu.shapes]
    )
    reach = np.array([kind in allowed for kind in menu.kinds])[menu.kind]
    able = takes & reach & (menu.gpus <= most)
    if not able.any():  # its least size is none of a part of a node or whole nodes
        able = takes & reach
        able &= menu.gpus == menu.gpus[able].min(initial=np.iinfo(np.int64).max)
    goodput = np.zeros(len(able))
    if outlook.points == 0:
        goodput[able] = 1.0
        return goodput
    for number, kind in enumerate(menu.kinds):
        these = able & (menu.kind == number)
        if these.any():
            goodput[these], _ = rate(
                job, outlook, kind, nodes=menu.nodes[these], gpus=menu.gpus[these]
            )
    return goodput


def _restarting(problem: Problem, job: Job) -> bool:
    if job.started is None:
        return False
    return problem.now - job.started < problem.outlooks[job.id].restart_cost


def _solve(cost: Floats, menu: Menu) -> list[int]:
    """The choice of each job, or -1, of the least sum of costs that the GPUs suffice for."""
    job, choice = np.nonzero(np.isfinite(cost) & (cost < 0))
    chosen = [-1] * len(cost)
    if len(job) == 0:
        return chosen
    columns = np.arange(len(job))
    one_each = sparse.csr_array((np.ones(len(job)), (job, columns)), shape=(len(cost), len(job)))
    # In shares of each type's free GPUs: coefficients well above 1 make HiGHS doubt its own
    # solutions and print a line of its own about it, asked or not; so does its presolve.
    share = menu.gpus[choice] / np.maximum(menu.free, 1)[menu.kind[choice]]
    in_use = sparse.csr_array(
        (share, (menu.kind[choice], columns)), shape=(len(menu.kinds), len(job))
    )
    solved = milp(
        cost[job, choice],
        integrality=np.ones(len(job)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, ub=1),
            LinearConstraint(in_use, ub=np.minimum(menu.free, 1)),
        ],
        options={"mip_rel_gap": GAP, "time_limit": SOLVER_SECONDS, "presolve": False},
    )
    if solved.x is not None:
        for place in np.nonzero(solved.x > 0.5)[0]:
            chosen[job[place]] = int(choice[place])
    return chosen


def _place(problem: Problem, draft: Draft, menu: Menu, jobs: list[Job], chosen: list[int]) -> None:
    """Unchanged configurations stay where they are, unless larger ones find no room otherwise."""
    wanted = {job.id: (job, choice) for job, choice in zip(jobs, chosen, strict=True)}
    kept: dict[JobId, Placement] = {}
    queue: list[tuple[int, int, JobId]] = []  # largest first, then in order
    for place, (job, choice) in enumerate(wanted.values()):
        if choice < 0:
            draft.idle[job.id] = "the others gain more by the GPUs"
        elif job.placement is not None and menu.has(job)[choice]:
            kept[job.id] = job.placement
            draft.room.take(job.placement)
        else:
            queue.append((-int(menu.gpus[choice]), place, job.id))
    heapify(queue)
    order = len(jobs)
    while queue:
        job, choice = wanted[heappop(queue)[2]]
        shape, kind = menu.shapes[choice], menu.kinds[menu.kind[choice]]
        placement = draft.room.place(shape, job.nodes, gpu_type=kind)
        while placement is None:
            evicted = _in_the_way(draft.room, kept, menu, shape, kind)
            if evicted is None:
                break
            draft.room.give_back(kept[evicted])
            order += 1
            heappush(queue, (-kept.pop(evicted).gpus, order, evicted))
            placement = draft.room.place(shape, job.nodes, gpu_type=kind)
        if placement is None:
            draft.idle[job.id] = f"no nodes are free for {shape}"
        else:
            batch = batch_for(job, problem.outlooks[job.id], kind, placement)
            draft.give(job, placement, menu.named(choice), batch=batch)
    for id_, placement in kept.items():
        job, choice = wanted[id_]
        draft.room.give_back(placement)  # `give` books it again
        kind = menu.kinds[menu.kind[choice]]
        batch = batch_for(job, problem.outlooks[id_], kind, placement)
        draft.give(job, placement, menu.named(choice), batch=batch)


def _in_the_way(
    room: Room, kept: Mapping[JobId, Placement], menu: Menu, wanted: Shape, kind: str
) -> JobId | None:
    """The smaller job whose move brings a node nearest to what is wanted; None: there is none."""
    free = room.free
    best: tuple[int, int, JobId] | None = None
    for id_, placement in kept.items():
        name, held = placement.gpus_on[0]
        gpus = placement.gpus
        if gpus < wanted.gpus and menu.kind_of[name] == kind:
            short = max(wanted.gpus_per_node - free.get(name, 0) - held, 0)
            best = min(best or (short, gpus, id_), (short, gpus, id_))
    return best[2] if best is not None else None
