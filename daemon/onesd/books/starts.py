"""The table `failed_starts`: where, and how large, Slurm did not start a job, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from sqlite3 import Row

from ones.daemon.onesd.books.store import Store
from ones.daemon.pace import doubled
from ones.policies.model import Job, Placement
from ones.slurm_ext.holding import BAD_SHAPE
from ones.slurm_ext.snapshot import HOLDING, JobRecord, Snapshot
from ones.slurm_ext.waits import about, lasts, whose

FIRST, LONGEST = 60.0, 3600.0  # seconds for which something is barred
FORGOTTEN = 2 * LONGEST  # seconds after which a refusal counts as the first again


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the job isn't to be started on, or at, before `until`."""

    what: str  # `node`, `size` or `job`; `back`: to be started on what it ran with before
    node: str = ""
    gpus: int  # that it was to have; where its size was refused, these and more are barred
    reason: str  # Slurm's
    until: float


class FailedStarts:
    """Remembers the starts that did not come, for a while that grows with their number.

    What a rule of the site's forbids is not tried again before something has changed: a job of
    whom the rule counts has ended, or the limits are other ones; or an hour has passed.
    """

    def __init__(self, store: Store, count: Callable[[str], None] = lambda _cause: None) -> None:
        """`count` is told what stood in the way: `limit`, `nodes`, `size` or `job`."""
        self._store = store
        self._count = count
        self._held: dict[int, tuple[JobRecord, int]] = {}  # what ran when we looked last

    def failed(self, job: int, target: Placement, reason: str, *, now: float, ran: int = 0) -> None:
        """Slurm did not start the job there, for this reason; it `ran` on so many GPUs before.

        Who was refused twice on account of nodes waits before he tries others: what is wrong may be
        so of them all, and each attempt keeps GPUs from other jobs for a round.
        """
        kind = about(reason) or "nodes"
        before = {
            row["what"]: row
            for row in self._store.rows("SELECT * FROM failed_starts WHERE job = ?", job)
            if row["at"] <= now < row["at"] + FORGOTTEN
        }
        if reason == BAD_SHAPE and any(row["reason"] == BAD_SHAPE for row in before.values()):
            kind = "size"  # two nodes could not: what it asks for beside so many GPUs is nowhere
        self._count("limit" if lasts(reason) else kind)
        times = 1 + max((row["times"] for row in before.values()), default=0)
        gpus = target.gpus
        if kind == "size":
            whats = ["size"]
            if "size" in before:  # its limit is found by halves, not by single GPUs
                gpus = min(max(2, (gpus + 1) // 2), before["size"]["gpus"])
        elif kind == "job":
            whats = ["job"]
        else:
            whats = [f"node {node}" for node in target.nodes] + ["job"] * (times > 1)
        if lasts(reason) or reason == BAD_SHAPE:
            self._back(job, target, reason, ran=ran, now=now)
        for what in whats:
            span = LONGEST if lasts(reason) else _span(times)
            if what == "job" and kind == "nodes":
                span /= 2.0
            elif kind == "nodes":
                span = doubled(span, times - 1, most=LONGEST)
            row = {
                "job": job,
                "what": what,
                "gpus": gpus,
                "reason": reason[:200],
                "at": now,
                "until": now + min(LONGEST, span),
                "times": times,
            }
            self._store.put("failed_starts", [row])

    def _back(self, job: int, target: Placement, reason: str, *, ran: int, now: float) -> None:
        """Have a job that ran go back to the size it ran with; where that fails too, to any."""
        self._store.write("DELETE FROM failed_starts WHERE job = ? AND what = 'back'", job)
        if 0 < ran < target.gpus and (about(reason) == "size" or reason == BAD_SHAPE):
            row = {"job": job, "what": "back", "gpus": ran, "reason": reason[:200], "at": now}
            self._store.put("failed_starts", [row | {"until": now + LONGEST, "times": 1}])

    def limits_changed(self, *, now: float) -> None:
        """The site's limits are other ones: what they forbade may be tried again."""
        for row in self._store.rows(
            "SELECT * FROM failed_starts WHERE what != 'back' AND until > ?", now
        ):
            self._lift(row, now=now, at_once=True)

    def _lift(self, row: Row, *, now: float, at_once: bool = False) -> None:
        """Something has changed; before its time nothing is tried again all the same."""
        if not lasts(row["reason"]):
            return
        until = now if at_once else max(now, row["at"] + _span(row["times"]))
        if until < row["until"]:
            self._store.write(
                "UPDATE failed_starts SET until = ? WHERE job = ? AND what = ?",
                until,
                row["job"],
                row["what"],
            )

    def barred(self, *, now: float) -> dict[int, list[Refusal]]:
        """What is barred now, by job."""
        rows = self._store.rows("SELECT * FROM failed_starts WHERE at <= ?1 AND ?1 < until", now)
        found: dict[int, list[Refusal]] = {}
        for row in sorted(rows, key=lambda row: (row["job"], row["what"])):
            refusal = Refusal(
                what=row["what"].split()[0],
                node=row["what"].removeprefix("node ") if " " in row["what"] else "",
                gpus=row["gpus"],
                reason=row["reason"],
                until=row["until"],
            )
            found.setdefault(row["job"], []).append(refusal)
        return found

    def take(self, snapshot: Snapshot, *, now: float) -> None:
        """What kept a job that runs now, where it runs and as large as it runs, is over.

        So is, for all whom it may have kept, what a job has given back that ran before.
        """
        held = {
            number: (record, sum(record.gpus_on.values()))
            for number, record in snapshot.jobs.items()
            if record.state in HOLDING
        }
        before, self._held = self._held, held
        freed = [
            record
            for number, (record, gpus) in before.items()
            if number not in held or held[number][1] < gpus
        ]
        for row in self._store.of_jobs("failed_starts", snapshot.jobs):
            record = snapshot.jobs.get(row["job"])
            if record is None:
                continue
            if any(_counts(row["reason"], record, other) for other in freed):
                self._lift(row, now=now)
            if record.state == "PENDING":
                continue
            held_on = record.held_on
            node = row["what"].removeprefix("node ")
            if (
                row["what"] in ("job", "back")
                or node in held_on
                or (row["what"] == "size" and sum(held_on.values()) >= row["gpus"])
            ):
                self._store.write(
                    "DELETE FROM failed_starts WHERE job = ? AND what = ?", row["job"], row["what"]
                )


def _span(times: int) -> float:
    return doubled(FIRST, times - 1, most=LONGEST)


def _counts(reason: str, job: JobRecord, other: JobRecord) -> bool:
    """Whether what the other job has given back may be what the job was refused for."""
    if other.id == job.id:
        return False
    match whose(reason):
        case "user":
            return other.user == job.user
        case "account":
            return other.account == job.account
        case "qos":
            return other.qos == job.qos
        case "array":
            return other.array_job == job.array_job
        case _:
            return True


def without_refused(job: Job, refusals: Sequence[Refusal]) -> tuple[Job, str]:
    """The job without what is barred; and, where it waits and nothing is left of it, why.

    A job that runs keeps what it has.
    """
    if not refusals:
        return job, ""
    has, now = job.placement, set(job.placement.nodes if job.placement else ())
    nodes = job.nodes - ({one.node for one in refusals} - now)
    back = next((one.gpus for one in refusals if one.what == "back"), 0)
    refusals = [one for one in refusals if one.what != "back"]
    too_large = min((one.gpus for one in refusals if one.what == "size"), default=float("inf"))
    shapes = tuple(
        shape
        for shape in job.shapes
        if (shape.gpus < too_large and shape.nodes <= len(nodes))
        or (has is not None and shape == has.shape)
    )
    if has is not None:
        return replace(job, nodes=nodes, shapes=shapes), ""
    shapes = tuple(shape for shape in shapes if shape.gpus == back) or shapes
    if not refusals:
        return replace(job, shapes=shapes), ""
    if shapes and nodes and all(one.what != "job" for one in refusals):
        return replace(job, nodes=nodes, shapes=shapes), ""
    first = min(
        (one for one in refusals if one.what == "job"), default=None, key=lambda one: one.until
    ) or min(refusals, key=lambda one: one.until)
    at = time.strftime("%H:%M:%S", time.localtime(first.until))
    why = f"Slurm did not start it ({first.reason}); tried again after {at}"
    return replace(job, startable=False), why
