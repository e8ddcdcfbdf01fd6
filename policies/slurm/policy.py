"""The policy `slurm`: what Slurm would do with the same jobs, each rigid at its own request.

A pass of the main scheduler starts jobs in the order of their priority until, partition by
partition, one finds no room; every `bf_interval` a cycle of the backfill scheduler follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from ones.policies.model import Assignment, Job, JobId, Node, Placement, Plan, Problem, Seconds
from ones.policies.shapes import own_forms
from ones.policies.slurm.backfill import UNLIMITED, Backfill, Fences, Form, Held, Releases
from ones.policies.slurm.fair_share import Knot, factors, tree
from ones.policies.slurm.floor import Floor, Free, Nodes
from ones.policies.slurm.ledger import Ledger
from ones.policies.slurm.limits import Ask, Rules, Usage, after_placing, before_placing
from ones.policies.slurm.priority import Factors
from ones.policies.slurm.settings import Partition, Reservation, SlurmSettings

EVERYWHERE = Partition(name="")
RESOURCES = "Resources"  # Slurm's reasons, as squeue shows them
PRIORITY = "Priority"
RESERVED = "ReqNodeNotAvail, May be reserved for other job"
HIGHER_PARTITIONS = (
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
)


@dataclass(frozen=True)
class Slurm:
    """Main scheduler and conservative backfill, by multifactor priority."""

    settings: SlurmSettings = field(default_factory=SlurmSettings)
    name: str = "slurm"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        ledger = Ledger.read(memory)
        running = [job for job in problem.jobs if job.placement is not None]
        waiting = [job for job in problem.jobs if job.placement is None]
        changed = ledger.see(running, self.settings, problem.now)
        changed = self._prioritise(ledger, problem, waiting) or changed
        assignments = {
            job.id: Assignment(job.placement, job.batch, "runs to its end", beside=None)
            for job in running
            if job.placement is not None
        }
        free = _free_gpus(problem)
        open_ended = any(one.end > problem.now for one in self.settings.reservations)
        if not changed and not open_ended and ledger.settled == free:
            idle = dict.fromkeys((job.id for job in waiting), "nothing has changed")
            return Plan(assignments, idle), ledger.kept()
        one_pass = _Pass(self, ledger, problem, free)
        one_pass.main(waiting)
        settled = False
        since = inf if ledger.backfilled is None else problem.now - ledger.backfilled
        if since >= self.settings.bf_interval:
            one_pass.backfill()
            ledger.backfilled = problem.now
            settled = not one_pass.started
        ledger.settled = free if settled else None
        for job, placement in one_pass.started.items():
            assignments[job] = Assignment(placement, None, one_pass.reasons[job])
        idle = {job: why for job, why in one_pass.reasons.items() if job not in assignments}
        return Plan(assignments, idle), ledger.kept()

    def _prioritise(self, ledger: Ledger, problem: Problem, waiting: Sequence[Job]) -> bool:
        """Priorities of newcomers, and of all once a `calc_period`; whether any has changed."""
        now, period = problem.now, self.settings.calc_period
        before = set(ledger.priority)
        due = ledger.counted is None or now // period > ledger.counted // period
        if due:
            ledger.count(self.settings, now)
            ledger.factors = factors(self._tree(ledger, problem), ledger.usage)
            ledger.priority = {}
        given = ledger.priority
        ledger.priority = {}
        scale = Factors.of(self.settings, problem.nodes)
        for job in waiting:
            found = given.get(int(job.id))
            if found is None:
                found = scale.priority(job, self.partition(job), ledger.factors, now)
            ledger.priority[int(job.id)] = found
        return due or set(ledger.priority) != before

    def _tree(self, ledger: Ledger, problem: Problem) -> tuple[Knot, ...]:
        people = {*ledger.usage, *((job.account, job.user) for job in problem.jobs)}
        return tree(self.settings.associations, sorted(people))

    def partition(self, job: Job) -> Partition:
        """The job's own, or the default; one that nobody has described has all nodes."""
        if not self.settings.partitions:
            return EVERYWHERE
        if not job.partition:
            return self.settings.partitions[0]
        return self._partitions.get(job.partition) or Partition(name=job.partition)

    def limit(self, job: Job) -> Seconds:
        """The job's time limit, or what it has without one."""
        partition = self.partition(job)
        asked = job.time_limit or partition.default_time or partition.max_time
        return min(asked or self.settings.default_time, partition.max_time or UNLIMITED)

    @cached_property
    def _partitions(self) -> Mapping[str, Partition]:
        return {one.name: one for one in self.settings.partitions}

    @cached_property
    def reservations(self) -> Mapping[str, Reservation]:
        return {one.name: one for one in self.settings.reservations}

    @cached_property
    def licenses(self) -> Mapping[str, int]:
        return dict(self.settings.licenses)

    @cached_property
    def rules(self) -> Rules:
        return Rules.of(self.settings)


@dataclass(slots=True)
class _Waiting:
    """A job in the queue with what it asks."""

    job: Job
    partition: Partition
    form: Form
    ask: Ask


class _Pass:
    """One pass of the schedulers over what waits."""

    def __init__(self, policy: Slurm, ledger: Ledger, problem: Problem, free: list[int]) -> None:
        self._policy = policy
        self._ledger = ledger
        self._now = problem.now
        self._floor = Floor(problem.nodes)
        self._free = Free.of(free, self._floor.most)
        self._empty = Free.of([node.gpus for node in problem.nodes], self._floor.most)
        self._fences = Fences(self._floor, policy.settings.reservations)
        self._held = [self._holds(job, job.placement) for job in problem.jobs if job.placement]
        self._usage = Usage(self._spent(problem))
        self._left: list[_Waiting] = []  # after the main scheduler, in order
        self.started: dict[JobId, Placement] = {}
        self.reasons: dict[JobId, str] = {}
        for job in problem.jobs:
            if job.placement is not None:
                nodes = len(job.placement.gpus_on)
                self._usage.add(self._ask(job, job.placement.gpus, nodes))

    def main(self, waiting: Sequence[Job]) -> None:
        """In order of priority; behind a job that lacks room its whole partition waits, and other
        partitions have none of its nodes."""
        open_nodes = self._floor.usable
        blocked: set[str] = set()
        for one in self._queue(waiting):
            why, blocks = self._try(one, open_nodes, blocked)
            if not why:
                continue
            self.reasons[one.job.id] = why
            self._left.append(one)
            if blocks and one.form.reservation is not None:
                blocked.add(f"reservation {one.form.reservation.name}")
            elif blocks:
                blocked.add(one.partition.name)
                open_nodes &= ~self._nodes_of(one.partition)

    def backfill(self) -> None:
        """Start who is in nobody's way, and reserve nodes for the others, in the same order."""
        releases = Releases.of(self._floor, self._free, self._held)
        cycle = Backfill(self._policy.settings, self._now, releases, self._fences)
        tested = 0
        for one in self._left:
            if tested >= self._policy.settings.bf_max_job_test:
                return
            if before_placing(one.ask, self._usage, self._policy.licenses):
                continue
            tested += 1
            start = cycle.next_start(one.form)
            if start is None:
                continue
            if start.at > self._now:
                cycle.reserve(one.form, start)
                continue
            placement = self._floor.placement(start.nodes, start.shape.gpus_per_node)
            if why := after_placing(self._sized(one, placement), self._usage):
                self.reasons[one.job.id] = why
                continue
            self._start(one, placement, "backfilled")
            releases.add(self._held[-1])

    def _queue(self, waiting: Sequence[Job]) -> Iterator[_Waiting]:
        """Who has a reservation, then by tier, then by priority, then by number."""
        found: list[tuple[tuple[bool, int, int, int], Job]] = []
        for job in waiting:
            if job.fixed or not job.startable:
                self.reasons[job.id] = job.fixed or "waits for a reason of its own"
                continue
            tier = self._policy.partition(job).tier
            priority = self._ledger.priority[int(job.id)]
            found.append(((not job.reservation, -tier, -priority, int(job.id)), job))
        for _, job in sorted(found, key=lambda each: each[0]):
            form = self._form(job)
            if isinstance(form, str):
                self.reasons[job.id] = form
                continue
            ask = self._ask(job, job.requested, min(shape.nodes for shape in form.shapes))
            yield _Waiting(job, self._policy.partition(job), form, ask)

    def _try(self, one: _Waiting, open_nodes: Nodes, blocked: set[str]) -> tuple[str, bool]:
        """Start the job, or why it does not start, and whether others must wait for it."""
        form = one.form
        own = "" if form.reservation is None else f"reservation {form.reservation.name}"
        if (own or one.partition.name) in blocked:
            return PRIORITY, False
        if form.reservation is not None and form.reservation.start > self._now:
            return "Reservation", False
        if why := before_placing(one.ask, self._usage, self._policy.licenses):
            return why, False
        if (form.nodes & open_nodes).bit_count() < one.ask.nodes:
            return HIGHER_PARTITIONS, False
        able, _ = self._fences.open_to(form, self._now, self._now + form.limit)
        found = self._free.fit(self._floor, able & open_nodes, form.shapes)
        if found is None:
            fenced = form.reservation is None and able != form.nodes
            return (RESERVED, False) if fenced else (RESOURCES, True)
        placement = self._floor.placement(found[1], found[0].gpus_per_node)
        if why := after_placing(self._sized(one, placement), self._usage):
            return why, False
        self._start(one, placement, "its turn")
        return "", False

    def _start(self, one: _Waiting, placement: Placement, reason: str) -> None:
        held = self._holds(one.job, placement)
        self._held.append(held)
        self._free.take(held.gpus_on)
        self._usage.add(self._sized(one, placement))
        self.started[one.job.id] = placement
        self.reasons[one.job.id] = reason

    def _form(self, job: Job) -> Form | str:
        """What the job asks for, or why it can never start."""
        shapes = own_forms(job.shapes, job.requested, job.requested_nodes)
        reservation = None
        if job.reservation:
            reservation = self._policy.reservations.get(job.reservation)
            if reservation is None or reservation.end <= self._now:
                return "ReservationDeleted"
        nodes = self._floor.named(job.nodes) & self._nodes_of(self._policy.partition(job))
        form = Form(shapes, nodes, self._policy.limit(job), reservation)
        if self._empty.fit(self._floor, nodes, form.shapes) is None:
            return "BadConstraints"
        return form

    def _nodes_of(self, partition: Partition) -> Nodes:
        return self._floor.named(partition.nodes) if partition.nodes else self._floor.every

    def _ask(self, job: Job, gpus: int, nodes: int) -> Ask:
        partition = self._policy.partition(job)
        sources = self._policy.rules.sources(job, partition.qos)
        limit, memory = self._policy.limit(job), job.requested_memory * gpus / job.requested
        return Ask(sources, gpus, nodes, limit, memory, job.licenses)

    def _sized(self, one: _Waiting, placement: Placement) -> Ask:
        ask, nodes = one.ask, len(placement.gpus_on)
        return Ask(ask.sources, placement.gpus, nodes, ask.limit, ask.memory, ask.licenses)

    def _holds(self, job: Job, placement: Placement) -> Held:
        began = self._now if job.started is None else job.started
        end = began + self._policy.limit(job)
        if end <= self._now:
            end = self._now + self._policy.settings.kill_wait
        index = self._floor.index
        gpus_on = [(index[name], gpus) for name, gpus in placement.gpus_on if name in index]
        return Held(end, tuple(gpus_on))

    def _spent(self, problem: Problem) -> Mapping[tuple[str, ...], float]:
        bounds = [one.bounds for one in self._policy.settings.qos]
        bounds += [one.bounds for one in self._policy.settings.associations]
        if all(one.grp_gpu_minutes is None for one in bounds):
            return {}
        return self._ledger.spent(self._policy._tree(self._ledger, problem))


def _free_gpus(problem: Problem) -> list[int]:
    """Of each node, in order; none where nothing new is placed."""
    free = {node.name: _open(node) for node in problem.nodes}
    for job in problem.jobs:
        for name, gpus in job.placement.gpus_on if job.placement else ():
            if name in free:
                free[name] = max(0, free[name] - gpus)
    return list(free.values())


def _open(node: Node) -> int:
    return max(0, node.gpus - node.taken) if node.usable else 0
