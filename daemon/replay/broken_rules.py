"""Whether a run kept to the site's rules: partitions, reservations, limits of QOS and accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ones.daemon.replay.jobs import SimulatedJob
from ones.daemon.replay.simulation import Run
from ones.policies.model import JobId, Placement, Seconds
from ones.policies.slurm.settings import ROOT, Bounds, SlurmSettings

Holder = tuple[str, ...]  # of whom something is counted


@dataclass(frozen=True, slots=True)
class Broken:
    """A start or a growth that a rule forbids."""

    job: JobId
    at: Seconds
    rule: str


@dataclass(slots=True)
class _Books:
    """Who holds what, while the run is gone through."""

    settings: SlurmSettings
    held: dict[JobId, Placement] = field(default_factory=dict)
    gpus: Counter[Holder] = field(default_factory=Counter)
    jobs: Counter[Holder] = field(default_factory=Counter)
    memory: Counter[Holder] = field(default_factory=Counter)  # thousandths of a MiB
    licenses: Counter[str] = field(default_factory=Counter)

    def change(self, job: SimulatedJob, to: Placement | None) -> None:
        before = self.held.pop(job.id, None)
        begun = (to is not None) - (before is not None)
        more = (to.gpus if to else 0) - (before.gpus if before else 0)
        for holder in self.holders(job):
            self.gpus[holder] += more
            self.jobs[holder] += begun
            self.memory[holder] += round(1000 * job.trace.memory * more / job.trace.requested)
        for name, count in job.trace.licenses:
            self.licenses[name] += count * begun
        if to is not None:
            self.held[job.id] = to

    def holders(self, job: SimulatedJob) -> Iterator[Holder]:
        trace = job.trace
        qos = trace.qos or self.settings.default_qos
        yield from (("qos", qos), ("qos", qos, "user", trace.user))
        yield ("qos", qos, "account", trace.account)
        yield ("account", trace.account, "user", trace.user)
        for account in self.above(trace.account):
            yield ("account", account)

    def above(self, account: str) -> Iterator[str]:
        """The account and those above it."""
        parents = {one.account: one.parent for one in self.settings.associations if not one.user}
        while account != ROOT:
            yield account
            account = parents.get(account, ROOT)
        yield ROOT

    def broken(self, job: SimulatedJob, to: Placement, now: Seconds) -> Iterator[str]:
        """The rules that this job breaks as it now stands."""
        trace, settings = job.trace, self.settings
        on = {*to.nodes}
        for partition in settings.partitions:
            if partition.name == trace.partition and partition.nodes and not on <= partition.nodes:
                yield f"partition {partition.name}"
        for one in settings.reservations:
            own = one.name == trace.reservation
            if (own and not on <= one.nodes) or (
                not own and on & one.nodes and one.start <= now < one.end
            ):
                yield f"reservation {one.name}"
        there = dict(settings.licenses)
        for name, _ in trace.licenses:
            if self.licenses[name] > there.get(name, 0):
                yield f"licences of {name}: {self.licenses[name]}, of {there.get(name, 0)}"
        qos = trace.qos or settings.default_qos
        for found in settings.qos:
            if found.name == qos:
                mine = ("qos", qos, "user", trace.user)
                yield from self._over(
                    f"qos {qos}",
                    found.bounds,
                    {
                        "grp_gpus": self.gpus["qos", qos],
                        "grp_jobs": self.jobs["qos", qos],
                        "grp_memory": self.memory["qos", qos] / 1000,
                        "memory_per_user": self.memory[mine] / 1000,
                        "gpus_per_user": self.gpus[mine],
                        "jobs_per_user": self.jobs[mine],
                        "gpus_per_account": self.gpus["qos", qos, "account", trace.account],
                        "gpus_per_job": to.gpus,
                    },
                )
        for association in settings.associations:
            whose: Holder = ("account", association.account)
            if association.user:
                whose = (*whose, "user", association.user)
                counts = (association.account, association.user) == (trace.account, trace.user)
            else:
                counts = association.account in self.above(trace.account)
            if counts:
                given: dict[str, float] = {
                    "grp_gpus": self.gpus[whose],
                    "grp_jobs": self.jobs[whose],
                    "grp_memory": self.memory[whose] / 1000,
                    "gpus_per_job": to.gpus,
                }
                yield from self._over(f"account {' '.join(whose[1::2])}", association.bounds, given)

    def _over(self, whose: str, bounds: Bounds, given: Mapping[str, float]) -> Iterator[str]:
        for name, value in given.items():
            most = getattr(bounds, name)
            if most is not None and value > most:
                yield f"{whose}: {name} is {most:g}, and it has {value:g}"


def broken_rules(run: Run, settings: SlurmSettings) -> list[Broken]:
    """Each start and growth of an elastic job that left a rule broken.

    A reservation that begins while a job sits there is broken by its staying as well.
    """
    books = _Books(settings)
    by_id = {job.id: job for job in run.jobs}
    changes: dict[Seconds, list[tuple[SimulatedJob, Placement | None]]] = {}
    for job in run.jobs:
        for at, to in job.places:
            changes.setdefault(at, []).append((job, to))
    begins = {one.start for one in settings.reservations}
    found: list[Broken] = []
    for at in sorted({*changes, *begins}):
        new: dict[JobId, SimulatedJob] = {}
        for job, to in changes.get(at, ()):
            books.change(job, to)
            new[job.id] = job
        if at in begins:
            new |= {id_: by_id[id_] for id_ in books.held}
        # Judged when all have moved that do so together.
        for job in new.values():
            placement = books.held.get(job.id)
            if placement is not None and job.trace.opted_in:
                found += [Broken(job.id, at, why) for why in books.broken(job, placement, at)]
    return found
