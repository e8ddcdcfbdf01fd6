"""What if some of the jobs had opted in: whole families of them, drawn or named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from ones.daemon.replay.faults import ReplayError, clean
from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.workload import TraceJob, Workload
from ones.policies.sizes import MOST_GPUS, Sizes

Family = tuple[str, str]  # user and name


@dataclass(frozen=True, slots=True, kw_only=True)
class Opting:
    """Who opts in beside the jobs that did, and with which sizes."""

    share: float = 0.0  # of the jobs, in whole families
    pattern: str = ""  # of the name or the account, with * and ?
    growth: int = 4  # up to so many times the GPUs that a job asks for
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.growth < 1:
            raise ValueError("a share is 0 to 1, and a growth 1 or more")

    def of(self, workload: Workload, gpus: int) -> Workload:
        """The workload with these jobs elastic, up to the cluster's GPUs. Raises ReplayError."""
        chosen = {*_named(workload.jobs, self.pattern)} if self.pattern else set[Family]()
        if self.pattern and not chosen:
            raise ReplayError(
                f"--elastic: no job's name or account is like '{clean(self.pattern[:60])}'; names"
                f" there are, among others: {', '.join(_examples(workload.jobs))}"
            )
        if self.share:
            chosen |= _drawn(workload.jobs, self.share, np.random.default_rng(self.seed))
        return replace(
            workload,
            jobs=tuple(
                elastic(job, self.growth, gpus)
                if not job.opted_in and (job.user, job.family) in chosen
                else job
                for job in workload.jobs
            ),
        )


def elastic(job: TraceJob, growth: int, gpus: int) -> TraceJob:
    """The job as it would have opted in: its size halved and doubled, between 1 and the most."""
    application = job.application
    if not isinstance(application, Recorded):
        return replace(job, opted_in=True)  # its profile tells its sizes
    sizes = sizes_about(job.requested, growth, gpus)
    return replace(job, opted_in=True, sizes=sizes, application=replace(application, sizes=sizes))


def sizes_about(requested: int, growth: int, gpus: int) -> Sizes:
    """1, the request, its halves while they are whole, and its doubles up to `growth` times."""
    found = {1, requested}
    half = requested
    while half % 2 == 0:
        half //= 2
        found.add(half)
    double = 2 * requested
    while double <= min(growth * requested, gpus, MOST_GPUS):
        found.add(double)
        double *= 2
    return Sizes(tuple(sorted(found)))


def _named(jobs: Sequence[TraceJob], pattern: str) -> set[Family]:
    return {
        (job.user, job.family)
        for job in jobs
        if fnmatchcase(job.family, pattern) or fnmatchcase(job.account, pattern)
    }


def _examples(jobs: Sequence[TraceJob]) -> list[str]:
    return sorted({clean(job.family[:30]) for job in jobs})[:4]


def _drawn(jobs: Sequence[TraceJob], share: float, rng: np.random.Generator) -> set[Family]:
    """Families in an order of chance, each that brings their share of the jobs nearer to it."""
    counts: dict[Family, int] = {}
    for job in jobs:
        counts[job.user, job.family] = counts.get((job.user, job.family), 0) + 1
    wanted = share * len(jobs)
    families = sorted(counts)
    chosen: set[Family] = set()
    have = 0
    for at in rng.permutation(len(families)):
        family = families[at]
        if abs(have + counts[family] - wanted) < abs(have - wanted):
            chosen.add(family)
            have += counts[family]
    return chosen or {min(families, key=lambda family: (counts[family], family))}
