"""What Slurm would have done by now if every elastic job were rigid, at its own request.

From round to round a queue is kept beside the real one: the same jobs in Slurm's order, elastic
ones with what they asked for and for as long as they would then take. It is served as Slurm does
it: in order, and what is behind starts earlier only where, by all time limits, nobody ahead of it
starts later. A plain job that has started here and still waits in truth is owed its GPUs.

Who ends sooner in truth than it would here goes on here, for as long as it would have taken: or
others would take its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from ones.policies.forecast import own_batch, seconds_left_at, type_of
from ones.policies.model import Job, JobId, Node, Placement, Problem, Seconds, Shape
from ones.policies.shapes import own_forms
from ones.policies.timetable import Request, Timetable

KEPT = 20  # of those the first, for which GPUs are kept at a time to come
MOST = 2000  # jobs that wait here; of later ones those are forgotten that have ended in truth
DEPTH = 100  # jobs that wait here and are looked at in a round, as Slurm's bf_max_job_test


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainJob:
    """A job outside our hands that holds GPUs, or waits for them and for nothing else; or that has
    none, and waits for CPUs or memory beside them."""

    id: JobId
    submitted: Seconds
    gpus: int
    nodes: frozenset[str]  # where it may run
    tier: int = 0
    priority: int = 0
    expected: Seconds = inf  # when Slurm foretells its start
    shapes: tuple[Shape, ...] = ()
    """The forms in which it may have them, the first that fits is taken; empty: any split."""
    least_nodes: int = 1
    cpus: float = 0.0  # that it asks for, of all its nodes
    memory: float = 0.0  # MiB, the same
    limit: Seconds = inf  # Slurm's time limit
    started: Seconds | None = None
    placement: Placement | None = None  # None: it waits

    @property
    def place(self) -> tuple[float, ...]:
        """Its place in Slurm's order: the smaller goes first."""
        return -self.tier, -self.priority, self.submitted, self.id

    def needs(self, gpus: int) -> tuple[float, float]:
        """CPUs and MiB that it asks for on a node on which it has so many of its GPUs."""
        share = gpus / self.gpus if self.gpus else 1 / self.least_nodes
        return self.cpus * share, self.memory * share

    def forms(self, nodes: Iterable[Node]) -> tuple[Shape, ...]:
        """Its shapes, or on one node whole where one of these is large enough; empty: any split."""
        if self.shapes or self.least_nodes > 1:
            return self.shapes
        whole = any(node.gpus >= self.gpus and node.name in self.nodes for node in nodes)
        return (Shape(1, self.gpus),) if whole else ()


def place_of(job: Job) -> tuple[float, ...]:
    """An elastic job's place in Slurm's order, comparable to those of plain jobs."""
    return -job.tier, -job.priority, job.submitted, job.id


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job holds here since when."""

    since: Seconds
    placement: Placement


@dataclass(frozen=True, slots=True)
class Rigid:
    """Who runs here, and who waits; never edited, only replaced."""

    claims: Mapping[JobId, Claim] = field(default_factory=dict)
    through: frozenset[JobId] = frozenset()  # elastic jobs that have ended here, and not in truth
    requests: Mapping[JobId, Request] = field(default_factory=dict)
    """Of all jobs here, those that have ended in truth among them."""

    def owed(self, plain: Iterable[PlainJob]) -> frozenset[JobId]:
        """The plain jobs that would run by now."""
        return frozenset(job.id for job in plain if job.placement is None and job.id in self.claims)

    def ended_sooner(self, jobs: Iterable[Job]) -> list[tuple[frozenset[str], int]]:
        """What elastic jobs that are none of these any more would hold by now: the nodes on which
        each may run, and its GPUs.

        They have ended sooner on GPUs that others of them left to them, who get theirs for that.
        """
        there = {job.id for job in jobs}
        return [
            (self.requests[id_].nodes, claim.placement.gpus)
            for id_, claim in self.claims.items()
            if id_ not in there and self.requests[id_].elastic
        ]


def step(
    before: Rigid | None,
    problem: Problem,
    plain: Sequence[PlainJob],
    *,
    failed: Collection[JobId] = (),
) -> Rigid:
    """A round later. Without a `before`, who runs in truth has started here.

    `failed`: elastic jobs that have ended without being done, which are gone here, too.
    """
    now, first = problem.now, before is None
    before = before or Rigid()
    requests, alive = _requests(before, problem, plain, failed)
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
    table = Timetable.of(problem.nodes, now)
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
    before: Rigid, problem: Problem, plain: Sequence[PlainJob], failed: Collection[JobId]
) -> tuple[dict[JobId, Request], set[JobId]]:
    """What all jobs ask for, and which of them are there in truth.

    Who has ended there by himself has still to run here, as long as it took; who was cancelled
    while it waited has not, nor an elastic job that has `failed`.
    """
    nodes, known = problem.nodes, before.requests
    found = {job.id: _of_plain(job, nodes, known.get(job.id)) for job in plain}
    alive = {job.id for job in problem.jobs} | found.keys()
    some: dict[tuple[tuple[Shape, ...], frozenset[str]], Placement | None] = {}
    forms = _Forms()
    for job in problem.jobs:
        # One that Slurm itself will start is as plain as any.
        if job.id not in found and (job.startable or job.placement is not None):
            shapes, claim = forms.of(job), before.claims.get(job.id)
            there = claim.placement if claim else None
            if there is None:
                key = shapes, job.nodes
                if key not in some:
                    some[key] = _somewhere(problem, job, shapes)
                there = some[key]
            found[job.id] = _of_elastic(problem, job, shapes, there)
    for id_, one in known.items():
        gone = id_ not in alive and id_ not in before.through
        if one.elastic and id_ in failed:
            continue  # nobody knows how much it had still to do
        if gone and (one.began is not None or id_ in before.claims):
            ran = 0.0 if one.began is None else problem.now - one.began
            found[id_] = one if one.whole is not None else replace(one, whole=ran)
    return found, alive


def _limit(job: Job) -> Seconds:
    return inf if job.time_limit is None else job.time_limit


class _Forms:
    """The form of each job's own request, worked out once for jobs that have the same shapes."""

    def __init__(self) -> None:
        # By the shapes' identity, since most jobs share theirs; they are kept, so that it stays.
        self._known: dict[tuple[int, int], tuple[tuple[Shape, ...], tuple[Shape, ...]]] = {}

    def of(self, job: Job) -> tuple[Shape, ...]:
        """Empty: any split. Of several the one on fewest nodes, which is what Slurm tries first."""
        if job.uneven:
            return ()
        key = id(job.shapes), job.requested
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (job.shapes, own_forms(job.shapes, job.requested)[:1])
        return found[1]


def _of_elastic(
    problem: Problem, job: Job, shapes: tuple[Shape, ...], there: Placement | None
) -> Request:
    return Request(
        id=job.id,
        place=place_of(job),
        gpus=shapes[0].gpus if shapes else job.requested,
        nodes=job.nodes,
        shapes=shapes,
        limit=_limit(job),
        elastic=True,
        began=job.started,
        whole=_whole(problem, job, there),
    )


def _whole(problem: Problem, job: Job, placement: Placement | None) -> Seconds | None:
    """How long the job takes from its beginning on a placement; its time limit at most."""
    outlook = problem.outlooks.get(job.id)
    if outlook is None or placement is None:
        return job.time_limit
    kind = type_of(placement, problem.by_name)
    try:
        seconds = seconds_left_at(
            job,
            outlook,
            kind,
            nodes=len(placement.gpus_on),
            gpus=placement.gpus,
            batch=own_batch(job, outlook),
            remaining=outlook.processed + outlook.remaining,
        )
    except (ArithmeticError, LookupError, ValueError):
        return job.time_limit  # its speed there makes no sense
    return min(_limit(job), seconds)


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


def _of_plain(job: PlainJob, nodes: Sequence[Node], known: Request | None) -> Request:
    if known is not None and known.whole is None:
        same = known.place == job.place and known.began == job.started
        return known if same else replace(known, place=job.place, began=job.started)
    return request_of(job, nodes)


def request_of(job: PlainJob, nodes: Sequence[Node]) -> Request:
    """What a plain job asks of a timetable of these nodes."""
    return Request(
        id=job.id,
        place=job.place,
        gpus=job.gpus,
        nodes=job.nodes,
        shapes=job.forms(nodes),
        limit=job.limit,
        elastic=False,
        began=job.started,
        whole=None,
    )
