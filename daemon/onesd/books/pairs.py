"""Pairs of jobs on one GPU: what is expected of them, what they do, and when they are parted.

Who is with whom is read from Slurm, whatever was planned. A pair's speeds are those of its jobs'
reports, relative to what each would do alone by all that is known of it; a pair that was measured
teaches what the next ones are told. What parted a pair is remembered.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ones.daemon.config import SharingConfig
from ones.daemon.onesd.books.heard import Inbox
from ones.daemon.onesd.books.needs import FULL, NeedsBook
from ones.daemon.onesd.books.reports import fits
from ones.daemon.onesd.books.sharers import Sharers
from ones.daemon.onesd.books.store import Store
from ones.daemon.site import rules
from ones.daemon.wire import GpuSample, Report
from ones.estimator.interference import Alone, Interference, Measured
from ones.estimator.pairing import MOST, named, pairs_of
from ones.policies.model import Job, JobId, Pairs, Problem
from ones.policies.parting import OpenPair
from ones.policies.sharing import pair_of
from ones.slurm_ext.shards import Gpu, holders
from ones.slurm_ext.snapshot import Snapshot

log = logging.getLogger(__name__)
MEMORY = 1500  # measured pairs that onesd looks back on when it starts
SLOW, MEMORY_SHORT, GPU_FAULT, STRANGERS = "slow", "memory", "gpu", "strangers"
FAILED = ("FAILED", "OUT_OF_MEMORY")


@dataclass(slots=True)
class _Speeds:
    """What one job of a pair has reported since they met, relative to its speed alone."""

    heard: float = 0.0  # the last report that was looked at
    found: list[float] | None = None  # None before the first, which is of the time before, too


class SharingBook:
    """The tables `pairs` and `unshared`, and what they have taught."""

    def __init__(self, store: Store, inbox: Inbox, needs: NeedsBook, config: SharingConfig) -> None:
        self._store = store
        self._inbox = inbox
        self._sharers = Sharers(inbox, needs)
        self._config = config
        self.unknown: Mapping[JobId, str] = {}  # what is missing for a job to share a GPU
        self._expected: dict[tuple[JobId, JobId], tuple[float, float]] = {}
        self._speeds: dict[tuple[int, int], _Speeds] = {}  # pair, job
        rows = store.rows(
            "SELECT * FROM pairs WHERE first_speed IS NOT NULL ORDER BY at DESC LIMIT ?", MEMORY
        )
        self._model = Interference(_measured(row) for row in rows[::-1])

    def take(self, problem: Problem, snapshot: Snapshot, *, now: float) -> None:
        """Write down who shares a GPU with whom now, and how they do."""
        there = {job.id: job for job in problem.jobs}
        together = {
            gpu: (JobId(ids[0]), JobId(ids[1]))
            for gpu, ids in holders(snapshot.jobs).items()
            if len(ids) == 2 and all(JobId(one) in there for one in ids)
        }
        known = {}
        for row in self._open():
            jobs = (JobId(row["first"]), JobId(row["second"]))
            same = together.get((row["node"], row["gpu"])) == jobs and all(
                snapshot.jobs[int(id_)].restarts == row[f"{which}_restarts"]
                for id_, which in zip(jobs, ("first", "second"), strict=True)
            )
            if same:
                known[jobs] = row
            else:
                self._end(row, snapshot, now)
        for gpu, jobs in together.items():
            if jobs not in known:
                self._meet(gpu, jobs, problem, snapshot, now)
        for row in self._open():
            self._measure(row, problem, snapshot)
            if not row["parted"]:
                self._judge(row, problem, now)

    def pairs(self, problem: Problem, snapshot: Snapshot, *, now: float) -> Pairs:
        """Who may share a GPU, and what is expected of them."""
        if not self._config.allow:
            return {}
        cards = self._sharers.cards(problem)
        able = self._sharers.able(problem, snapshot, self.closed(now))
        sharers = [self._sharers.sharer(job, problem, cards, now) for job in able[:MOST]]
        self.unknown = {one.job: one.unknown for one in sharers if one.unknown}
        parted = {
            named(row["first_family"], row["second_family"])
            for row in self._store.rows(
                "SELECT DISTINCT first_family, second_family FROM pairs"
                " WHERE parted LIKE ? OR parted LIKE ?",
                f"{SLOW}%",
                f"{MEMORY_SHORT}%",
            )
        }
        found = dict(pairs_of(sharers, cards, self._model, rules(self._config), parted=parted))
        for row in self._store.rows("SELECT DISTINCT first, second FROM pairs WHERE parted != ''"):
            found.pop(pair_of(row["first"], row["second"]), None)
        for row in self._open():
            if not row["parted"] and row["first_expected"] is not None:
                both = JobId(row["first"]), JobId(row["second"])
                found[both] = (row["first_expected"], row["second_expected"])
        if len(self._expected) > MOST**2:
            self._expected.clear()
        self._expected |= found
        return found

    def together(self) -> list[OpenPair]:
        """The pairs that share a GPU now, and which of them must not go on."""
        return [
            OpenPair(
                first=JobId(row["first"]),
                second=JobId(row["second"]),
                since=row["at"],
                parted=_words(row["parted"]),
            )
            for row in self._open()
        ]

    def view(self, only: frozenset[int] | None = None) -> list[dict[str, Any]]:
        """For people: the pairs there are and were, the latest first; `only` with these jobs."""
        rows = self._store.rows(
            "WITH own AS (SELECT value FROM json_each(?1)) SELECT * FROM pairs"
            " WHERE ?1 IS NULL OR first IN own OR second IN own"
            " ORDER BY ended IS NOT NULL, at DESC LIMIT 200",
            None if only is None else json.dumps(sorted(only)),
        )
        return [
            {
                "first": row["first"],
                "second": row["second"],
                "node": row["node"],
                "gpu": row["gpu"],
                "since": row["at"],
                "ended": row["ended"],
                "expected": [row["first_expected"], row["second_expected"]],
                "measured": [row["first_speed"], row["second_speed"]],
                "parted": _words(row["parted"]),
            }
            for row in rows
        ]

    def closed(self, now: float) -> dict[Gpu, str]:
        """GPUs that are not shared for now, with why."""
        rows = self._store.rows(
            "SELECT * FROM unshared WHERE at > ?", now - self._config.rest_after_fault
        )
        return {(row["node"], row["gpu"]): row["why"] for row in rows}

    def _open(self) -> list[sqlite3.Row]:
        return self._store.rows("SELECT * FROM pairs WHERE ended IS NULL ORDER BY id")

    def _meet(
        self,
        gpu: Gpu,
        both: tuple[JobId, JobId],
        problem: Problem,
        snapshot: Snapshot,
        now: float,
    ) -> None:
        jobs = {job.id: job for job in problem.jobs}
        cards = self._sharers.cards(problem)
        sharers = [self._sharers.sharer(jobs[id_], problem, cards, now) for id_ in both]
        # As it was when they were put together; else, after a restart of onesd, as it is now.
        pairs = pairs_of(sharers, cards, self._model, rules(self._config))
        expected = self._expected.get(both) or pairs.get(both)
        sample = self._sample(gpu, both)
        node, index = gpu
        row: dict[str, Any] = {"at": now, "node": node, "gpu": index}
        for which, id_, sharer in zip(("first", "second"), both, sharers, strict=True):
            row |= {
                which: int(id_),
                f"{which}_restarts": snapshot.jobs[int(id_)].restarts,
                f"{which}_family": sharer.alone.model,
                f"{which}_batch": sharer.alone.batch,
                f"{which}_busy": sharer.alone.busy,
            }
        if expected is not None:
            row |= {"first_expected": expected[0], "second_expected": expected[1]}
        else:
            row["parted"] = f"{STRANGERS}: they were not to meet on one GPU"
        row["xid"] = sample.xid if sample else None
        self._store.put("pairs", [row])
        log.info("jobs %d and %d share GPU %d of %s", *both, index, node)

    def _end(self, row: sqlite3.Row, snapshot: Snapshot, now: float) -> None:
        """One of both is gone: for want of memory, perhaps."""
        for which, other in (("first", "second"), ("second", "first")):
            record = snapshot.jobs.get(row[which])
            same = record is not None and record.restarts == row[f"{which}_restarts"]
            if record is None or not same or record.state not in FAILED or row["parted"]:
                continue
            if row["most_memory"] >= FULL:
                why = f"job {row[which]} ran out of memory beside job {row[other]}"
                self._close((row["node"], row["gpu"]), why, now)
                self._part(row, f"{MEMORY_SHORT}: {why}")
        self._store.write("UPDATE pairs SET ended = ? WHERE id = ?", now, row["id"])
        for which in ("first", "second"):
            self._speeds.pop((row["id"], row[which]), None)

    def _measure(self, row: sqlite3.Row, problem: Problem, snapshot: Snapshot) -> None:
        jobs, reports = {job.id: job for job in problem.jobs}, self._inbox.reports()
        counts = []
        for which in ("first", "second"):
            number = row[which]
            speeds = self._speeds.setdefault((row["id"], number), _Speeds())
            told, job = reports.get(number), jobs.get(JobId(number))
            record = snapshot.jobs.get(number)
            counts.append(speeds)
            if told is None or job is None or not fits(told, record):
                continue
            if told.received.at <= max(speeds.heard, row["at"]):
                continue
            speeds.heard = told.received.at
            if speeds.found is None:
                speeds.found = []
                continue
            speed = _relative(told.received.message, job, problem)
            if speed is not None:
                speeds.found.append(speed)
        least = self._config.reports
        if all(one.found is not None and len(one.found) >= least for one in counts):
            found = [median((one.found or [])[-least:]) for one in counts]
            self._store.write(
                "UPDATE pairs SET first_speed = ?, second_speed = ? WHERE id = ?",
                *found,
                row["id"],
            )
            if row["first_speed"] is None:
                self._learn(row["id"])

    def _learn(self, number: int) -> None:
        row = self._store.row("SELECT * FROM pairs WHERE id = ?", number)
        if row is not None:
            self._model.learn(_measured(row))

    def _judge(self, before: sqlite3.Row, problem: Problem, now: float) -> None:
        """Whether the pair must be parted; what is written down is acted upon in this round."""
        row = self._store.row("SELECT * FROM pairs WHERE id = ?", before["id"])
        if row is None:
            return
        gpu = (row["node"], row["gpu"])
        sample = self._sample(gpu, (JobId(row["first"]), JobId(row["second"])))
        if sample is not None and sample.xid is not None and sample.xid != row["xid"]:
            self._close(gpu, f"XID {sample.xid}", now)
            self._part(row, f"{GPU_FAULT}: XID {sample.xid} on GPU {row['gpu']} of {row['node']}")
            return
        used = _filled(sample)
        if used is not None:
            self._store.write(
                "UPDATE pairs SET most_memory = max(most_memory, ?) WHERE id = ?", used, row["id"]
            )
            room = 1.0 - self._config.spare_memory
            if used > room:
                self._part(
                    row, f"{MEMORY_SHORT}: they use {used:.0%} of its memory, expected {room:.0%}"
                )
                return
        for which in ("first", "second"):
            expected, speed = row[f"{which}_expected"], row[f"{which}_speed"]
            if None in (expected, speed) or speed >= self._config.tolerance * expected:
                continue
            self._part(
                row,
                f"{SLOW}: job {row[which]} runs at {speed:.0%} of its speed alone,"
                f" expected {expected:.0%}",
            )
            return

    def _part(self, row: sqlite3.Row, why: str) -> None:
        self._store.write("UPDATE pairs SET parted = ? WHERE id = ?", why, row["id"])
        log.warning("jobs %d and %d are separated: %s", row["first"], row["second"], _words(why))

    def _close(self, gpu: Gpu, why: str, now: float) -> None:
        node, index = gpu
        self._store.put("unshared", [{"node": node, "gpu": index, "at": now, "why": why}])
        log.warning("GPU %d of %s is not shared any more: %s", index, node, why)

    def _sample(self, gpu: Gpu, both: Sequence[JobId]) -> GpuSample | None:
        """What the agent says of the GPU: where it sees one of both jobs, else by its number."""
        heard = self._inbox.nodes().get(gpu[0])
        gpus = heard[1].gpus if heard else ()
        for sample in gpus:
            if not {*map(int, both)}.isdisjoint(sample.jobs):
                return sample
        return next((sample for sample in gpus if sample.minor == gpu[1]), None)


def _relative(report: object, job: Job, problem: Problem) -> float | None:
    """A reported speed relative to what is known of the job's speed alone; None: not known."""
    outlook = problem.outlooks[job.id]
    if not isinstance(report, Report) or not report.step_seconds or not report.batch:
        return None
    if outlook.points == 0 or job.placement is None:
        return None
    node = problem.by_name.get(job.placement.nodes[0])
    if node is None:
        return None
    one, batch = np.array([1]), np.array([float(report.batch)])
    alone = float(outlook.speed.step_seconds(node.gpu_type, one, one, batch)[0])
    return alone / report.step_seconds if np.isfinite(alone) and alone > 0 else None


def _filled(sample: GpuSample | None) -> float | None:
    """The share of a GPU's memory that is in use."""
    if sample is None or sample.memory_used is None or not sample.memory_total:
        return None
    return sample.memory_used / sample.memory_total


def _measured(row: sqlite3.Row) -> Measured:
    first, second = (
        Alone(model=row[f"{which}_family"], batch=row[f"{which}_batch"], busy=row[f"{which}_busy"])
        for which in ("first", "second")
    )
    return Measured(first=first, second=second, speeds=(row["first_speed"], row["second_speed"]))


def _words(parted: str) -> str:
    """The reason without the word that it is filed under."""
    return parted.partition(": ")[2]
