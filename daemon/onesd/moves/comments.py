"""What squeue shows of an elastic job: how far it is, and its next size, in its Slurm comment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from ones.daemon.wire import Report
from ones.policies.model import Job
from ones.slurm_ext.actions import Comment
from ones.slurm_ext.actuator import Actuator, JobChanged, OthersComment
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.snapshot import OUR_COMMENT, Snapshot

log = logging.getLogger(__name__)
MOST = 10  # jobs whose comment is written in one round: moves wait for none of this


class Comments:
    """Writes them now and then, and never over somebody else's.

    `every` is the least number of seconds between two writes to one job; None: nothing is written.
    What was written is lost with us: then each job is looked at once more.
    """

    def __init__(
        self, actuator: Actuator, *, every: float | None, clock: Callable[[], float]
    ) -> None:
        self._actuator = actuator
        self._every = every
        self._clock = clock
        self._written: dict[int, tuple[float, str]] = {}  # job -> when, and what
        self._others: set[int] = set()  # jobs with a comment of somebody else's

    def write(
        self,
        jobs: Sequence[Job],
        following: Mapping[int, int],
        reports: Mapping[int, Report],
        snapshot: Snapshot,
    ) -> None:
        """Bring comments up to date; `following`: job -> the GPUs that it is to have next."""
        if self._every is None:
            return
        now = self._clock()
        known = {int(job.id) for job in jobs}
        self._others &= known
        self._written = {job: told for job, told in self._written.items() if job in known}
        due = []
        for job in jobs:
            number = int(job.id)
            at, before = self._written.get(number, (-float("inf"), ""))
            text = words(job, following.get(number), reports.get(number))
            # A clock that is set back stops no comment for ever.
            early = at <= now < at + self._every
            if number not in self._others and text != before and not early:
                due.append((at, number, before, text))
        for _, number, before, text in sorted(due)[:MOST]:
            record = snapshot.jobs[number]
            if record.several:
                continue
            try:
                self._actuator.perform(Comment(number, record.restarts, text))
            except OthersComment as fault:
                log.info("%s", fault)
                self._others.add(number)
            except JobChanged as fault:
                log.info("%s", fault)  # it is looked at again when its time has come
            except SlurmError as fault:
                log.warning("job %d: its comment is left as it is: %s", number, fault)
                if isinstance(fault, SlurmUnreachable):
                    return
                self._written[number] = (now, before)  # it alone may be refused: later once more
                continue
            self._written[number] = (now, text)


def words(job: Job, following: int | None, report: Report | None) -> str:
    """`ONES: 62% done, 4 GPUs, next 8`, as far as that is known."""
    parts = []
    if report is not None and report.total_samples:
        share = min(1.0, report.samples / report.total_samples)
        parts.append(f"{int(100 * share)}% done")
    has = job.placement.gpus if job.placement is not None else 0
    parts.append(f"{has} GPU{'s' * (has != 1)}" if has else "waiting")
    if following is not None and following != has:
        parts.append(f"next {following}")
    return f"{OUR_COMMENT} {', '.join(parts)}"
