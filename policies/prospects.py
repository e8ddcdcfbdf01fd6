"""What would have to change for a waiting job to start: GPUs that are not free, and whose they are.

It says when a job's GPUs first come free, not when the job starts: others may be ahead of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ones.policies.forecast import foreseeable, seconds_left_on
from ones.policies.model import Job, Node, Problem, Seconds, Shape
from ones.policies.renewal import ended_in
from ones.policies.shapes import size_as_requested
from ones.policies.sizes import in_gpus

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A job that will give its GPUs back."""

    job: int
    left: Seconds  # from now; NEVER where nobody knows
    gpus_on: tuple[tuple[str, int], ...]
    at_limit: bool  # whether that is its time limit: it may end sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What a waiting job needs, and what gives it that."""

    gpus: int
    need: str  # such as "needs 4 GPUs on one node"
    first: Release | None = None  # after which that is free, those before it ended too
    obstacle: str = ""  # why nobody's end gives it that

    def words(self, moment: Callable[[Seconds], str]) -> str:
        """In one sentence; `moment` writes a point in time, given as seconds from now."""
        if self.first is None:
            return f"{self.need}; {self.obstacle}"
        at, job = moment(self.first.left), self.first.job
        when = f"at the latest {at}, its time limit" if self.first.at_limit else f"about {at}"
        return f"{self.need}; the first come free when job {job} ends, {when}"


class Prospects:
    """Those of a round's waiting jobs, each worked out when it is first asked for.

    `others` are the jobs outside our hands that hold GPUs; `resizes`: whether the policy gives jobs
    other sizes than they ask for.
    """

    def __init__(
        self, problem: Problem, others: Callable[[], Sequence[Release]], *, resizes: bool
    ) -> None:
        self._problem = problem
        self._others = others
        self._resizes = resizes
        self._known: dict[tuple[tuple[Shape, ...], frozenset[str]], Prospect | None] = {}
        self._alike: dict[tuple[int, int, int], Prospect | None] = {}

    def of(self, job: Job) -> Prospect | None:
        """None where it does not wait for GPUs, or where those that it needs are free."""
        if job.placement is not None or job.fixed or not job.startable:
            return None
        # Most jobs of a cluster ask the same, and the problem keeps what they ask alive.
        alike = id(job.shapes), id(job.nodes), job.requested
        if alike not in self._alike:
            self._alike[alike] = self._of(job)
        return self._alike[alike]

    def _of(self, job: Job) -> Prospect | None:
        size = self._size(job)
        shapes = tuple(shape for shape in job.shapes if shape.gpus == size)
        if not shapes:
            return None
        key = (shapes, job.nodes)
        if key not in self._known:
            self._known[key] = self._prospect(shapes, job.nodes)
        return self._known[key]

    def _size(self, job: Job) -> int | None:
        if self._resizes:
            return min((shape.gpus for shape in job.shapes), default=None)
        return size_as_requested(job.shapes, job.requested)

    @cached_property
    def _releases(self) -> list[Release]:
        """The earliest first."""
        found = list(self._others())
        for job in self._problem.jobs:
            if job.placement is None:
                continue
            limit = ended_in(job, self._problem.outlooks.get(job.id), self._problem.now)
            left = NEVER
            if self._problem.outlooks[job.id].points:  # otherwise its end is a mere guess
                left = foreseeable(seconds_left_on(self._problem, job, job.placement))
            found.append(
                Release(
                    job=int(job.id),
                    left=min(left, limit),
                    gpus_on=job.placement.gpus_on,
                    at_limit=limit < left,
                )
            )
        return sorted(found, key=lambda release: (release.left, release.job))

    @cached_property
    def _ours(self) -> Counter[str]:
        """Node -> GPUs of the jobs in our hands, which do not count as taken."""
        held: Counter[str] = Counter()
        for job in self._problem.jobs:
            held.update(dict(job.placement.gpus_on) if job.placement else {})
        return held

    def _prospect(self, shapes: tuple[Shape, ...], where: frozenset[str]) -> Prospect | None:
        size = shapes[0].gpus
        need = f"needs {in_gpus(size)}{_on_nodes(shapes)}"
        nodes = [node for node in self._problem.nodes if node.name in where]
        usable = [node for node in nodes if node.usable]
        if not usable:
            whole = "no node that it may run on is in service"
            return Prospect(gpus=size, need=need, obstacle=whole)
        room = _Room(shapes, usable, {node.name: self._free(node) for node in usable})
        if room.fits():
            return None
        for release in self._releases:
            if release.left < NEVER and room.gives(release):
                return Prospect(gpus=size, need=need, first=release)
        for release in self._releases:
            if release.left == NEVER and room.gives(release):
                unknown = f"nobody knows when the jobs end that have them, such as {release.job}"
                return Prospect(gpus=size, need=need, obstacle=unknown)
        kept = "what is free is kept for jobs that have waited longer"
        everything = _Room(shapes, usable, {node.name: node.gpus for node in usable})
        too_few = "the nodes in service that it may run on do not have them"
        return Prospect(gpus=size, need=need, obstacle=kept if everything.fits() else too_few)

    def _free(self, node: Node) -> int:
        return node.gpus - node.taken - self._ours[node.name]


class _Room:
    """Free GPUs of some nodes, as time goes on; one allocation has GPUs of one type."""

    def __init__(
        self, shapes: Sequence[Shape], nodes: Sequence[Node], free: dict[str, int]
    ) -> None:
        self._shapes = shapes
        self._type = {node.name: node.gpu_type for node in nodes}
        self._free = free
        self._holding = Counter(
            (self._type[name], shape.gpus_per_node)
            for name, gpus in free.items()
            for shape in shapes
            if gpus >= shape.gpus_per_node
        )

    def fits(self) -> bool:
        return any(
            count >= shape.nodes
            for (_, gpus), count in self._holding.items()
            for shape in self._shapes
            if shape.gpus_per_node == gpus
        )

    def gives(self, release: Release) -> bool:
        """Take these GPUs back; whether one of the shapes fits now."""
        touched = False
        for name, gpus in release.gpus_on:
            if name not in self._free:
                continue
            before, after = self._free[name], self._free[name] + gpus
            self._free[name] = after
            for shape in self._shapes:
                if before < shape.gpus_per_node <= after:
                    self._holding[self._type[name], shape.gpus_per_node] += 1
                    touched = True
        return touched and self.fits()


def _on_nodes(shapes: Sequence[Shape]) -> str:
    """Over how many nodes these may lie, in words."""
    fewest, most = min(shape.nodes for shape in shapes), max(shape.nodes for shape in shapes)
    if most == 1:
        return " on one node" if shapes[0].gpus > 1 else ""
    return f" on {most} nodes" if fewest == most else f" on {fewest} to {most} nodes"
