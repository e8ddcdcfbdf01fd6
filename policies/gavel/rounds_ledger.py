"""What each job should have had of its time on each column, and what it has had.

Owed grows by the target share of the time that passes, received by the time that the job holds its
GPUs. Their difference outlives a new optimum, so that jobs come and go without anybody's claim
being lost; OSDI20 §5 resets what was received instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ones.policies.gavel.rounds_market import Claimant, kind_of
from ones.policies.gavel.rounds_target import Target
from ones.policies.model import Job, JobId, Problem, Seconds

MOST_OWED: Seconds = 3600.0  # beyond it a claim or debt grows no more
FORM = 1  # of what is remembered; another one is not read


@dataclass(slots=True)
class Standing:
    """One job's; columns by name, since types come and go."""

    owed: dict[str, Seconds] = field(default_factory=dict)
    received: dict[str, Seconds] = field(default_factory=dict)
    executed: Seconds = 0.0  # of its run time, what has been entered
    column: str | None = None  # that it runs on; None: it does not
    started: Seconds | None = None  # of that run
    isolated: Seconds = 0.0  # C: what its work so far would have taken on 1/m of the cluster

    @property
    def new(self) -> bool:
        """Whether it has never had a GPU under us."""
        return not self.received and self.column is None

    @classmethod
    def of(cls, job: Job, column: str | None) -> Standing:
        """Of a job that is seen for the first time; what it had before is not held against it."""
        started = None if column is None else job.started
        return cls(executed=job.executed, column=column, started=started)

    def behind(self, column: str) -> Seconds:
        """How much more it should have had there; below 0: how much less."""
        return self.owed.get(column, 0.0) - self.received.get(column, 0.0)

    def enter(self, job: Job, column: str | None, now: Seconds) -> list[tuple[str, Seconds]]:
        """The job's run time since the last round, by column; `column` is what it holds now.

        A job whose run is the one that was known is still on its type, even where a move is under
        way and the job is shown at its target already.
        """
        passed = max(0.0, job.executed - self.executed)
        self.executed = max(self.executed, job.executed)
        before, latest = self.column, 0.0
        if column is not None:
            if before is not None and job.started == self.started:
                latest = passed
                column = column if kind_of(column) == kind_of(before) else before
            else:
                latest = min(passed, max(0.0, now - (now if job.started is None else job.started)))
        self.column, self.started = column, None if column is None else job.started
        entries = []
        for name, seconds in ((before, passed - latest), (column, latest)):
            if name is not None and seconds > 0:
                self.received[name] = self.received.get(name, 0.0) + seconds
                entries.append((name, seconds))
        return entries

    def owe(self, column: str, seconds: Seconds, *, most: Seconds) -> None:
        """Add to what it should have had, within `most` of what it has had."""
        had = self.received.get(column, 0.0)
        owed = self.owed.get(column, 0.0) + seconds
        self.owed[column] = min(max(owed, had - most), had + most)

    def as_json(self) -> list[Any]:
        return [
            {name: round(seconds, 3) for name, seconds in self.owed.items()},
            {name: round(seconds, 3) for name, seconds in self.received.items()},
            self.executed,
            self.column,
            self.started,
            self.isolated,
        ]

    @classmethod
    def read(cls, kept: Any) -> Standing:
        owed, received, executed, column, started, isolated = kept
        return cls(dict(owed), dict(received), executed, column, started, isolated)


@dataclass(slots=True)
class Ledger:
    """All that is remembered from round to round."""

    at: Seconds = 0.0
    every: Seconds = 0.0  # a round, as they usually come
    of: dict[JobId, Standing] = field(default_factory=dict)
    target: Target | None = None
    kept: dict[JobId, tuple[Seconds, tuple[str, ...]]] = field(default_factory=dict)
    """Since when which nodes are kept for a job."""

    def advance(self, now: Seconds) -> Seconds:
        """Begin a round: how much time has passed since the last one."""
        passed = max(0.0, now - self.at) if self.target else 0.0
        if passed:
            self.every = min(passed, 2 * self.every) if self.every else passed
        self.at = now
        return passed

    def keep(
        self, problem: Problem, claimants: Sequence[Claimant], passed: Seconds, *, most: Seconds
    ) -> None:
        """Enter what jobs have had in the time that has passed, and what they should have had."""
        shares = {one.job.id: self._shares(one.job.id) for one in claimants}
        spent: dict[str, float] = defaultdict(float)  # GPU-seconds by type
        for one in claimants:
            for column, seconds in self._enter(one, problem.now):
                spent[kind_of(column)] += one.size * seconds
                if column not in shares[one.job.id]:
                    # What nobody else used is not held against it.
                    self.of[one.job.id].owe(column, seconds, most=most)
        due: dict[str, float] = defaultdict(float)
        for one in claimants:
            for column, share in shares[one.job.id].items():
                due[kind_of(column)] += one.size * share * passed
        # Nobody is owed time that no GPU could give: gaps between gangs, restarts, failures.
        given = {kind: min(1.0, spent[kind] / wanted) for kind, wanted in due.items() if wanted}
        for id_, own in shares.items():
            for column, share in own.items():
                seconds = share * passed * given.get(kind_of(column), 0.0)
                self.of[id_].owe(column, seconds, most=most)
        self._level(claimants, shares, most)
        self._others(problem, shares)

    def _shares(self, job: JobId) -> Mapping[str, float]:
        return self.target.shares.get(job, {}) if self.target else {}

    def _enter(self, one: Claimant, now: Seconds) -> list[tuple[str, Seconds]]:
        standing = self.of.get(one.job.id)
        if standing is None:
            self.of[one.job.id] = Standing.of(one.job, one.column)
            return []
        entries = standing.enter(one.job, one.column, now)
        iso = self.target.isolated.get(one.job.id, 0.0) if self.target else 0.0
        if iso > 0:
            for column, seconds in entries:
                standing.isolated += seconds * one.speeds.at(column) / iso
        return entries

    def _level(
        self,
        claimants: Iterable[Claimant],
        shares: Mapping[JobId, Mapping[str, float]],
        most: Seconds,
    ) -> None:
        """What even the best off of a column lack, or the worst off are ahead, is nobody's claim.

        Otherwise jobs that can't be moved would drive all others to the end of the scale, where
        none could be told from another. Who had no share lacks nothing.
        """
        columns: dict[str, list[Standing]] = defaultdict(list)
        others = [self.of[one.job.id] for one in claimants if not shares[one.job.id]]
        for one in claimants:
            for column in shares[one.job.id] if one.movable else ():
                columns[column].append(self.of[one.job.id])
        for column, standings in columns.items():
            if len(standings) == 1:
                continue
            behind = [standing.behind(column) for standing in (*standings, *others)]
            common = max(0.0, min(behind)) + min(0.0, max(behind))
            for standing in standings if common else ():
                standing.owe(column, -common, most=most)

    def _others(self, problem: Problem, claimants: Mapping[JobId, object]) -> None:
        """Jobs that take no part now keep their standing; those that have ended are forgotten."""
        there = {job.id for job in problem.jobs}
        for job in problem.jobs:
            if job.id not in claimants and job.id in self.of:
                self.of[job.id].enter(job, None, problem.now)
        for id_ in self.of.keys() - there:
            del self.of[id_]
        for id_ in self.kept.keys() - there:
            del self.kept[id_]

    def as_json(self) -> dict[str, Any]:
        return {
            "form": FORM,
            "at": self.at,
            "every": self.every,
            "jobs": {str(id_): one.as_json() for id_, one in self.of.items()},
            "target": self.target.as_json() if self.target else None,
            "kept": {str(id_): [since, list(nodes)] for id_, (since, nodes) in self.kept.items()},
        }

    @classmethod
    def read(cls, memory: Any) -> Ledger:
        if not isinstance(memory, dict) or memory.get("form") != FORM:
            return cls()
        return cls(
            memory["at"],
            memory["every"],
            {JobId(int(id_)): Standing.read(one) for id_, one in memory["jobs"].items()},
            Target.read(memory["target"]) if memory["target"] else None,
            {
                JobId(int(id_)): (since, tuple(nodes))
                for id_, (since, nodes) in memory["kept"].items()
            },
        )
