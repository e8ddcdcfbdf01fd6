"""What Slurm would have done by now if every elastic job were rigid, at its own request.

From round to round a queue is kept beside the real one: the same jobs in Slurm's order, elastic
ones with what they asked for and for as long as they would then take. It is served as Slurm does
it: in order, and what is behind starts earlier only where, by all time limits, nobody ahead of it
starts later. A plain job that has started here and still waits in truth is owed its GPUs.

Who ends sooner in truth than it would here goes on here, for as long as it would have taken: or
others would take its turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from ones.policies.forecast import own_batch, seconds_left, type_of
from ones.policies.model import Ints, Job, JobId, Node, Placement, Problem, Seconds, Shape
from ones.policies.shapes import shapes_by_size, size_as_requested

KEPT = 20  # of those the first, for which GPUs are kept at a time to come
MOST = 2000  # jobs that wait here; of later ones those are forgotten that have ended in truth
DEPTH = 100  # jobs that wait here and are looked at in a round, as Slurm's bf_max_job_test


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainJob:
    """A job outside our hands that holds GPUs, or waits for them and for nothing else."""

    id: JobId
    submitted: Seconds
    gpus: int
    nodes: frozenset[str]  # where it may run
    tier: int = 0
    priority: int = 0
    expected: Seconds = inf  # when Slurm foretells its start
    per_node: int = 0  # GPUs of each of its nodes; 0: any split will do
    least_nodes: int = 1
    limit: Seconds = inf  # Slurm's time limit
    started: Seconds | None = None
    placement: Placement | None = None  # None: it waits

    @property
    def place(self) -> tuple[float, ...]:
        """Its place in Slurm's order: the smaller goes first."""
        return -self.tier, -self.priority, self.submitted, self.id


def place_of(job: Job) -> tuple[float, ...]:
    """An elastic job's place in Slurm's order, comparable to those of plain jobs."""
    return -job.tier, -job.priority, job.submitted, job.id


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job holds here since when."""

    since: Seconds
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Request:
    """What a job asks of Slurm here."""

    id: JobId
    place: tuple[float, ...]
    gpus: int
    nodes: frozenset[str]
    shapes: tuple[Shape, ...]  # empty: any split
    limit: Seconds
    one_type: bool
    began: Seconds | None  # in truth, its present run
    whole: Seconds | None  # that it takes here from its beginning to its end; None: not known


@dataclass(frozen=True, slots=True)
class Rigid:
    """Who runs here, and who waits; never edited, only replaced."""

    claims: Mapping[JobId, Claim] = field(default_factory=dict)
    through: frozenset[JobId] = frozenset()  # elastic jobs that have ended here, and not in truth
    requests: Mapping[JobId, _Request] = field(default_factory=dict)
    """Of all jobs here, those that have ended in truth among them."""

    def owed(self, plain: Iterable[PlainJob]) -> frozenset[JobId]:
        """The plain jobs that would run by now."""
        return frozenset(job.id for job in plain if job.placement is None and job.id in self.claims)


def step(before: Rigid | None, problem: Problem, plain: Sequence[PlainJob]) -> Rigid:
    """A round later. Without a `before`, who runs in truth has started here."""
    now, first = problem.now, before is None
    before = before or Rigid()
    requests, alive = _requests(before, problem, plain)
    claims: dict[JobId, Claim] = {}
    through = set(before.through & alive)
    for id_, claim in before.claims.items():
        request = requests.get(id_)
        if request is None:
            continue
        if claim.since + (inf if request.whole is None else request.whole) > now:
            claims[id_] = claim
        elif id_ in alive:
            through.add(id_)
        else:
            del requests[id_]
    table = _Timetable.of(problem.nodes, now)
    for id_, claim in claims.items():
        table.take(claim.placement, now, max(now + 1.0, claim.since + requests[id_].limit))
    waiting = [one for id_, one in requests.items() if id_ not in claims and id_ not in through]
    if first:
        # Nothing is known of how it came to be: who runs was there first, and that long ago.
        waiting.sort(key=lambda one: (inf if one.began is None else one.began, one.place))
    else:
        waiting.sort(key=lambda one: one.place)
    kept, depth = 0, DEPTH
    if first:
        depth += sum(one.began is not None for one in waiting)
    for one in waiting[:depth]:
        found = table.earliest(one, until=inf if kept < KEPT else now)
        if found is None:
            continue
        at, placement = found
        since = at if one.began is None or not first else one.began
        table.take(placement, at, max(at + 1.0, since + one.limit))
        kept += at > now
        if at <= now:
            claims[one.id] = Claim(since, placement)
    dropped = {one.id for one in waiting[MOST:]} - alive
    requests = {id_: one for id_, one in requests.items() if id_ not in dropped}
    return Rigid(claims, frozenset(through), requests)


def _requests(
    before: Rigid, problem: Problem, plain: Sequence[PlainJob]
) -> tuple[dict[JobId, _Request], set[JobId]]:
    """What all jobs ask for, and which of them are there in truth.

    Who has ended there by himself has still to run here, as long as it took; who was cancelled
    while it waited has not.
    """
    nodes, known = problem.nodes, before.requests
    found = {job.id: _of_plain(job, nodes, known.get(job.id)) for job in plain}
    alive = {job.id for job in problem.jobs} | found.keys()
    some: dict[tuple[tuple[Shape, ...], frozenset[str]], Placement | None] = {}
    for job in problem.jobs:
        # One that Slurm itself will start is as plain as any.
        if job.id not in found and (job.startable or job.placement is not None):
            shapes, claim = _own_form(job), before.claims.get(job.id)
            there = claim.placement if claim else None
            if there is None:
                key = shapes, job.nodes
                if key not in some:
                    some[key] = _somewhere(problem, job, shapes)
                there = some[key]
            found[job.id] = _of_elastic(problem, job, shapes, there)
    for id_, one in known.items():
        gone = id_ not in alive and id_ not in before.through
        if gone and (one.began is not None or id_ in before.claims):
            ran = 0.0 if one.began is None else problem.now - one.began
            found[id_] = one if one.whole is not None else replace(one, whole=ran)
    return found, alive


def _limit(job: Job) -> Seconds:
    return inf if job.time_limit is None else job.time_limit


def _own_form(job: Job) -> tuple[Shape, ...]:
    """The form of its own request; empty: any split. Of several the one on fewest nodes, which is
    what Slurm tries first."""
    size = size_as_requested(job.shapes, job.requested)
    shapes = shapes_by_size(job.shapes).get(size, ()) if size and not job.uneven else ()
    return (min(shapes, key=lambda shape: shape.nodes),) if shapes else ()


def _of_elastic(
    problem: Problem, job: Job, shapes: tuple[Shape, ...], there: Placement | None
) -> _Request:
    return _Request(
        id=job.id,
        place=place_of(job),
        gpus=shapes[0].gpus if shapes else job.requested,
        nodes=job.nodes,
        shapes=shapes,
        limit=_limit(job),
        one_type=True,
        began=job.started,
        whole=_whole(problem, job, there),
    )


def _whole(problem: Problem, job: Job, placement: Placement | None) -> Seconds | None:
    """How long the job takes from its beginning on a placement; its time limit at most."""
    outlook = problem.outlooks.get(job.id)
    if outlook is None or placement is None:
        return job.time_limit
    whole = replace(outlook, remaining=outlook.processed + outlook.remaining)
    kind = type_of(placement, problem.by_name)
    nodes, gpus = np.array([len(placement.gpus_on)]), np.array([placement.gpus])
    batch = np.array([own_batch(job, outlook)])
    try:
        seconds = seconds_left(job, whole, kind, nodes=nodes, gpus=gpus, batch=batch)
    except (ArithmeticError, LookupError, ValueError):
        return job.time_limit  # its speed there makes no sense
    return min(_limit(job), float(seconds[0]))


def _somewhere(problem: Problem, job: Job, shapes: Sequence[Shape]) -> Placement | None:
    """A placement such as it will have: on the first nodes that are large enough."""
    for shape in shapes:
        large = [
            node.name
            for node in problem.nodes
            if node.name in job.nodes and node.gpus >= shape.gpus_per_node
        ]
        if len(large) >= shape.nodes:
            return Placement.of(dict.fromkeys(large[: shape.nodes], shape.gpus_per_node))
    return None


def _of_plain(job: PlainJob, nodes: Sequence[Node], known: _Request | None) -> _Request:
    if known is not None and known.whole is None:
        same = known.place == job.place and known.began == job.started
        return known if same else replace(known, place=job.place, began=job.started)
    shapes: tuple[Shape, ...] = ()
    if job.per_node and job.gpus % job.per_node == 0:
        shapes = (Shape(job.gpus // job.per_node, job.per_node),)
    elif job.least_nodes == 1 and any(
        node.gpus >= job.gpus and node.name in job.nodes for node in nodes
    ):
        shapes = (Shape(1, job.gpus),)
    return _Request(
        id=job.id,
        place=job.place,
        gpus=job.gpus,
        nodes=job.nodes,
        shapes=shapes,
        limit=job.limit,
        one_type=False,
        began=job.started,
        whole=None,
    )


@dataclass(slots=True)
class _Timetable:
    """The GPUs that are free on each node from each of these times to the next."""

    nodes: tuple[Node, ...]
    times: list[Seconds]
    free: Ints  # [times, nodes]
    index: Mapping[str, int]
    allowed: dict[frozenset[str], NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node], now: Seconds) -> _Timetable:
        there = tuple(node for node in nodes if node.usable)
        free = np.array([[node.gpus for node in there]], dtype=np.int64)
        return cls(there, [now], free, {node.name: at for at, node in enumerate(there)})

    def take(self, placement: Placement, begin: Seconds, end: Seconds) -> None:
        first, last = self._row(begin), len(self.times) if end == inf else self._row(end)
        for name, gpus in placement.gpus_on:
            if name in self.index:
                self.free[first:last, self.index[name]] -= gpus

    def _row(self, time: Seconds) -> int:
        """The row that begins at this time, made where there is none."""
        at = bisect_left(self.times, time)
        if at == len(self.times) or self.times[at] != time:
            self.times.insert(at, time)
            self.free = np.insert(self.free, at, self.free[max(at - 1, 0)], axis=0)
        return at

    def earliest(self, job: _Request, *, until: Seconds = inf) -> tuple[Seconds, Placement] | None:
        """When, by then, and where it can first have what it asks for, as long as it may run."""
        allowed = self.allowed.get(job.nodes)
        if allowed is None:
            allowed = np.array([node.name in job.nodes for node in self.nodes], dtype=np.bool_)
            self.allowed[job.nodes] = allowed
        if until <= self.times[0] and self.free[0][allowed].clip(0).sum() < job.gpus:
            return None
        free = np.where(allowed, self.free.clip(0), 0)
        for at in np.flatnonzero(free.sum(axis=1) >= job.gpus).tolist():
            if self.times[at] > until:
                break
            last = max(at + 1, bisect_left(self.times, self.times[at] + job.limit))
            placement = self.fit(job, free[at:last].min(axis=0))
            if placement is not None:
                return self.times[at], placement
        return None

    def fit(self, job: _Request, free: Ints) -> Placement | None:
        """Where it would go with so many GPUs free on each node: the fullest that will do."""
        kinds = sorted({node.gpu_type for node in self.nodes}) if job.one_type else [""]
        for kind in kinds:
            of_kind = np.array([not kind or node.gpu_type == kind for node in self.nodes])
            there = np.where(of_kind, free, 0)
            for shape in job.shapes:
                enough = np.flatnonzero(there >= shape.gpus_per_node)
                if len(enough) >= shape.nodes:
                    chosen = enough[np.argsort(there[enough], kind="stable")][: shape.nodes]
                    return Placement.of(
                        {self.nodes[at].name: shape.gpus_per_node for at in chosen.tolist()}
                    )
            if not job.shapes and there.sum() >= job.gpus:
                given, missing = {}, job.gpus
                for at in np.argsort(-there, kind="stable").tolist():
                    given[self.nodes[at].name] = min(missing, int(there[at]))
                    missing -= given[self.nodes[at].name]
                return Placement.of(given)
        return None
