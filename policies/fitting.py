"""Moves that are to be made together: which of them lacks room, or is of use to nobody, then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ones.policies.caps import SLACK, gives_back, taken
from ones.policies.crowding import Crowding
from ones.policies.forecast import by_id, move_cost
from ones.policies.model import Job, JobId, Placement, Problem
from ones.policies.moves import Move
from ones.policies.sharing import occupied

Fault = tuple[Move, str]  # and what speaks against it


class Together:
    """Some moves of a problem, each of another job, as if all were done and nothing else."""

    def __init__(self, problem: Problem, moves: Sequence[Move]) -> None:
        self.moves = list(moves)
        self._problem = problem
        self._jobs = by_id(problem.jobs)
        self._room = {
            node.name: node.gpus - node.taken if node.usable else 0 for node in problem.nodes
        }
        self._pairs = any(job.share for job in problem.jobs) or any(
            move.beside is not None for move in moves
        )
        self._held = _final(self.moves, problem)
        self._used = self._in_use(self.moves)
        self._full = self._overfull_nodes()
        self._crowding = Crowding.of(problem.nodes, problem.jobs, self._held)
        self._capped = _Capped(problem, self.moves, self._held)
        self._useful = _Useful(problem, self.moves)

    def without(self, job: JobId) -> None:
        """The job is not moved after all."""
        before, present = self._held.pop(job, None), self._jobs[job].placement
        if present is not None:
            self._held[job] = present
        self._crowding.change(job, before, present)
        self.moves = [move for move in self.moves if move.job != job]
        self._capped.stays(self._jobs[job])
        self._useful.forget(job, {*_gpus_on(before), *_gpus_on(present)})
        if self._pairs:
            self._used = self._in_use(self.moves)
        else:
            self._used.subtract(_gpus_on(before))
            self._used.update(_gpus_on(present))
        self._full = self._overfull_nodes()

    def overfull(self) -> Fault | None:
        """The last of the moves that take GPUs on a node which has too few of them, or too little
        beside them."""
        return self._last_on(self._full, "GPUs") or self._last_on(
            self._crowding.full(), "CPUs or the memory"
        )

    def _last_on(self, full: frozenset[str], what: str) -> Fault | None:
        """The last of the moves that take GPUs on one of these nodes."""
        for move in reversed(self.moves) if full else ():
            before = _gpus_on(self._jobs[move.job].placement)
            for name, gpus in _gpus_on(move.target).items():
                # On a GPU that it is to share the others' part of it is new, too.
                more = gpus > before.get(name, 0) or move.beside is not None
                if name in full and more:
                    return move, f"node {name} has not the {what} free that it needs"
        return None

    def over_a_cap(self) -> Fault | None:
        """The last of the moves that take more than a limit of the site allows without the rest."""
        return self._capped.fault()

    def pointless(self, min_gain: float | None) -> Fault | None:
        """A move that pays only by the GPUs it frees, and frees them for nobody."""
        if min_gain is None:
            return None
        for move in self.moves:
            job = self._jobs[move.job]
            if job.placement is None or move.kind == "tune" or grows(move, job):
                continue
            if move.beside is not None:
                if not self._joined(move, move.beside):
                    return move, f"job {move.beside} does not come beside it"
                continue
            cost = move_cost(job, self._problem.outlooks[job.id], move.target)
            own_gain = (min_gain - 1.0) * cost
            if move.kind == "resize" and move.gain > max(0.0, own_gain):
                continue
            if not self._makes_room(move, job, job.placement):
                return move, "nobody takes the GPUs that it would free"
        return None

    def _joined(self, move: Move, beside: JobId) -> bool:
        """Whether the other one of a pair is there, or comes."""
        other = self._jobs.get(beside)
        return other is not None and (
            (other.share and other.placement == move.target)
            or any(one.job == beside and one.beside == move.job for one in self.moves)
        )

    def _makes_room(self, move: Move, job: Job, placement: Placement) -> bool:
        """Whether the other moves could not all be made without this one."""
        if self._pairs:
            return self._frees_nodes(move, placement) or self._capped.makes_room(job)
        if move.job in self._useful:
            return True
        if self._frees_nodes(move, placement):
            self._useful.by_nodes.add(move.job)
        elif self._capped.makes_room(job):
            self._useful.by_caps.add(move.job)
        return move.job in self._useful

    def _frees_nodes(self, move: Move, placement: Placement) -> bool:
        """Whether some node would be overfull without this one."""
        before, after = _gpus_on(placement), _gpus_on(move.target)
        freed = [name for name, gpus in before.items() if after.get(name, 0) < gpus]
        if self._pairs:
            used = self._in_use([other for other in self.moves if other is not move])
            return any(used[name] > self._room.get(name, 0) for name in freed)
        return any(
            self._used[name] + before[name] - after.get(name, 0) > self._room.get(name, 0)
            for name in freed
        )

    def _overfull_nodes(self) -> frozenset[str]:
        """The nodes that would hold more than they have."""
        room = self._room
        return frozenset(name for name, gpus in self._used.items() if gpus > room.get(name, 0))

    def _in_use(self, moves: Sequence[Move]) -> Counter[str]:
        """GPUs by node once these are done."""
        held = self._held if moves is self.moves else _final(moves, self._problem)
        return occupied(held, _beside(moves, self._problem) if self._pairs else {})


class _Capped:
    """What the jobs take of each cap once the moves are made, added up once."""

    def __init__(
        self, problem: Problem, moves: Sequence[Move], held: Mapping[JobId, Placement]
    ) -> None:
        self._problem = problem
        self._jobs = by_id(problem.jobs)
        self._takes = [
            {
                id_: taken(cap, self._jobs[id_], held.get(id_), problem.by_name)
                for id_ in cap.takes
                if id_ in self._jobs
            }
            for cap in problem.caps
        ]
        self._totals = [sum(takes.values()) for takes in self._takes]
        self._exceeded = {at for at in range(len(problem.caps)) if self._exceeds(at)}
        self._moves: list[dict[JobId, Move]] = [{} for _ in problem.caps]  # that each cap counts
        for move in moves:
            for at in problem.caps_of.get(move.job, ()):
                self._moves[at][move.job] = move

    def stays(self, job: Job) -> None:
        """The job is not moved after all."""
        for at in self._problem.caps_of.get(job.id, ()):
            del self._moves[at][job.id]
            takes = self._takes[at]
            takes[job.id] = self._now(at, job)
            self._totals[at] = sum(takes.values())  # anew, for a difference would not be exact
            if self._exceeds(at):
                self._exceeded.add(at)
            else:
                self._exceeded.discard(at)

    def fault(self) -> Fault | None:
        """The last of the moves that take of the first cap that they exceed."""
        for at in sorted(self._exceeded):
            for move in reversed(self._moves[at].values()):
                job = self._jobs[move.job]
                if move.target is None or move.kind == "tune" or gives_back(job, move.target):
                    continue
                if move.target != job.placement and self._takes[at][job.id]:
                    return move, self._problem.caps[at].words
        return None

    def makes_room(self, job: Job) -> bool:
        """Whether more caps would be exceeded if the job stayed."""
        more = 0
        for at in self._problem.caps_of.get(job.id, ()):
            change = self._now(at, job) - self._takes[at][job.id]
            more += self._exceeds(at, change) - (at in self._exceeded)
        return more > 0

    def _now(self, at: int, job: Job) -> float:
        return taken(self._problem.caps[at], job, job.placement, self._problem.by_name)

    def _exceeds(self, at: int, change: float = 0.0) -> bool:
        return self._totals[at] + change > self._problem.caps[at].left + SLACK


class _Useful:
    """The moves known to make room for others, until something changes where they do."""

    def __init__(self, problem: Problem, moves: Sequence[Move]) -> None:
        self.by_nodes: set[JobId] = set()
        self.by_caps: set[JobId] = set()
        self._caps_of = problem.caps_of
        self._on: dict[str, list[JobId]] = {}  # who leaves each node, perhaps
        self._under: dict[int, list[JobId]] = {}  # whom each cap counts
        jobs = by_id(problem.jobs)
        for move in moves:
            for name in _gpus_on(jobs[move.job].placement):
                self._on.setdefault(name, []).append(move.job)
            for at in self._caps_of.get(move.job, ()):
                self._under.setdefault(at, []).append(move.job)

    def __contains__(self, job: JobId) -> bool:
        return job in self.by_nodes or job in self.by_caps

    def forget(self, job: JobId, nodes: Iterable[str]) -> None:
        """What this job has on these nodes, and of caps, is another now."""
        for name in nodes:
            self.by_nodes.difference_update(self._on.get(name, ()))
        for at in self._caps_of.get(job, ()):
            self.by_caps.difference_update(self._under[at])


def grows(move: Move, job: Job) -> bool:
    """Whether a running job is to have more GPUs."""
    return (
        move.target is not None
        and job.placement is not None
        and move.target.gpus > job.placement.gpus
    )


def _final(moves: Sequence[Move], problem: Problem) -> dict[JobId, Placement]:
    """Who holds what once these moves are done and all others left undone."""
    held = {job.id: job.placement for job in problem.jobs if job.placement is not None}
    for move in moves:
        if move.target is None:
            held.pop(move.job, None)
        else:
            held[move.job] = move.target
    return held


def _beside(moves: Sequence[Move], problem: Problem) -> dict[JobId, JobId | None]:
    """Who shares a GPU with whom then: only with one that shares its GPU as well."""
    share = {job.id for job in problem.jobs if job.share}
    share |= {move.job for move in moves if move.beside is not None}
    beside = {job.id: job.beside for job in problem.jobs}
    beside |= {move.job: move.beside for move in moves if move.kind != "tune"}
    return {job: other for job, other in beside.items() if job in share and other in share}


def _gpus_on(placement: Placement | None) -> Mapping[str, int]:
    return dict(placement.gpus_on) if placement else {}
