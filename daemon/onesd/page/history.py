"""How the cluster was used since onesd started, and what elasticity gave in that time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ones.daemon.onesd.outcome import Round
from ones.slurm_ext.shards import gpus_held
from ones.slurm_ext.snapshot import ALIVE

MOST = 720  # points; where there are more, every second one goes
LONGEST = 3600.0  # seconds from one round to the next that count
Point = tuple[int, int, int, int, int]
"""When, and then: GPUs of elastic jobs and of others, all GPUs, elastic jobs that wait."""


@dataclass(slots=True)
class History:
    """Points in time for a chart, and sums; `take` is told each round once, in order."""

    points: dict[str, Point] = field(default_factory=dict)
    latest: Point | None = None  # which `points` may pass over
    begun: Counter[str] = field(default_factory=Counter)  # moves, by kind
    refused: int = 0
    since: float | None = None
    saved: float = 0.0
    """Seconds by which jobs have ended sooner than at fixed sizes, less those by which jobs are
    later; each counts for as long as it is ahead, or behind."""
    ahead: int = 0
    behind: int = 0
    _last: float = 0.0
    _every: int = 1
    _rounds: int = 0

    def take(self, last: Round) -> None:
        """Add a round."""
        self._compare(last)
        for decision in last.decisions:
            if decision.verdict == "begun":
                self.begun[decision.kind] += 1
            elif decision.verdict.startswith("refused"):
                self.refused += 1
        self.latest = _point(last)
        if self._rounds % self._every == 0:
            self.points[str(self.latest[0])] = self.latest
        self._rounds += 1
        if len(self.points) > MOST:
            self.points = dict(list(self.points.items())[::2])
            self._every *= 2

    def _compare(self, last: Round) -> None:
        """With what Slurm would have done by now, were every elastic job rigid."""
        passed = last.at - self._last if self.since is not None else 0.0
        if not 0.0 <= passed <= LONGEST:
            passed = 0.0  # the clock was set, or nothing was looked at
        self.since = last.at if self.since is None else self.since
        self._last = last.at
        rigid = last.rigid
        if rigid is None:
            return
        there = {job.id for job in last.jobs}
        alive = {number for number, job in last.snapshot.jobs.items() if job.state in ALIVE}
        done = sum(int(id_) not in alive and id_ not in there for id_ in rigid.requests)
        late = len(rigid.through & there)
        runs_sooner = sum(
            job.placement is not None and job.id not in rigid.claims and job.id not in rigid.through
            for job in last.jobs
        )
        waits_longer = sum(job.placement is None and job.id in rigid.claims for job in last.jobs)
        self.ahead, self.behind = done + runs_sooner, late + waits_longer
        self.saved += passed * (done - late)

    def chart(self) -> dict[str, Point]:
        """The points, up to the last round."""
        return self.points | ({} if self.latest is None else {str(self.latest[0]): self.latest})

    def gain(self) -> dict[str, Any]:
        """What elasticity gave so far, for the page."""
        return {
            "since": self.since,
            "saved": round(self.saved),
            "ahead": self.ahead,
            "behind": self.behind,
            "begun": dict(self.begun),
            "refused": self.refused,
        }


def _point(last: Round) -> Point:
    nodes = [node for node in last.snapshot.nodes.values() if node.gpus]
    ours = [job for job in last.snapshot.jobs.values() if job.marked or job.is_satellite]
    elastic = sum(gpus_held(ours).values())
    used = sum(node.gpus_used for node in nodes)
    waiting = sum(job.placement is None for job in last.jobs)
    total = sum(node.gpus for node in nodes)
    return int(last.at), elastic, max(0, used - elastic), total, waiting
