"""What the page shows of a round: one part that is the same for everybody, one for each viewer.

Whoever holds which GPU stands in the rows of the jobs, so that a user is told of his own alone.
What jobs wait for stands in a table of its own: it changes from round to round, and thousands of
jobs wait for the same.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ones.daemon.onesd.doors import views
from ones.daemon.onesd.doors.discreet import Discreet
from ones.daemon.onesd.outcome import Round
from ones.daemon.onesd.page.events import Events
from ones.daemon.onesd.page.history import History
from ones.daemon.onesd.page.parts import Json, Part
from ones.daemon.onesd.service import Service
from ones.daemon.web.readable import all_readable, readable
from ones.policies.catalogue import OFFERS
from ones.slurm_ext.snapshot import OUT_OF_SERVICE

log = logging.getLogger(__name__)
LONGEST_NAME = 80  # characters of a job's name that are sent
MOST_EVENTS = 300  # for one page
SHARES_OVER = 86400.0  # seconds over which the shares of users are added up ...
SHARES_EVERY = 60.0  # ... and after which that is done again
Whose = tuple[str, str]  # user and account
IDLE = 0.05  # of its time a GPU works less: it is idle


class _AfterRound:
    """onesd as the views see it, with this last round, whichever end while they are drawn."""

    def __init__(self, service: Service, last: Round) -> None:
        self._service = service
        self.published = last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


@dataclass(frozen=True, slots=True)
class Outline:
    """The cluster after a round, which is the same for all; soon drawn, even if the cluster is
    large."""

    service: Service  # after that round
    common: Part
    listed: list[Json]  # the nodes, as views.nodes has them


@dataclass(frozen=True, slots=True)
class Picture:
    """A round, ready to be shown; the rows that belong to somebody with whose they are."""

    outline: Outline
    mine: Mapping[str, Mapping[str, tuple[str, Json]]]  # table -> key -> whose, row
    reasons: Mapping[str, Json]
    missing: Mapping[str, tuple[str, str]]  # job -> whose, why it can't be shown


_TEXTS = {  # of a table's rows, that may tell of another's job
    "plan": ("reason", "verdict"),
    "reasons": ("why",),
    "events": ("reason", "outcome"),
}


def _told(row: Json, discreet: Discreet, texts: tuple[str, ...]) -> Json:
    return row | {name: discreet.text(row[name]) for name in texts}


class _Reasons:
    """What is told of jobs, each text once."""

    def __init__(self) -> None:
        self.rows: dict[str, Json] = {}
        self._keys: dict[tuple[str, float | None], str] = {}
        self._alike = Counter[str]()

    def key(self, why: str, at: float | None) -> str:
        """Under which it stands in `rows`: one that a text keeps from round to round, though the
        job and the time in it become others."""
        at = at and 60 * (at // 60)  # the minute that it is in, as the words have it
        if (why, at) not in self._keys:
            # Users are sent keys as they are: none may name another's job.
            need = re.sub(r"\bjob \d+", "job", readable(why.partition(";")[0]))
            self._alike[need] += 1
            key = self._keys[why, at] = f"{self._alike[need]} {need}"
            self.rows[key] = {"why": readable(why), "at": at}
        return self._keys[why, at]


class Rendering:
    """Renders one round after the other; one call at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._history = History()
        self._events = Events()
        self._taken = 0  # the last round that history and events know
        self._shares: tuple[float, list[Json]] = (float("-inf"), [])
        self._missing: Mapping[str, tuple[str, str]] = {}  # of the last round

    def take(self) -> None:
        """Remember the last round, whether anybody looks or not."""
        last = self._service.published
        if last.number != self._taken:
            self._taken = last.number
            self._history.take(last)
            self._events.take(self._service.books, last)

    def outline(self) -> Outline:
        """The last round, in so far as it is the same for everybody."""
        self.take()
        last = self._service.published
        service = cast(Service, _AfterRound(self._service, last))
        nodes = views.nodes(service)["nodes"]
        common = Part(
            tables={"nodes": self._nodes(last, nodes), "history": self._history.chart()},
            values={"cluster": all_readable(self._cluster(service, nodes))},
        )
        return Outline(service, common, nodes)

    def picture(self, outline: Outline) -> Picture:
        """The same round whole."""
        service = outline.service
        last = service.published
        reasons = _Reasons()
        plan = views.plan(service, None)["decisions"]
        users = {int(job.id): job.user for job in last.jobs}
        shown, missing = self._jobs(last, views.jobs(service, None)["jobs"], reasons)
        mine = {
            "jobs": shown,
            "plan": {
                f"{row['job']}:{at}": (users.get(row["job"], ""), all_readable(row))
                for at, row in enumerate(plan[: len(users) + 1000])
            },
            "shares": {
                readable(f"{row['account']}/{row['user']}"): (row["user"], all_readable(row))
                for row in self._shares_of(service)
            },
        }
        return Picture(outline, mine, reasons.rows, missing)

    def for_viewer(self, picture: Picture, only: str | None) -> Part:
        """What one user may see beside the common part; None: an operator, who may see all."""
        tables: dict[str, Mapping[str, Any]] = {}
        for name, rows in picture.mine.items():
            tables[name] = {
                key: row for key, (whose, row) in rows.items() if only is None or whose == only
            }
        told = {row["reason"] for row in tables["jobs"].values()}
        tables["reasons"] = {key: row for key, row in picture.reasons.items() if key in told}
        events = self._events.of(only, most=MOST_EVENTS)
        tables["events"] = {key: all_readable(row) for key, row in events.items()}
        if only is not None:
            discreet = Discreet(picture.outline.service, only)
            for name in _TEXTS.keys() & tables.keys():
                tables[name] = {
                    key: _told(row, discreet, _TEXTS[name]) for key, row in tables[name].items()
                }
        problems = views.problems(picture.outline.service, only, picture.outline.listed)
        problems += [why for whose, why in picture.missing.values() if only in (None, whose)]
        values: Json = {"problems": all_readable(problems)}
        if only is None:
            values["policies"] = [name for name, offer in OFFERS.items() if offer.usual]
        return Part(tables, values)

    def _cluster(self, service: Service, nodes: list[Json]) -> Json:
        last = service.published
        paused = service.paused
        usable = [node for node in nodes if not node["note"]]
        moving = len(service.books.journal.moving())
        running = sum(job.placement is not None for job in last.jobs)
        return {
            "round": {
                "number": last.number,
                "at": last.at,
                "seconds": last.seconds,
                "outcome": last.outcome,
                "every": service.config.round,
            },
            "mode": service.config.mode,
            "paused": paused and {"by": paused.get("by"), "reason": paused.get("reason")},
            "policy": service.config.policy,
            "configured": service.policy.configured.policy,
            "version": views.VERSION,
            "gap": last.gap,
            "gpus": {
                "total": sum(node["gpus"] for node in nodes),
                "elastic": sum(node["elastic"] for node in nodes),
                "other": sum(node["other"] for node in nodes),
                "free": sum(node["free"] for node in usable),
                "unusable": sum(node["free"] for node in nodes if node["note"]),
                "idle": self._held_idle(nodes),
            },
            "segments": sorted(Counter(node["free"] for node in usable if node["free"]).items()),
            "jobs": {"running": running, "waiting": len(last.jobs) - running, "moving": moving},
            "gain": self._history.gain(),
        }

    def _held_idle(self, nodes: list[Json]) -> int | None:
        """GPUs that somebody holds and that do nothing; None where no agent says."""
        heard = self._service.books.heard.nodes()
        found, known = 0, False
        for node in nodes:
            if node["node"] not in heard:
                continue
            used = [gpu.utilization for gpu in heard[node["node"]][1].gpus if gpu.healthy]
            busy = [one for one in used if one is not None]
            known |= bool(busy)
            # Which GPUs of a node are free nobody says here; those that are do nothing.
            found += max(0, sum(one < IDLE for one in busy) - node["free"])
        return found if known else None

    def _nodes(self, last: Round, nodes: list[Json]) -> dict[str, Json]:
        heard = self._service.books.heard.nodes()
        found = {}
        for node in nodes:
            name = node["node"]
            record = last.snapshot.nodes[name]
            report = heard[name][1] if name in heard else None
            found[readable(name)] = {
                "switch": readable(next(iter(last.snapshot.switches.get(name, ())), "")),
                "type": readable(node["type"]),
                "gpus": node["gpus"],
                "elastic": node["elastic"],
                "other": node["other"],
                # In steps of 5 %: what does not change is not sent again.
                "busy": [
                    None
                    if gpu.utilization is None or not gpu.healthy
                    else 5 * round(20 * min(1.0, max(0.0, gpu.utilization)))
                    for gpu in (sorted(report.gpus, key=lambda gpu: gpu.minor) if report else ())
                ],
                "note": readable(node["note"]),
                "states": sorted(record.states & OUT_OF_SERVICE),
            }
        return found

    def _jobs(
        self, last: Round, rows: list[Json], reasons: _Reasons
    ) -> tuple[dict[str, tuple[str, Json]], dict[str, tuple[str, str]]]:
        """With whose they are: the jobs, and why those are left out that can't be shown."""
        shown, missing = {}, {}
        for row in rows:
            key = str(row["job"])
            try:
                shown[key] = row["user"], self._job(last, row, reasons)
            except Exception as fault:  # a bug, for which nobody else's jobs are to stand still
                missing[key] = row["user"], f"job {key} is not shown: {fault!r}"
                if key not in self._missing:
                    log.exception("job %s can't be shown on the page", key)
        self._missing = missing
        return shown, missing

    def _job(self, last: Round, row: Json, reasons: _Reasons) -> Json:
        record = last.snapshot.jobs[row["job"]]
        samples, total = row["samples"], row["total_samples"]
        speed = row["samples_per_second"]
        waits_for = row["waits_for"] or {}
        return {
            "job": row["job"],
            "name": readable(row["name"], longest=LONGEST_NAME),
            **{
                name: readable(str(row[name]))
                for name in ("user", "account", "partition", "state", "sizes", "nodes")
            },
            "asked": row["requested"],
            "gpus": row["gpus"],
            "on": {readable(node): gpus for node, gpus in sorted(record.held_on.items())},
            "live": row["live"],
            "batch": row["batch"],
            # To three digits: what hardly changes is not sent again.
            "done": round(min(1.0, samples / total), 3) if samples and total else None,
            "speed": float(f"{speed:.3g}") if speed else None,
            "submitted": row["submitted"],
            "waited": round(row["waited"]) if row["gpus"] else None,
            "moves": row["moves"],
            "moving": row["moving"],
            "reason": reasons.key(row["note"], waits_for.get("at")),
        }

    def _shares_of(self, service: Service) -> list[Json]:
        """What users and accounts had of the last day: runs that have ended, and those of now."""
        last, now = service.published, service.clock()
        since = now - SHARES_OVER
        at, ended = self._shares
        if not 0.0 <= now - at < SHARES_EVERY:  # before: the clock was set back
            ended = service.books.lives.shares(since)
            self._shares = now, ended
        past = {(row["user"], row["account"]): row for row in ended}
        held, waiting, seconds = Counter[Whose](), Counter[Whose](), Counter[Whose]()
        for job in last.jobs:
            whose, record = (job.user, job.account), last.snapshot.jobs[int(job.id)]
            waiting[whose] += job.placement is None
            for part in (record, *record.satellites):
                gpus = sum(part.gpus_on.values())
                held[whose] += gpus
                if gpus and part.started:
                    seconds[whose] += round(gpus * max(0.0, now - max(part.started, since)))
        found = []
        for user, account in sorted({*past, *waiting}):
            whose = user, account
            row = past.get(whose, {"gpu_seconds": 0.0, "jobs": 0, "waited": None})
            found.append(
                {
                    "user": user,
                    "account": account,
                    "gpu_hours": round((row["gpu_seconds"] + seconds[whose]) / 3600, 2),
                    "jobs": row["jobs"],
                    "waited": row["waited"] and round(row["waited"]),
                    "held": held[whose],
                    "waiting": waiting[whose],
                }
            )
        return found
