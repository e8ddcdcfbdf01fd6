"""What onesd shows: pure readings of the last published round and the database, ready for JSON.

Every answer carries `meta` with the schema's version; fields are only ever added to a version.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from ones.daemon import filling, needs
from ones.daemon.published import Round
from ones.policies.forecast import by_name, own_batch, seconds_left
from ones.policies.model import Job, Outlook, Placement, Problem
from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.live_moves import ORDERS_A_MOVE
from ones.slurm_ext.shards import beside, gpus_held

if TYPE_CHECKING:
    from ones.daemon.controller import Controller

SCHEMA = 1
Json = dict[str, Any]


class NotKnown(OnesError):
    """Asked for something that does not exist, or that the asker may not see."""


def _answer(**parts: Any) -> Json:
    return {"meta": {"schema": SCHEMA, "version": version("ones-slurm")}, **parts}


def _round(last: Round) -> Json:
    return {
        "number": last.number,
        "at": last.at,
        "seconds": last.seconds,
        "outcome": last.outcome,
    }


def status(controller: Controller) -> Json:
    """The cluster and the daemon at a glance."""
    last, now = controller.published, controller.clock()
    listed = nodes(controller)["nodes"]
    running = [job for job in last.jobs if job.placement]
    silent = [node["node"] for node in listed if node["note"]]
    problems = [f"{fold(silent)}: not used for new work ({listed_notes(listed)})"] if silent else []
    problems += [f"job {job}: {why}" for job, why in sorted(last.ignored.items())]
    if controller.paused:
        problems.append(f"paused by {controller.paused['by']}: {controller.paused['reason']}")
    if now - last.at > 3 * controller.config.round:
        problems.append(f"no round for {now - last.at:.0f} s: {controller.trouble or 'starting'}")
    return _answer(
        mode=controller.config.mode,
        paused=bool(controller.paused),
        policy=controller.config.policy,
        admission=controller.config.admission,
        reader=controller.reader.name,
        round=_round(last),
        gpus={
            "total": sum(node["gpus"] for node in listed),
            "elastic": sum(node["elastic"] for node in listed),
            "other": sum(node["other"] for node in listed),
            "free": sum(node["free"] for node in listed if not node["note"]),
            "unusable": sum(node["free"] for node in listed if node["note"]),
        },
        jobs={
            "running": len(running),
            "waiting": len(last.jobs) - len(running),
            "moving": len(controller.open_moves()),
        },
        problems=problems,
    )


def listed_notes(listed: list[Json]) -> str:
    """The different reasons among nodes, each once."""
    return "; ".join(sorted({node["note"] for node in listed if node["note"]}))


def jobs(controller: Controller, only: str | None) -> Json:
    """The elastic jobs that Slurm lists as pending or running."""
    last = controller.published
    moving = {move.job: move for move in controller.open_moves()}
    counts = {
        row["job"]: row["n"]
        for row in controller.store.rows("SELECT job, count(*) AS n FROM moves GROUP BY job")
    }
    reports = controller.inbox.reports()
    together = beside(last.snapshot.jobs)
    outlooks = last.problem.outlooks if last.problem else {}
    listed = []
    for job in last.jobs:
        if only is not None and job.user != only:
            continue
        told = reports.get(int(job.id))
        report = told.received.message if told else None
        move = moving.get(int(job.id))
        record = last.snapshot.jobs[int(job.id)]
        others = sorted(together.get(int(job.id), ()))
        shares = f"shares its GPU with job {', '.join(map(str, others))}" if others else ""
        if job.placement is None and job.id in controller.sharing.unknown:
            shares = f"shares no GPU yet: nobody knows {controller.sharing.unknown[job.id]}"
        note = f"{move.kind}: {move.step}" if move else (job.fixed or last.notes.get(job.id, ""))
        listed.append(
            {
                "job": int(job.id),
                "name": job.name,
                "user": job.user,
                "account": job.account,
                "state": record.state,
                "sizes": str(job.sizes),
                "requested": job.requested,
                "gpus": sum(record.held_on.values()),
                "nodes": fold(sorted(record.held_on)) if record.satellites else record.nodes,
                "satellites": len(record.satellites),
                "live": job.keeps is not None,
                "batch": getattr(report, "batch", None) or job.batch,
                "samples": getattr(report, "samples", None),
                "total_samples": getattr(report, "total_samples", None),
                "loss": getattr(report, "loss", None),
                "samples_per_second": getattr(report, "samples_per_second", None),
                "speed_error": outlooks[job.id].speed_error if job.id in outlooks else None,
                "submitted": job.submitted,
                "waited": job.waited,
                "moves": counts.get(int(job.id), 0),
                "moving": f"{move.kind}" if move else None,
                "beside": others,
                "note": "; ".join(filter(None, (shares, note))),
            }
        )
    return _answer(jobs=listed)


def sharing(controller: Controller, only: str | None) -> Json:
    """Who shares a GPU with whom, and did: what was expected, what came of it."""
    own = None
    if only is not None:
        rows = controller.store.rows("SELECT job FROM jobs WHERE user = ?", only)
        own = {row["job"] for row in rows}
    closed = controller.sharing.closed(controller.clock()) if only is None else {}
    return _answer(
        allowed=controller.config.sharing.allow,
        pairs=controller.sharing.view(own),
        closed=[
            {"node": node, "gpu": gpu, "why": why} for (node, gpu), why in sorted(closed.items())
        ],
    )


def job(controller: Controller, number: int, only: str | None) -> Json:
    """One job's life: every run with its size, as Slurm's accounting has it, and what began it."""
    known = _visible(controller, number, only)
    controller.refresh_runs([number])
    moves = [
        json.loads(row["record"]) | {"at": row["at"]}
        for row in controller.store.rows(
            "SELECT at, record FROM moves WHERE job = ? ORDER BY id", number
        )
    ]
    starts = {
        move["restarts"] + (move["kind"] == "resize"): move
        for move in moves
        if move["kind"] in ("start", "resize") and move["outcome"] == "done"
    }
    preempts = {
        move["restarts"]: move
        for move in moves
        if move["kind"] == "preempt" and move["outcome"] == "done"
    }
    orders = {move["id"]: move["reason"] for move in moves if move["kind"] == "live"}
    now = controller.clock()
    runs = []
    earlier = _earlier(controller, number, moves)
    for row in controller.store.rows("SELECT * FROM runs WHERE job = ? ORDER BY ordinal", number):
        ordinal = row["ordinal"]
        move = starts.get(ordinal)
        stopped = preempts.get(ordinal)
        reason = move["reason"] if move else "started by Slurm"
        if stopped:
            reason += f"; preempted: {stopped['reason']}"
        runs.append(
            {
                "run": ordinal,
                "started": row["started"],
                "ended": row["ended"],
                "elapsed": (row["ended"] or now) - row["started"],
                "gpus": row["gpus"],
                "nodes": row["nodes"],
                "state": row["state"],
                "earlier": earlier.get(ordinal, []),
                "move": move["kind"] if move else None,
                "reason": reason,
            }
        )
    satellites = [
        {
            "satellite": row["job"],
            "run": row["restarts"],
            "started": row["started"],
            "ended": row["ended"],
            "elapsed": (row["ended"] or now) - row["started"] if row["started"] else 0.0,
            "gpus": row["gpus"],
            "nodes": row["nodes"],
            "state": row["state"],
            "reason": orders.get(row["ordered"] // ORDERS_A_MOVE, ""),
        }
        for row in controller.store.rows(
            "SELECT * FROM satellites WHERE base = ? ORDER BY job", number
        )
    ]
    refused = [
        {"at": move["at"], "kind": move["kind"], "outcome": move["outcome"]}
        for move in moves
        if move["outcome"] not in ("", "done")
    ]
    report = controller.store.row("SELECT report FROM reports WHERE job = ?", number)
    fills = _fills(controller, number)
    return _answer(
        job={**known, "report": json.loads(report["report"]) if report else None},
        runs=runs,
        satellites=satellites,
        gpu_seconds=sum(_gpu_seconds(each) for each in (*runs, *satellites)),
        moves=moves,
        refused=refused,
        staged=controller.staging.told(number),
        requests=[{**row, "words": filling.words(row)} for row in fills],
    )


def _earlier(controller: Controller, number: int, moves: list[Json]) -> dict[int, list[Json]]:
    """Run -> what it held until it gave back nodes of its own allocation, or lost them."""
    given = {(move["restarts"], node) for move in moves for node in move.get("given", ())}
    rows = controller.store.rows(
        "SELECT s.*, r.nodes AS last FROM shrinks s JOIN runs r USING(job, ordinal)"
        " WHERE job = ? ORDER BY ordinal, until",
        number,
    )
    found: dict[int, list[Json]] = {}
    for row, following in zip_longest(rows, rows[1:]):
        run = row["ordinal"]
        same = following is not None and following["ordinal"] == run
        after = expand(following["nodes"] if same else row["last"])
        gone = [node for node in expand(row["nodes"]) if node not in after]
        back = all((run, node) in given for node in gone)
        held = {"until": row["until"], "nodes": row["nodes"], "gpus": row["gpus"]}
        why = f"{fold(gone)} was {'given back' if back else 'lost'}"
        found.setdefault(run, []).append({**held, "why": why})
    return found


def _gpu_seconds(run: Json) -> float:
    """Of a run or a satellite; `gpus` is what it held last."""
    total, since = 0.0, run["started"] or 0.0
    end = since + run["elapsed"]
    for held in run.get("earlier", ()):
        total += held["gpus"] * (held["until"] - since)
        since = held["until"]
    return float(total + run["gpus"] * (end - since))


def _fills(controller: Controller, number: int) -> list[Json]:
    """What onesd wrote into the job's request, start by start."""
    rows = controller.store.rows("SELECT * FROM fills WHERE job = ? ORDER BY restarts", number)
    return [dict(row) for row in rows]


def _visible(controller: Controller, number: int, only: str | None) -> Json:
    row = controller.store.row("SELECT * FROM jobs WHERE job = ?", number)
    # The same words for both cases: an answer must not tell whose jobs exist.
    if row is None or (only is not None and row["user"] != only):
        raise NotKnown(f"job {number} is no elastic job of yours; see onesctl jobs")
    return dict(row)


def nodes(controller: Controller) -> Json:
    """The GPU nodes, who holds their GPUs, and what their agents say."""
    last, heard, now = controller.published, controller.inbox.nodes(), controller.clock()
    ours = [job for job in last.snapshot.jobs.values() if job.marked or job.is_satellite]
    elastic = gpus_held(ours)
    listed = []
    for node in sorted(last.snapshot.nodes.values(), key=lambda node: node.name):
        if not node.gpus:
            continue
        at, report = heard.get(node.name, (None, None))
        samples = [gpu for gpu in report.gpus if gpu.healthy] if report else []
        busy = [gpu.utilization for gpu in samples if gpu.utilization is not None]
        used = [
            gpu.memory_used / gpu.memory_total
            for gpu in samples
            if gpu.memory_used is not None and gpu.memory_total
        ]
        mine = elastic.get(node.name, 0)
        listed.append(
            {
                "node": node.name,
                "type": node.gpu_type,
                "gpus": node.gpus,
                "elastic": mine,
                "other": max(0, node.gpus_used - mine),
                "free": node.gpus - node.gpus_used,
                "utilization": sum(busy) / len(busy) if busy else None,
                "memory": sum(used) / len(used) if used else None,
                "silent_s": None if at is None else now - at,
                "note": controller.unusable(node),
            }
        )
    return _answer(nodes=listed)


def plan(controller: Controller, only: str | None) -> Json:
    """What the last round decided for every job, and what became of it."""
    last = controller.published
    users = {job.id: job.user for job in last.jobs}
    return _answer(
        round=_round(last),
        mode=controller.config.mode,
        gap=last.gap,
        decisions=[
            {
                "job": int(decision.job),
                "kind": decision.kind,
                "gpus": decision.gpus,
                "target": _target(decision.target),
                "batch": decision.batch,
                "reason": decision.reason,
                "verdict": decision.verdict,
            }
            for decision in last.decisions
            if only is None or users.get(decision.job) == only
        ],
    )


def policy(controller: Controller) -> Json:
    """The policy in force, its settings, and where it comes from."""
    return _answer(**controller.choice.view())


def _target(placement: Placement | None) -> str | None:
    if placement is None:
        return None
    shape = placement.shape
    return f"{placement.gpus} on {fold(placement.nodes)}" + (f" ({shape})" if shape else "")


def estimate(controller: Controller, question: needs.Question, only: str | None) -> Json:
    """What a job will need, by what others of its name have used."""
    try:
        return _answer(**needs.answer(controller.needs, question, only))
    except needs.NothingKnown as fault:
        raise NotKnown(str(fault)) from None


def report_needs(controller: Controller, only: str | None) -> Json:
    """What runs asked for and used, by user and account."""
    return _answer(users=controller.needs.report(only))


def explain(controller: Controller, number: int, only: str | None) -> Json:
    """Why a job has the size it has: the last decisions about it and the evidence behind them."""
    known = _visible(controller, number, only)
    last = controller.published
    found = [job for job in last.jobs if int(job.id) == number]
    lines = [f"job {number} ({known['name']}): {known['state']}, sizes {known['sizes']}"]
    if not found:
        lines.append("it is neither pending nor running now; its history: onesctl job")
        return _answer(lines=lines, sizes=[])
    this = found[0]
    if this.fixed:
        lines.append(f"it is not moved: {this.fixed}")
    decided = [decision for decision in last.decisions if decision.job == this.id]
    lines += [f"{d.kind}: {d.reason}; {d.verdict}" for d in decided]
    if not decided:
        lines.append(last.notes.get(this.id, "the plan leaves it as it is"))
    for move in controller.open_moves():
        if int(move.job) == number:
            lines.append(f"under way: {move.kind}, step {move.step}: {move.reason}")
    lines += [filling.words(row) for row in _fills(controller, number)[-1:]]
    if staged := controller.staging.told(number):
        lines.append(staged)
    outlook = last.problem.outlooks.get(this.id) if last.problem else None
    if outlook is None or last.problem is None:
        return _answer(lines=lines, sizes=[])
    lines.append(
        f"believed: {outlook.remaining:.0f} samples to go of"
        f" {outlook.processed + outlook.remaining:.0f}, from {outlook.points} speed measurements"
        f" (step time known to {_within(outlook.speed_error)}{_by_type(outlook)});"
        f" a restart costs {outlook.restart_cost:.0f} s"
        + ("" if outlook.live_cost is None else f", a live resize {outlook.live_cost:.0f} s")
    )
    return _answer(lines=lines, sizes=_speeds(this, outlook, last.problem))


def _within(error: float) -> str:
    """A standard error of a logarithm in words: 0.1 is about 10 %."""
    return f"{100 * np.expm1(error):.0f} %"


def _by_type(outlook: Outlook) -> str:
    parts = [f"{kind} {_within(error)}" for kind, error in sorted(outlook.type_errors.items())]
    return f": {', '.join(parts)}" if parts else ""


def _speeds(job: Job, outlook: Outlook, problem: Problem) -> list[Json]:
    """The believed speed at each size, with the batch that the job has now."""
    nodes = by_name(problem.nodes)
    there = job.placement.nodes if job.placement else sorted(job.nodes)
    gpu_type = next((nodes[name].gpu_type for name in there if name in nodes), "")
    batch = own_batch(job, outlook)
    listed: list[Json] = []
    for gpus in job.sizes:
        shapes = [shape for shape in job.shapes if shape.gpus == gpus]
        if not shapes:
            listed.append({"gpus": gpus, "note": "no allocation can promise this size here"})
            continue
        left = seconds_left(
            job,
            outlook,
            gpu_type,
            nodes=np.array([min(shapes).nodes]),
            gpus=np.array([gpus]),
            batch=np.array([batch]),
        )
        listed.append(
            {
                "gpus": gpus,
                "batch": batch,
                "samples_per_second": outlook.remaining / float(left[0]),
                "time_left": float(left[0]),
                "note": "now" if job.placement and job.placement.gpus == gpus else "",
            }
        )
    return listed
