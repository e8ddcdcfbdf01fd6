"""What Slurm remembers from one pass to the next: usage, priorities, when it last did what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ones.policies.model import Job, Seconds
from ones.policies.slurm.fair_share import Knot, Member, decay
from ones.policies.slurm.limits import Holder
from ones.policies.slurm.settings import SlurmSettings


@dataclass(frozen=True, slots=True)
class Run:
    """A job that runs, as it is billed."""

    account: str
    user: str
    qos: str
    gpus: int
    since: Seconds  # from when on its usage is still to be counted


@dataclass(slots=True)
class Ledger:
    """Usage is in GPU seconds: counted as jobs end, and with the decay once a `calc_period`."""

    usage: dict[Member, float] = field(default_factory=dict)
    by_qos: dict[str, float] = field(default_factory=dict)
    factors: dict[Member, float] = field(default_factory=dict)  # of fair share
    priority: dict[int, int] = field(default_factory=dict)  # of jobs that wait
    running: dict[int, Run] = field(default_factory=dict)
    counted: Seconds | None = None  # when usage was last counted
    backfilled: Seconds | None = None
    settled: list[int] | None = None
    """The free GPUs of each node when nothing more could be started; None: something could."""

    @classmethod
    def read(cls, memory: object) -> Ledger:
        """From what `kept` made of another one; an empty one of anything else."""
        if not isinstance(memory, dict) or "usage" not in memory:
            return cls()
        return cls(
            usage={(account, user): float(used) for account, user, used in memory["usage"]},
            by_qos=dict(memory["by_qos"]),
            factors={(account, user): float(factor) for account, user, factor in memory["factors"]},
            priority={int(job): int(given) for job, given in memory["priority"].items()},
            running={int(job): Run(*run) for job, run in memory["running"].items()},
            counted=memory["counted"],
            backfilled=memory["backfilled"],
            settled=memory["settled"],
        )

    def kept(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "usage": [[*member, used] for member, used in self.usage.items()],
            "by_qos": self.by_qos,
            "factors": [[*member, factor] for member, factor in self.factors.items()],
            "priority": {str(job): given for job, given in self.priority.items()},
            "running": {
                str(job): [run.account, run.user, run.qos, run.gpus, run.since]
                for job, run in self.running.items()
            },
            "counted": self.counted,
            "backfilled": self.backfilled,
            "settled": self.settled,
        }

    def see(self, running: Iterable[Job], settings: SlurmSettings, now: Seconds) -> bool:
        """Take note of who runs now, and count what others have used; whether that has changed."""
        there = {int(job.id): job for job in running}
        gone = [id_ for id_ in self.running if id_ not in there]
        for id_ in gone:
            self._count(self.running.pop(id_), settings, now)
        newcomers = [job for id_, job in there.items() if id_ not in self.running]
        for job in newcomers:
            began = now if job.started is None else job.started
            self.begin(job, max(began, self.counted or began))
        return bool(gone or newcomers)

    def begin(self, job: Job, at: Seconds) -> None:
        gpus = job.placement.gpus if job.placement else job.requested
        self.running[int(job.id)] = Run(job.account, job.user, job.qos, gpus, at)

    def count(self, settings: SlurmSettings, now: Seconds) -> None:
        """Decay what was used before, and add what has been used since."""
        if self.counted is not None:
            left = decay(settings.half_life, now - self.counted)
            self.usage = {member: used * left for member, used in self.usage.items()}
            self.by_qos = {qos: used * left for qos, used in self.by_qos.items()}
        for id_, run in self.running.items():
            self._count(run, settings, now)
            self.running[id_] = Run(run.account, run.user, run.qos, run.gpus, now)
        self.counted = now

    def _count(self, run: Run, settings: SlurmSettings, now: Seconds) -> None:
        seconds = max(0.0, now - run.since)
        qos = run.qos or settings.default_qos
        factor = next((one.usage_factor for one in settings.qos if one.name == qos), 1.0)
        used = seconds * decay(settings.half_life, seconds) * run.gpus * factor
        member = (run.account, run.user)
        self.usage[member] = self.usage.get(member, 0.0) + used
        self.by_qos[qos] = self.by_qos.get(qos, 0.0) + used

    def spent(self, top: Iterable[Knot]) -> Mapping[Holder, float]:
        """GPU seconds by QOS, by user of an account, and by account with all below it."""
        found: dict[Holder, float] = {("qos", qos): used for qos, used in self.by_qos.items()}

        def add_up(knot: Knot) -> float:
            account, user = knot.member
            total = self.usage.get(knot.member, 0.0) + sum(add_up(each) for each in knot.below)
            found[("account", account, user) if user else ("account", account)] = total
            return total

        found["account", "root"] = sum(add_up(knot) for knot in top)
        return found
