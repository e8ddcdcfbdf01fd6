"""The command line of onesctl."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from ones.daemon.config import ConfigError, load_config
from ones.daemon.ctl.client import NotAllowed, Unreachable, ask
from ones.daemon.ctl.estimate import estimate
from ones.daemon.ctl.policy import policy
from ones.daemon.ctl.replay import replay
from ones.daemon.ctl.report import report
from ones.daemon.ctl.solve import solve
from ones.daemon.ctl.table import cell, duration, moment, table
from ones.daemon.wire import Report
from ones.slurm_ext.errors import OnesError

UNREACHABLE, NOT_ALLOWED = 3, 4
F = TypeVar("F", bound=Callable[..., None])

JOB_COLUMNS = {
    "job": "JOBID",
    "name": "NAME",
    "user": "USER",
    "account": "ACCOUNT",
    "state": "STATE",
    "sizes": "SIZES",
    "gpus": "GPUS",
    "nodes": "NODELIST",
    "batch": "BATCH",
    "progress": "DONE",
    "samples_per_second": "SAMPLES/S",
    "waited": "WAITED",
    "moves": "MOVES",
    "note": "NOTE",
}
NODE_COLUMNS = {
    "node": "NODE",
    "type": "TYPE",
    "gpus": "GPUS",
    "elastic": "ELASTIC",
    "other": "OTHER",
    "free": "FREE",
    "utilization": "UTIL",
    "memory": "MEMORY",
    "reported": "REPORTED",
    "note": "NOTE",
}
PAIR_COLUMNS = {
    "jobs": "JOBS",
    "where": "GPU",
    "since": "SINCE",
    "ended": "ENDED",
    "expected": "EXPECTED",
    "measured": "MEASURED",
    "parted": "PARTED",
}
RUN_COLUMNS = {
    "run": "RUN",
    "started": "START",
    "ended": "END",
    "elapsed": "ELAPSED",
    "gpus": "GPUS",
    "nodes": "NODELIST",
    "state": "STATE",
    "move": "MOVED BY",
    "reason": "WHY",
}
PART_COLUMNS = {
    "satellite": "SATELLITE",
    **{name: RUN_COLUMNS[name] for name in RUN_COLUMNS if name != "move"},
}
PLAN_COLUMNS = {
    "job": "JOBID",
    "kind": "MOVE",
    "gpus": "GPUS",
    "target": "TARGET",
    "batch": "BATCH",
    "reason": "WHY",
    "verdict": "VERDICT",
}


class _Group(click.Group):
    """The one place where our errors become one line and an exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Unreachable as fault:
            _fail(fault, UNREACHABLE)
        except NotAllowed as fault:
            _fail(fault, NOT_ALLOWED)
        except ConfigError as fault:
            _fail(fault, 2)
        except OnesError as fault:
            _fail(fault, 1)


def _fail(fault: OnesError, code: int) -> None:
    click.echo(f"onesctl: error: {fault}", err=True)
    sys.exit(code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="Instead of /etc/ones/ones.toml.")
@click.version_option(package_name="ones-slurm")
@click.pass_context
def main(context: click.Context, config: Path | None) -> None:
    """See and steer what ONES does with elastic jobs."""
    context.obj = config


def _asks(method: str, path: str, **names: Any) -> Any:
    return ask(load_config(click.get_current_context().obj), method, path.format(**names))


def _listing(command: F) -> F:
    """The options that every listing shares."""
    command = click.option("-o", "--format", "fields", help="Fields to show, comma separated.")(
        command
    )
    command = click.option("-n", "--noheader", is_flag=True, help="No heading line.")(command)
    return _json(command)


def _json(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON, with a versioned schema.")(
        command
    )


def _print_json(answer: Any) -> None:
    click.echo(json.dumps(answer, indent=2))


@main.command()
@_json
def status(as_json: bool) -> None:
    """The cluster and the daemon at a glance."""
    answer = _asks("GET", "/v1/status")
    if as_json:
        _print_json(answer)
        return
    gpus, jobs, last = answer["gpus"], answer["jobs"], answer["round"]
    state = "paused" if answer["paused"] else answer["mode"]
    click.echo(
        f"onesd {answer['meta']['version']}: {state}, policy {answer['policy']},"
        f" admission {answer['admission']}, Slurm read by {answer['reader']}"
    )
    click.echo(
        f"GPUs: {gpus['total']} in all, {gpus['elastic']} elastic, {gpus['other']} other jobs,"
        f" {gpus['free']} free, {gpus['unusable']} unusable"
    )
    click.echo(
        f"Jobs: {jobs['running']} running, {jobs['waiting']} waiting, {jobs['moving']} being moved"
    )
    click.echo(
        f"Round {last['number']}: {moment(last['at'])}, {last['seconds']:.2f} s, {last['outcome']}"
    )
    for problem in answer["problems"]:
        click.echo(f"Note: {cell(problem)}")


@main.command()
@_listing
def jobs(as_json: bool, noheader: bool, fields: str | None) -> None:
    """Elastic jobs: yours, or everybody's for an admin."""
    answer = _asks("GET", "/v1/jobs")
    if as_json:
        _print_json(answer)
        return
    rows = [_job_row(job) for job in answer["jobs"]]
    click.echo(table(rows, JOB_COLUMNS, header=not noheader, fields=fields))


@main.command()
@_listing
def sharing(as_json: bool, noheader: bool, fields: str | None) -> None:
    """Which jobs share a GPU, or did, how fast they are there, and why they were parted."""
    answer = _asks("GET", "/v1/sharing")
    if as_json:
        _print_json(answer)
        return
    rows = [
        {
            "jobs": f"{pair['first']}+{pair['second']}",
            "where": f"{pair['node']}:{pair['gpu']}",
            "since": moment(pair["since"]),
            "ended": moment(pair["ended"]),
            "expected": _shares(pair["expected"]),
            "measured": _shares(pair["measured"]),
            "parted": pair["parted"],
        }
        for pair in answer["pairs"]
    ]
    click.echo(table(rows, PAIR_COLUMNS, header=not noheader, fields=fields))
    for gpu in answer["closed"] if not noheader else ():
        click.echo(f"Note: GPU {gpu['gpu']} of {gpu['node']} is not shared: {cell(gpu['why'])}")
    if not answer["allowed"] and not noheader:
        click.echo("Note: jobs share no GPUs here; [sharing] allow")


def _shares(speeds: list[float | None]) -> str | None:
    return None if None in speeds else ", ".join(f"{speed:.0%}" for speed in speeds)


def in_words(report: Report) -> str:
    """What a job said of its progress."""
    done, total, rate = report.samples, report.total_samples, report.samples_per_second
    parts = [
        f"{done} of {total} samples ({_progress(done, total)})" if total else f"{done} samples"
    ]
    if rate is not None:
        parts.append(f"{rate:.4g} samples a second in batches of {report.batch}")
    if report.loss is not None:
        parts.append(f"loss {report.loss:.4g}")
    return ", ".join(parts)


def _progress(done: int | None, total: int | None) -> str | None:
    if total:
        return f"{100 * (done or 0) / total:.0f}%"
    return str(done) if done else None


def _job_row(job: dict[str, Any]) -> dict[str, Any]:
    return {
        **job,
        "progress": _progress(job["samples"], job["total_samples"]),
        "waited": duration(job["waited"]),
    }


@main.command()
@click.argument("job", type=click.IntRange(min=1))
@_listing
def job(job: int, as_json: bool, noheader: bool, fields: str | None) -> None:
    """One job: its sizes over time, what moved it and why."""
    answer = _asks("GET", "/v1/jobs/{job}", job=job)
    if as_json:
        _print_json(answer)
        return
    it = answer["job"]
    if not noheader:
        click.echo(
            f"Job {it['job']} {cell(it['name'])} of {cell(it['user'])}: {it['state']},"
            f" sizes {it['sizes']}, asked for {it['requested']},"
            f" submitted {moment(it['submitted'])}"
        )
        if it["report"]:
            click.echo(f"It last reported {in_words(msgspec.convert(it['report'], Report))}")
    rows = [
        {
            **run,
            "started": moment(run["started"]),
            "ended": moment(run["ended"]),
            "elapsed": duration(run["elapsed"]),
        }
        for run in answer["runs"]
    ]
    click.echo(table(rows, RUN_COLUMNS, header=not noheader, fields=fields))
    for run in answer["runs"] if not fields else ():
        for held in run["earlier"]:
            click.echo(
                f"{moment(held['until'])}  run {run['run']}: {cell(held['why'])};"
                f" it held {held['gpus']} GPUs on {cell(held['nodes'])}, and went on with the rest"
            )
    if answer["satellites"] and not fields:
        parts = [
            {
                **part,
                "started": moment(part["started"]),
                "ended": moment(part["ended"]),
                "elapsed": duration(part["elapsed"]),
            }
            for part in answer["satellites"]
        ]
        click.echo(table(parts, PART_COLUMNS, header=not noheader))
        hours = answer["gpu_seconds"] / 3600
        click.echo(f"GPU hours of the job and its satellites: {hours:.2f}")
    if answer["staged"]:
        click.echo(cell(answer["staged"]))
    for request in answer["requests"]:
        click.echo(f"{moment(request['at'])}  {cell(request['words'])}")
    for refused in answer["refused"]:
        click.echo(f"{moment(refused['at'])}  {refused['kind']}: {cell(refused['outcome'])}")


@main.command()
@_listing
def nodes(as_json: bool, noheader: bool, fields: str | None) -> None:
    """GPU nodes: who holds their GPUs, and what their agents say."""
    answer = _asks("GET", "/v1/nodes")
    if as_json:
        _print_json(answer)
        return
    rows = [
        {
            **node,
            "utilization": _percent(node["utilization"]),
            "memory": _percent(node["memory"]),
            "reported": duration(node["silent_s"]),
        }
        for node in answer["nodes"]
    ]
    click.echo(table(rows, NODE_COLUMNS, header=not noheader, fields=fields))


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * ratio:.0f}%"


@main.command()
@click.argument("job", type=click.IntRange(min=1))
@_json
def explain(job: int, as_json: bool) -> None:
    """Why a job has the size it has, or why it waits."""
    answer = _asks("GET", "/v1/explain/{job}", job=job)
    if as_json:
        _print_json(answer)
        return
    for line in answer["lines"]:
        click.echo(cell(line))
    if answer["sizes"]:
        columns = {
            "gpus": "GPUS",
            "batch": "BATCH",
            "samples_per_second": "SAMPLES/S",
            "time_left": "TIME LEFT",
            "note": "",
        }
        rows = [{**size, "time_left": duration(size.get("time_left"))} for size in answer["sizes"]]
        click.echo(table(rows, columns))


@main.command()
@_listing
def plan(as_json: bool, noheader: bool, fields: str | None) -> None:
    """What the last round decided, done or not (in observe mode: nothing is done)."""
    answer = _asks("GET", "/v1/plan")
    if as_json:
        _print_json(answer)
        return
    if not noheader:
        gap = answer["gap"]
        best = "" if gap is None else f", at most {100 * gap:.2f}% below the best possible plan"
        click.echo(f"Round {answer['round']['number']}, {moment(answer['round']['at'])}{best}:")
    click.echo(table(answer["decisions"], PLAN_COLUMNS, header=not noheader, fields=fields))


@main.command()
@click.argument("reason", required=False, default="")
def pause(reason: str) -> None:
    """Stop acting: no move is begun until `onesctl resume`; moves under way are finished."""
    ask(load_config(click.get_current_context().obj), "POST", "/v1/pause", {"reason": reason})
    click.echo("paused; new jobs go straight to Slurm; `onesctl resume` goes on")


@main.command()
def resume() -> None:
    """Act again after a pause."""
    _asks("POST", "/v1/resume")
    click.echo("resumed")


main.add_command(policy)
main.add_command(estimate)
main.add_command(report)
main.add_command(replay)
main.add_command(solve)
