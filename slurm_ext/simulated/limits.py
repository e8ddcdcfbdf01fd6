"""Why Slurm does not let a job start that would find room: limits, licences, dependencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ones.slurm_ext.limits import Association, Partition, Qos, SiteLimits
from ones.slurm_ext.simulated.job import ALIVE, Job, gpus_asked, memory_asked
from ones.slurm_ext.simulated.state import State

HOLDING = ("RUNNING", "SUSPENDED")
MAY_BE_RESERVED = "ReqNodeNotAvail, May be reserved for other job"


@dataclass(slots=True)
class Totals:
    """What running jobs hold of what is limited, by whom."""

    gpus: Counter[tuple[str, ...]] = field(default_factory=Counter)
    memory: Counter[tuple[str, ...]] = field(default_factory=Counter)  # MiB
    jobs: Counter[tuple[str, ...]] = field(default_factory=Counter)
    licenses: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, state: State) -> Totals:
        totals = cls()
        for job in state.jobs.values():
            if job.state in HOLDING:
                gpus = sum(len(part.gpus) for part in job.parts.values())
                totals.add(state, job, gpus, sum(part.memory for part in job.parts.values()))
        return totals

    def add(self, state: State, job: Job, gpus: int, memory: int) -> None:
        for key in _keys(state, job):
            self.gpus[key] += gpus
            self.memory[key] += memory
            self.jobs[key] += 1
        self.licenses.update(dict(job.wants.licenses))


def _keys(state: State, job: Job) -> Iterable[tuple[str, ...]]:
    for name in _qos_of(state, job):
        yield ("qos", name)
        yield ("qos", name, job.user)
    for account in _accounts(state, job.account):
        yield ("account", account)
    yield ("account", job.account, job.user)


def _accounts(state: State, name: str) -> tuple[str, ...]:
    """The account and those above it."""
    found: list[str] = []
    while name and name not in found:
        found.append(name)
        name = state.accounts[name].parent if name in state.accounts else ""
    return tuple(found)


def _qos_of(state: State, job: Job) -> tuple[str, ...]:
    names = (job.qos, state.partitions[job.partition].qos)
    return tuple(dict.fromkeys(name for name in names if name))


def against(state: State, job: Job, totals: Totals) -> str:
    """Slurm's reason why the job can't start under the limits; '' where it can."""
    wants = gpus_asked(job.wants)
    memory = memory_asked(job.wants, memory_per_cpu=job.memory_per_cpu)
    for name in _qos_of(state, job):
        qos = state.qos.get(name)
        if qos is None:
            continue
        all_of, own = ("qos", name), ("qos", name, job.user)
        checks: tuple[tuple[str, int | None, int], ...] = (
            ("QOSMaxGRESPerJob", qos.gpus_per_job, wants),
            ("QOSMaxGRESPerUser", qos.gpus_per_user, totals.gpus[own] + wants),
            ("QOSGrpGRES", qos.gpus, totals.gpus[all_of] + wants),
            ("QOSMaxMemoryPerJob", qos.memory_per_job, memory),
            ("QOSMaxMemoryPerUser", qos.memory_per_user, totals.memory[own] + memory),
            ("QOSGrpMemLimit", qos.memory, totals.memory[all_of] + memory),
            ("QOSMaxJobsPerUserLimit", qos.jobs_per_user, totals.jobs[own] + 1),
            ("QOSGrpJobsLimit", qos.jobs, totals.jobs[all_of] + 1),
        )
        if (reason := _first(checks)) != "":
            return reason
    mine = state.accounts.get(job.account)
    for name in _accounts(state, job.account):
        account = state.accounts.get(name)
        if account is None or mine is None:
            break
        all_of, own = ("account", name), ("account", job.account, job.user)
        checks = (
            ("AssocGrpGRES", account.gpus, totals.gpus[all_of] + wants),
            ("AssocGrpMemLimit", account.memory, totals.memory[all_of] + memory),
            ("AssocGrpJobsLimit", account.jobs, totals.jobs[all_of] + 1),
            ("AssocMaxJobsLimit", mine.jobs_per_user, totals.jobs[own] + 1),
        )
        if (reason := _first(checks)) != "":
            return reason
    if any(
        totals.licenses[name] + n > state.licenses.get(name, 0) for name, n in job.wants.licenses
    ):
        return "Licenses"
    return ""


def as_read(state: State) -> SiteLimits:
    """The limits as Slurm tells them."""

    def some(gpus: int | None, memory: int | None) -> dict[str, int]:
        limits = {"gres/gpu": gpus, "mem": memory}
        return {tres: most for tres, most in limits.items() if most is not None}

    associations = {}
    for user, name in state.users.items():
        account = state.accounts.get(name)
        jobs = None if account is None else account.jobs_per_user
        own = Association(account=name, user=user, own_jobs=jobs)
        associations[own.key] = own
    for account in state.accounts.values():
        one = Association(
            account=account.name,
            parent=account.parent,
            together=some(account.gpus, account.memory),
            jobs=account.jobs,
        )
        associations[one.key] = one
    return SiteLimits(
        enforced=True,
        qos={
            each.name: Qos(
                name=each.name,
                together=some(each.gpus, each.memory),
                a_user=some(each.gpus_per_user, each.memory_per_user),
                a_job=some(each.gpus_per_job, each.memory_per_job),
                jobs=each.jobs,
                jobs_a_user=each.jobs_per_user,
            )
            for each in state.qos.values()
        },
        associations=associations,
        licenses=dict(state.licenses),
        partitions={
            each.name: Partition(
                name=each.name,
                state=each.state,
                default=each.name == next(iter(state.partitions)),
                most_nodes=each.max_nodes,
                memory_per_cpu=each.memory_per_cpu,
                wall=each.max_time,
                qos=each.qos,
            )
            for each in state.partitions.values()
        },
    )


def _first(checks: Iterable[tuple[str, int | None, int]]) -> str:
    return next((reason for reason, most, has in checks if most is not None and has > most), "")


def depends(state: State, job: Job) -> str:
    """Slurm's reason why what the job depends on does not let it start; '' where it does."""
    for part in filter(None, job.dependency.split(",")):
        kind, _, number = part.partition(":")
        other = state.jobs.get(int(number)) if number.isdecimal() else None
        if other is None:
            continue  # long over
        over = other.state not in ALIVE
        begun = over or other.state != "PENDING"
        if not (begun if kind == "after" else over and not other.flags):
            return "Dependency"
        wanted = {"afterok": other.state == "COMPLETED", "afternotok": other.state != "COMPLETED"}
        if not wanted.get(kind, True):
            return "DependencyNeverSatisfied"
    return ""
