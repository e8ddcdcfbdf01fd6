"""A run against the rigid one of the same trace: who gains, who loses, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ones.daemon.replay.figures import completion_seconds
from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.simulation import Run
from ones.daemon.times import duration
from ones.policies.model import Seconds

SLACK: Seconds = 60.0  # who ends so much later, or by 1 %, is not worse off: rounds last as long
DECILES = tuple(range(10, 100, 10))
Pair = tuple[SimulatedJob, SimulatedJob]  # a job in the run, and in the rigid one


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some jobs' figures in a run and in the rigid one; times are averages."""

    jobs: int
    completion_s: Seconds
    rigid_completion_s: Seconds
    wait_s: Seconds
    rigid_wait_s: Seconds
    gpu_hours: float
    rigid_gpu_hours: float
    deciles: tuple[float, ...]  # of completion / completion in the rigid run, job by job
    worst: float
    worse_off: float  # share of the jobs that end later than in the rigid run
    worse_by: float  # the mean ratio of these; 1 where there are none

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Group:
        now = np.array([completion_seconds(one) for one, _ in pairs])
        rigid = np.array([completion_seconds(other) for _, other in pairs])
        ratios = now / np.maximum(rigid, 1e-9)
        worse = now > rigid + np.maximum(SLACK, 0.01 * rigid)
        return cls(
            jobs=len(pairs),
            completion_s=float(now.mean()),
            rigid_completion_s=float(rigid.mean()),
            wait_s=float(np.mean([one.waited for one, _ in pairs])),
            rigid_wait_s=float(np.mean([other.waited for _, other in pairs])),
            gpu_hours=sum(one.gpu_seconds for one, _ in pairs) / 3600,
            rigid_gpu_hours=sum(other.gpu_seconds for _, other in pairs) / 3600,
            deciles=tuple(float(one) for one in np.percentile(ratios, DECILES)),
            worst=float(ratios.max()),
            worse_off=float(worse.mean()),
            worse_by=float(ratios[worse].mean()) if worse.any() else 1.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How a run treats everybody against the rigid run."""

    policy: str
    rigid: str  # the policy of the rigid run
    classes: dict[str, Group]  # elastic, plain
    accounts: dict[str, Group]
    users: dict[str, Group]

    @classmethod
    def of(cls, run: Run, rigid: Run) -> Fairness:
        pairs = list(zip(run.jobs, rigid.jobs, strict=True))
        return cls(
            policy=run.policy,
            rigid=rigid.policy,
            classes=_grouped(pairs, class_of),
            accounts=_grouped(pairs, lambda job: job.trace.account),
            users=_grouped(pairs, lambda job: job.trace.user),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "rigid": self.rigid,
            "answer": self.answer(),
            **{
                name: {key: asdict(group) for key, group in getattr(self, name).items()}
                for name in ("classes", "accounts", "users")
            },
        }

    def answer(self) -> str:
        """What opting in would have saved, for those who did and for those who didn't."""
        elastic, plain = self.classes.get("elastic"), self.classes.get("plain")
        total = sum(group.jobs for group in self.classes.values())
        if elastic is None:
            return (
                f"None of the {total:,} jobs opted in, so {self.policy} would have changed nothing"
                f" against {self.rigid}; try --elastic-share 20%"
            )
        hours = sum(group.gpu_hours for group in self.classes.values())
        rigid_hours = sum(group.rigid_gpu_hours for group in self.classes.values())
        others = f"; the other {plain.jobs:,} {_told(plain)}" if plain is not None else ""
        return (
            f"Had {elastic.jobs:,} of {total:,} jobs ({elastic.jobs / total:.0%}) opted in, under"
            f" {self.policy} instead of {self.rigid} they would {_told(elastic)}{others};"
            f" {_hours(hours, rigid_hours)}"
        )


def class_of(job: SimulatedJob) -> str:
    return "elastic" if job.trace.opted_in else "plain"


def _grouped(pairs: Sequence[Pair], key: Callable[[SimulatedJob], str]) -> dict[str, Group]:
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(key(pair[0]), []).append(pair)
    return {name: Group.of(found[name]) for name in sorted(found)}


def _told(group: Group) -> str:
    return (
        f"end {_change(group.completion_s, group.rigid_completion_s, 'sooner', 'later')}"
        f" after submission and wait {_change(group.wait_s, group.rigid_wait_s, 'less', 'more')}"
    )


def _change(now: Seconds, before: Seconds, less: str, more: str) -> str:
    """`38 % sooner (2:03:04 instead of 3:18:00 on average)`"""
    times = f"{duration(now)} instead of {duration(before)}"
    if before <= 0:
        return f"as before ({times})" if now <= 0 else f"{more} ({times})"
    part = 1.0 - now / before
    if abs(part) < 0.005:
        return f"as before ({times})"
    return f"{abs(part):.0%} {less if part > 0 else more} ({times})"


def _hours(now: float, before: float) -> str:
    word = "saved" if now <= before else "more spent"
    return f"{abs(before - now):,.0f} of {before:,.0f} GPU-hours {word}"
