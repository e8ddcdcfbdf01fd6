"""What onesd shows: pure readings of the last published round and the database, ready for JSON.

Every answer carries `meta` with the schema's version; fields are only ever added to a version.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from ones.daemon.onesd.books import needs
from ones.daemon.onesd.books.jobs import pieces_of
from ones.daemon.onesd.books.lives import KnownJob
from ones.daemon.onesd.doors import gained, waiting
from ones.daemon.onesd.doors.discreet import Discreet
from ones.daemon.onesd.outcome import Round
from ones.policies.forecast import by_name, own_batch, seconds_left
from ones.policies.model import Job, Outlook, Placement, Problem
from ones.policies.sizes import in_gpus
from ones.policies.words import counted, lasting
from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.hostlists import expand, fold
from ones.slurm_ext.live_moves import ORDERS_A_MOVE
from ones.slurm_ext.reserved import oddities
from ones.slurm_ext.reserved import words as reservation_words
from ones.slurm_ext.shards import beside, gpus_held
from ones.slurm_ext.snapshot import JobRecord

if TYPE_CHECKING:
    from ones.daemon.config import EstimatorConfig
    from ones.daemon.onesd.service import Service
    from ones.daemon.wire import GpuSample

SCHEMA = 1
NO_ROUND = "no round has ended yet"
VERSION = version("ones-slurm")
LEAST_BUSY = 0.05  # of a GPU's time, below which it counts as idle
OLD_RUNS = 30.0  # seconds after which an answer says how old the runs are
STALE = 3  # rounds without success after which an answer says how old it is
Json = dict[str, Any]


class NotKnown(OnesError):
    """Asked for something that does not exist, or that the asker may not see."""


def _answer(**parts: Any) -> Json:
    return {"meta": {"schema": SCHEMA, "version": VERSION}, **parts}


def _round(last: Round) -> Json:
    return {
        "number": last.number,
        "at": last.at,
        "seconds": last.seconds,
        "outcome": last.outcome,
    }


def aged(controller: Service, **parts: Any) -> Json:
    """An answer from the last round, which says so where rounds have stopped."""
    last, now = controller.published, controller.clock()
    answer = _answer(**parts)
    answer["meta"]["as_of"] = last.at
    if last.number and now - last.at > STALE * controller.config.round:
        why = controller.trouble or "the round under way waits for Slurm"
        answer["meta"]["note"] = f"as it was {lasting(now - last.at)} ago: {why}"
    return answer


def status(controller: Service, only: str | None) -> Json:
    """The cluster and the daemon at a glance; other users' jobs are counted only."""
    last = controller.published
    listed = nodes(controller)["nodes"]
    running = [job for job in last.jobs if job.placement]
    return _answer(
        mode=controller.config.mode,
        paused=bool(controller.paused),
        policy=controller.config.policy,
        admission=controller.config.admission,
        reader=controller.cluster.name,
        controllers=controllers(controller),
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
            "moving": len(controller.books.journal.moving()),
        },
        problems=problems(controller, only, listed),
    )


def controllers(controller: Service) -> Json | None:
    """Which of several onesd this one is, and since when; None where there is one alone."""
    if controller.term is None:
        return None
    return {"active": controller.term.record.address, "term": controller.term.number}


def problems(controller: Service, only: str | None, listed: list[Json]) -> list[str]:
    """What is not as it should be, in words; `listed` are the nodes as `nodes` shows them."""
    last, now = controller.published, controller.clock()
    records, told = last.snapshot.jobs, Discreet(controller, only)
    silent = [node["node"] for node in listed if node["note"]]
    found = [f"{fold(silent)}: not used for new work ({listed_notes(listed)})"] if silent else []
    seen = [job for job in sorted(last.ignored) if only is None or _user(records.get(job)) == only]
    found += [told.text(f"job {job}: {last.ignored[job]}") for job in seen]
    if hidden := len(last.ignored) - len(seen):
        found.append(f"{counted(hidden, 'job')} of other users can't be handled")
    left = [job for job in sorted(last.left_out) if only is None or _user(records.get(job)) == only]
    found += [told.text(f"job {job} left out: {last.left_out[job]}") for job in left]
    unsure = [job for job in sorted(last.doubts) if only is None or _user(records.get(job)) == only]
    found += [told.text(f"job {job}: {last.doubts[job]}") for job in unsure]
    if only is None:
        unread = sorted(last.snapshot.unread.items())
        found += [f"{what} left out: {why}" for what, why in unread]
    if last.disorder:
        found.append(f"Slurm's order of jobs: {last.disorder}")
    if only is None:
        found += last.unlimited
        found += oddities(last.snapshot.reservations)
    if last.fault:
        found.append(f"no plan in the last round: {last.fault}")
    if controller.paused:
        found.append(f"paused by {controller.paused['by']}: {controller.paused['reason']}")
    if not last.number:
        found.append(f"{NO_ROUND}: {controller.trouble or 'the first one is under way'}")
    elif now - last.at > STALE * controller.config.round:
        found.append(f"no round for {lasting(now - last.at)}: {controller.trouble or 'starting'}")
    return found


def _user(record: JobRecord | None) -> str | None:
    return None if record is None else record.user


def listed_notes(listed: list[Json]) -> str:
    """The different reasons among nodes, each once."""
    return "; ".join(sorted({node["note"] for node in listed if node["note"]}))


def jobs(controller: Service, only: str | None) -> Json:
    """The elastic jobs that Slurm lists as pending or running."""
    last = controller.published
    shown = [job for job in last.jobs if only is None or job.user == only]
    told_to = Discreet(controller, only)
    numbers = [int(job.id) for job in shown]
    moving = {move.job: move for move in controller.open_moves(numbers)}
    counts = controller.books.journal.counts(numbers)
    reports = controller.books.heard.reports()
    together = beside(last.snapshot.jobs)
    waits = waiting.Waits(last, controller.clock())
    outlooks = last.problem.outlooks if last.problem else {}
    listed = []
    for job in shown:
        told = reports.get(int(job.id))
        report = told.received.message if told else None
        move = moving.get(int(job.id))
        record = last.snapshot.jobs[int(job.id)]
        others = sorted(together.get(int(job.id), ()))
        shares = " and ".join(f"job {other}" for other in others)
        shares = shares and f"shares its GPU with {shares}"
        if job.placement is None and job.id in controller.books.pairs.unknown:
            shares = f"shares no GPU yet: nobody knows {controller.books.pairs.unknown[job.id]}"
        found = waits.prospect(job)
        why = job.fixed or waits.why(job, found)
        gain = gained.of(last, job)
        note = f"{move.kind}: {move.step}" if move else why
        listed.append(
            {
                "job": int(job.id),
                "name": job.name,
                "user": job.user,
                "account": job.account,
                "partition": record.partition,
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
                "beside": [*filter(told_to.may_see, others)],
                "waits_for": waiting.as_json(last, found),
                "ends": gain.ends,
                "rigid_ends": gain.rigid_ends,
                "gained": gain.seconds,
                "note": told_to.text("; ".join(filter(None, (shares, note)))),
            }
        )
    return aged(controller, jobs=listed)


def sharing(controller: Service, only: str | None) -> Json:
    """Who shares a GPU with whom, and did: what was expected, what came of it.

    Of a pair with another user's job a user is told his own half.
    """
    own = None
    if only is not None:
        own = controller.books.lives.of_user(only)
    closed = controller.books.pairs.closed(controller.clock()) if only is None else {}
    told_to = Discreet(controller, only)
    return aged(
        controller,
        allowed=controller.config.sharing.allow,
        pairs=[
            {**_own_half(pair, own), "parted": told_to.text(pair["parted"])}
            for pair in controller.books.pairs.view(own)
        ],
        closed=[
            {"node": node, "gpu": gpu, "why": why} for (node, gpu), why in sorted(closed.items())
        ],
    )


def _own_half(pair: dict[str, Any], own: Container[int] | None) -> dict[str, Any]:
    """A pair without what is another's: None in its place. Where `own` is None, all is told."""
    if own is None:
        return pair
    told = {**pair, "expected": [*pair["expected"]], "measured": [*pair["measured"]]}
    for at, which in enumerate(("first", "second")):
        number = pair[which]
        if number not in own:
            told[which] = told["expected"][at] = told["measured"][at] = None
    return told


def job(
    controller: Service, number: int, only: str | None, refresh: Callable[[int], float | None]
) -> Json:
    """One job's life: every run with its size, as Slurm's accounting has it, and what began it.

    `refresh` reads the runs, where that is due, and says how old they are; None: not known.
    """
    known = visible(controller, number, only)
    age = refresh(number)
    moves = [*map(Discreet(controller, only).move, controller.books.journal.of_job(number))]
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
    for run in controller.books.lives.runs(number):
        move = starts.get(run.ordinal)
        stopped = preempts.get(run.ordinal)
        reason = move["reason"] if move else "started by Slurm"
        if stopped:
            reason += f"; preempted: {stopped['reason']}"
        runs.append(
            {
                "run": run.ordinal,
                "started": run.started,
                "ended": run.ended,
                "elapsed": (run.ended or now) - run.started,
                "gpus": run.gpus,
                "nodes": run.nodes,
                "state": run.state,
                "earlier": earlier.get(run.ordinal, []),
                "move": move["kind"] if move else None,
                "reason": reason,
            }
        )
    satellites = [
        {
            "satellite": one.job,
            "run": one.restarts,
            "started": one.started,
            "ended": one.ended,
            "elapsed": (one.ended or now) - one.started if one.started else 0.0,
            "gpus": one.gpus,
            "nodes": one.nodes,
            "state": one.state,
            "reason": orders.get(one.ordered // ORDERS_A_MOVE, ""),
        }
        for one in controller.books.lives.satellites(number)
    ]
    refused = [
        {"at": move["at"], "kind": move["kind"], "outcome": move["outcome"]}
        for move in moves
        if move["outcome"] not in ("", "done")
    ]
    answer = aged(
        controller,
        job={**asdict(known), "report": controller.books.reports.last(number)},
        course=controller.books.courses.of_job(number),
        runs=runs,
        satellites=satellites,
        gpu_seconds=sum(_gpu_seconds(each) for each in (*runs, *satellites)),
        moves=moves,
        refused=refused,
        staged=controller.books.stages.told(number),
        recoveries=_recoveries(controller, number),
        requests=_fills(controller, number),
    )
    if age is None or age > OLD_RUNS:
        when = "when onesd last read them" if age is None else f"{lasting(age)} ago"
        note = f"the runs are as they were {when}: Slurm's accounting does not answer"
        answer["meta"]["note"] = "; ".join(filter(None, (answer["meta"].get("note"), note)))
    return answer


def _earlier(controller: Service, number: int, moves: list[Json]) -> dict[int, list[Json]]:
    """Run -> what it held until it gave back nodes of its own allocation, or lost them."""
    given = {(move["restarts"], node) for move in moves for node in move.get("given", ())}
    shrinks = controller.books.lives.shrinks(number)
    found: dict[int, list[Json]] = {}
    for shrink, following in zip_longest(shrinks, shrinks[1:]):
        run = shrink.ordinal
        same = following is not None and following.ordinal == run
        after = expand(following.nodes if same else shrink.last)
        gone = [node for node in expand(shrink.nodes) if node not in after]
        back = all((run, node) in given for node in gone)
        held = {"until": shrink.until, "nodes": shrink.nodes, "gpus": shrink.gpus}
        why = f"{fold(gone)} was {'given back' if back else 'lost'}"
        found.setdefault(run, []).append({**held, "why": why})
    return found


def _gpu_seconds(run: Json) -> float:
    """Of a run or a satellite; `gpus` is what it held last."""
    since = run["started"] or 0.0
    earlier = ((held["until"], held["gpus"]) for held in run.get("earlier", ()))
    pieces = pieces_of(since, since + run["elapsed"], run["gpus"], earlier)
    return float(sum(gpus * (ended - started) for started, ended, gpus in pieces))


def _recoveries(controller: Service, number: int) -> list[Json]:
    """What the job says that it went on from where it had lost workers."""
    found = controller.books.recoveries.of_job(number)
    return [{**asdict(each), "words": each.words()} for each in found]


def _fills(controller: Service, number: int) -> list[Json]:
    """What onesd wrote into the job's request, start by start."""
    fills = controller.books.fills.of_job(number)
    return [{**asdict(fill), "words": fill.words()} for fill in fills]


def visible(controller: Service, number: int, only: str | None) -> KnownJob:
    """A job that he who asks may see. Raises NotKnown."""
    known = controller.books.lives.job(number)
    # The same words for both cases: an answer must not tell whose jobs exist.
    if known is None or (only is not None and known.user != only):
        raise NotKnown(f"job {number} is not one of your elastic jobs; see onesctl jobs")
    return known


def nodes(controller: Service) -> Json:
    """The GPU nodes, who holds their GPUs, and what their agents say."""
    last, heard, now = controller.published, controller.books.heard.nodes(), controller.clock()
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
                "idle": None if report is None else _idle(node.gpus_used, report.gpus),
                "utilization": sum(busy) / len(busy) if busy else None,
                "memory": sum(used) / len(used) if used else None,
                "silent_s": None if at is None else now - at,
                "note": controller.unusable(node),
            }
        )
    return aged(controller, nodes=listed)


def _idle(held: int, gpus: Sequence[GpuSample]) -> int:
    """How many of the GPUs that jobs hold do nothing, by the agent's last sample."""
    busy = sum(gpu.utilization is None or gpu.utilization >= LEAST_BUSY for gpu in gpus)
    return max(0, held - busy)


def plan(controller: Service, only: str | None) -> Json:
    """What the last round decided for every job, and what became of it."""
    last = controller.published
    users, told_to = {job.id: job.user for job in last.jobs}, Discreet(controller, only)
    return aged(
        controller,
        round=_round(last),
        mode=controller.config.mode,
        gap=last.gap,
        decisions=[
            {
                "job": int(decision.job),
                "kind": decision.kind,
                "gpus": decision.gpus,
                "gpus_after": decision.gpus_after,
                "target": _target(decision.target),
                "batch": decision.batch,
                "reason": told_to.text(decision.reason),
                "verdict": told_to.text(decision.verdict),
            }
            for decision in last.decisions
            if only is None or users.get(decision.job) == only
        ],
    )


def policy(controller: Service) -> Json:
    """The policy in force, its settings, and where it comes from."""
    return _answer(**controller.policy.view())


def _target(placement: Placement | None) -> str | None:
    if placement is None:
        return None
    shape = placement.shape
    return f"{placement.gpus} on {fold(placement.nodes)}" + (f" ({shape})" if shape else "")


def estimate(controller: Service, question: needs.Question, only: str | None) -> Json:
    """What a job will need, by what others of its name have used."""
    try:
        return _answer(**needs.answer(controller.books.needs, question, only))
    except needs.NothingKnown as fault:
        raise NotKnown(str(fault)) from None


def report_needs(controller: Service, only: str | None) -> Json:
    """What runs asked for and used, by user and account."""
    return _answer(users=controller.books.needs.report(only))


def explain(controller: Service, number: int, only: str | None) -> Json:
    """Why a job has the size it has: the last decisions about it and the evidence behind them."""
    known = visible(controller, number, only)
    head = f"job {number} ({known.name}): {known.state}, sizes {known.sizes}"
    lines, sizes = _evidence(controller, number)
    told = map(Discreet(controller, only).text, lines)
    return aged(controller, lines=[head, *told], sizes=sizes)


def _evidence(controller: Service, number: int) -> tuple[list[str], list[Json]]:
    """What there is to be said of a job, and how fast it would be at each size."""
    last, lines = controller.published, list[str]()
    found = [job for job in last.jobs if int(job.id) == number]
    if not found:
        gone = "it is neither pending nor running now; its history: onesctl job"
        lines.append(gone if last.number else f"{NO_ROUND}: nothing can be said of it")
        return lines, []
    this = found[0]
    if this.fixed:
        lines.append(f"it is not moved: {this.fixed}")
    if this.limited and this.limited != this.fixed:
        most = max((shape.gpus for shape in this.shapes), default=0)
        lines.append(f"it is offered {in_gpus(most)} at most: {this.limited}")
    decided = [decision for decision in last.decisions if decision.job == this.id]
    lines += [f"{d.kind}: {d.reason}; {d.verdict}" for d in decided]
    if not decided:
        waits = waiting.Waits(last, controller.clock())
        words = waits.why(this, waits.prospect(this))
        lines.append(words or "the plan leaves it as it is")
    if beside_rigid := gained.words(last, this, controller.clock()):
        lines.append(beside_rigid)
    if number in last.snapshot.jobs:
        lines += reservation_words(last.snapshot.jobs[number], last.snapshot)
    for move in controller.open_moves([number]):
        lines.append(f"under way: {move.kind}, step {move.step}: {move.reason}")
    lines += [fill["words"] for fill in _fills(controller, number)[-1:]]
    if staged := controller.books.stages.told(number):
        lines.append(staged)
    outlook = last.problem.outlooks.get(this.id) if last.problem else None
    if outlook is None or last.problem is None:
        return lines, []
    lines.append(
        f"believed: {_to_go(outlook, controller.books.reports.last(number))}, {_pace(outlook)};"
        f" {_costs(outlook, controller.config.estimator)}"
    )
    return lines, _speeds(this, outlook, last.problem)


def _to_go(outlook: Outlook, report: Json | None) -> str:
    """What a job has still to do, by its own word or as a guess."""
    whole = f"{outlook.processed + outlook.remaining:.0f}"
    said = f"{outlook.remaining:.0f} samples to go of {whole}"
    if outlook.guessed:
        why = "it does not say how many in all" if report else "it has not reported"
        return f"{said} (a guess: {why})"
    own = report is not None and report.get("total_samples")
    return said if own else f"{said}, as jobs of its user and name took or declare"


def _pace(outlook: Outlook) -> str:
    """What is known of a job's speed."""
    if not outlook.points:
        return "its speed is a guess, because nothing like it was measured"
    return (
        f"its speed from {counted(outlook.points, 'measurement')}"
        f" (step time known to {_within(outlook.speed_error)}{_by_type(outlook)})"
    )


def _costs(outlook: Outlook, assumed: EstimatorConfig) -> str:
    """What changes cost the job, by measurement or as the configuration has it until then."""
    restart, live = outlook.restart_cost, outlook.live_cost
    parts = [_cost("a restart", restart, assumed=restart == assumed.restart_seconds)]
    if live is not None:
        parts.append(_cost("a live resize", live, assumed=live == assumed.live_seconds))
    return ", ".join(parts)


def _cost(what: str, seconds: float, *, assumed: bool) -> str:
    return f"{what} {'is assumed to cost' if assumed else 'costs'} {lasting(seconds)}"


def _within(error: float) -> str:
    """A standard error of a logarithm in words: 0.1 is about 10 %."""
    return f"{100 * np.expm1(error):.0f} %"


def _by_type(outlook: Outlook) -> str:
    parts = [f"{kind} {_within(error)}" for kind, error in sorted(outlook.type_errors.items())]
    return f": {', '.join(parts)}" if parts else ""


def _size_note(job: Job, gpus: int, outlook: Outlook) -> str:
    now = "now" if job.placement and job.placement.gpus == gpus else ""
    return ", ".join(filter(None, (now, "" if outlook.points else "a guess")))


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
                "note": _size_note(job, gpus, outlook),
            }
        )
    return listed
