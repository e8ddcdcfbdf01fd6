"""Sia (SOSP'23): an integer programme over few configurations, by goodput, on mixed GPU types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from ones.policies.model import (
    Floats,
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
    batch_after_epoch,
    batch_for,
    look_back,
    rate,
    remember,
)
from ones.policies.placement import Room
from ones.policies.sia_choice import Menu, solve, takes
from ones.policies.words import OTHERS_GAIN_MORE

LEFT_OUT = 1.1  # lambda_n: what a job without GPUs costs; one on its least configuration costs 1
POWER = -0.5
COSTLIEST = 3000.0


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

    batch_after_epoch = staticmethod(batch_after_epoch)

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
        menu = Menu.of(draft.room, jobs, most=max(most))
        cost = np.stack(
            [
                self._costs(problem, job, past[job.id], menu, most=bound)
                for job, bound in zip(jobs, most, strict=True)
            ]
        )
        left_out = np.array(
            [COSTLIEST if job.waited > self.max_wait else self.left_out for job in jobs]
        )
        chosen = solve(cost - left_out[:, None], menu)
        wanted = zip(jobs, chosen, cost, strict=True)
        _place(problem, draft, menu, {job.id: _Wanted(job, *one) for job, *one in wanted})
        return draft.plan(), kept

    def _costs(self, problem: Problem, job: Job, past: Past, menu: Menu, *, most: int) -> Floats:
        """[C] Normalised goodput to the power; inf where the job can't have it."""
        goodput = _goodputs(problem.outlooks[job.id], job, menu, most=most)
        able = goodput > 0
        if not able.any():
            return np.full(len(goodput), np.inf)
        worth = goodput / goodput[able].min() * menu.gpus[able].min()
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
    reach = np.array([kind in allowed for kind in menu.kinds])[menu.kind]
    fits = reach & np.array([takes(job, shape) for shape in menu.shapes])
    plain = fits & ~menu.extra
    able = plain if plain.any() else fits
    if (able & (menu.gpus <= most)).any():
        able = able & (menu.gpus <= most)
    elif able.any():  # it would need more than twice what it has run on
        able = able & (menu.gpus == menu.gpus[able].min())
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


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A job, its choice from the menu, and what each would cost."""

    job: Job
    choice: int
    costs: Floats


def _place(
    problem: Problem,
    draft: Draft,
    menu: Menu,
    jobs: Mapping[JobId, _Wanted],
) -> None:
    """Unchanged configurations stay where they are, unless larger ones find no room otherwise.

    Where nodes are taken in part by others, a smaller configuration than the chosen one may be all
    that there is room for.
    """
    kept: dict[JobId, Placement] = {}
    queue: list[tuple[int, int, JobId]] = []  # largest first, then in order
    for place, one in enumerate(jobs.values()):
        job, choice = one.job, one.choice
        if choice < 0:
            draft.idle[job.id] = OTHERS_GAIN_MORE
        elif job.placement is not None and menu.has(job)[choice]:
            kept[job.id] = job.placement
            draft.room.take(job.placement)
        else:
            queue.append((-int(menu.gpus[choice]), place, job.id))
    heapify(queue)
    order = len(jobs)
    while queue:
        one = jobs[heappop(queue)[2]]
        job, choice = one.job, one.choice
        shape, kind = menu.shapes[choice], menu.kinds[menu.kind[choice]]
        placement = draft.room.place_job(job, (shape,), gpu_type=kind)
        while placement is None:
            evicted = _in_the_way(draft.room, kept, menu, shape, kind)
            if evicted is None:
                break
            draft.room.give_back(kept[evicted])
            order += 1
            heappush(queue, (-kept.pop(evicted).gpus, order, evicted))
            placement = draft.room.place_job(job, (shape,), gpu_type=kind)
        if placement is None:
            placement, choice = _instead(draft.room, menu, one)
            kind = menu.kinds[menu.kind[choice]]
        if placement is None:
            draft.idle[job.id] = f"no nodes are free for {shape}"
        else:
            batch = batch_for(job, problem.outlooks[job.id], kind, placement)
            draft.give(job, placement, menu.named(choice), batch=batch)
    for id_, placement in kept.items():
        job, choice = jobs[id_].job, jobs[id_].choice
        draft.room.give_back(placement)  # `give` books it again
        kind = menu.kinds[menu.kind[choice]]
        batch = batch_for(job, problem.outlooks[id_], kind, placement)
        draft.give(job, placement, menu.named(choice), batch=batch)


def _instead(room: Room, menu: Menu, one: _Wanted) -> tuple[Placement | None, int]:
    """Room for the best of the smaller choices, and which that is."""
    job = one.job
    for other in np.argsort(one.costs, kind="stable"):
        if np.isfinite(one.costs[other]) and menu.gpus[other] < menu.gpus[one.choice]:
            kind = menu.kinds[menu.kind[other]]
            placement = room.place_job(job, (menu.shapes[other],), gpu_type=kind)
            if placement is not None:
                return placement, int(other)
    return None, one.choice


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
