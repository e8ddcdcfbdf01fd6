"""What onesctl says of elastic jobs: all of them, one of them, and why it has what it has."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from ones.daemon.ctl.client import asks
from ones.daemon.ctl.completing import job_numbers, values_of
from ones.daemon.ctl.job_number import job_number
from ones.daemon.ctl.listing import (
    Listing,
    chosen,
    json_wanted,
    listing,
    only_jobs,
    print_json,
    repeatable,
)
from ones.daemon.ctl.myself import my_name
from ones.daemon.ctl.table import Column, Columns, cell, table
from ones.daemon.times import duration, moment
from ones.daemon.wire import Report

STATES = {"PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED"}  # and how squeue shortens them


def _gained(seconds: float | None) -> str:
    later = seconds is not None and seconds < 0
    return f"{'-' if later else ''}{duration(abs(seconds) if seconds is not None else None)}"


JOB_COLUMNS: Columns = {
    "job": "JOBID",
    "partition": Column("PARTITION", 12, usual=False),
    "name": Column("NAME", 24),
    "user": Column("USER", 12),
    "account": Column("ACCOUNT", 12),
    "state": "STATE",
    "sizes": Column("SIZES", 16),
    "requested": Column("ASKED", usual=False),
    "gpus": "GPUS",
    "nodes": Column("NODELIST", 24),
    "batch": "BATCH",
    "progress": "DONE",
    "samples_per_second": "SAMPLES/S",
    "submitted": Column("SUBMIT", show=moment, usual=False),
    "waited": Column("WAITED", show=duration),
    "ends": Column("ENDS", show=moment, usual=False),
    "rigid_ends": Column("RIGID ENDS", show=moment, usual=False),
    "gained": Column("GAINED", show=_gained, usual=False),
    "moves": "MOVES",
    "note": "NOTE",
}
RUN_COLUMNS: Columns = {
    "run": "RUN",
    "started": Column("START", show=moment),
    "ended": Column("END", show=moment),
    "elapsed": Column("ELAPSED", show=duration),
    "gpus": "GPUS",
    "nodes": Column("NODELIST", 40),
    "state": "STATE",
    "move": "MOVED BY",
    "reason": "WHY",
}
PART_COLUMNS: Columns = {
    "satellite": "SATELLITE",
    **{name: RUN_COLUMNS[name] for name in RUN_COLUMNS if name != "move"},
}
SIZE_COLUMNS: Columns = {
    "gpus": "GPUS",
    "batch": "BATCH",
    "samples_per_second": "SAMPLES/S",
    "time_left": Column("TIME LEFT", show=duration),
    "note": "",
}


def _several(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(text.split(","))


def _states(text: str | None) -> frozenset[str] | None:
    """States by either name. Raises UsageError."""
    if text is None or text.casefold() == "all":
        return None
    wanted = {STATES.get(word, word) for word in text.upper().split(",")}
    if unknown := sorted(wanted - {*STATES.values()}):
        known = ", ".join(f"{state} ({short})" for short, state in STATES.items())
        raise click.UsageError(f"no state '{cell(unknown[0])[:40]}'; states are {known}, or all")
    return frozenset(wanted)


@click.command()
@click.option(
    "-u",
    "--user",
    "users",
    metavar="USER[,...]",
    shell_complete=values_of("user"),
    help="Only jobs of these users.",
)
@click.option("--me", is_flag=True, help="Only your own jobs.")
@click.option(
    "-A",
    "--account",
    "accounts",
    metavar="ACCOUNT[,...]",
    shell_complete=values_of("account"),
    help="Only jobs of these accounts.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="PARTITION[,...]",
    shell_complete=values_of("partition"),
    help="Only jobs of these partitions.",
)
@click.option(
    "-t",
    "--states",
    metavar="STATE[,...]",
    shell_complete=values_of("state"),
    help="Only jobs in these states: PENDING (PD), RUNNING (R), SUSPENDED (S).",
)
@only_jobs
@listing(JOB_COLUMNS)
@repeatable
def jobs(
    *,
    users: str | None,
    me: bool,
    accounts: str | None,
    partitions: str | None,
    states: str | None,
    numbers: frozenset[int] | None,
    listing: Listing,
    as_json: bool,
) -> None:
    """Elastic jobs: yours, or everybody's for an admin."""
    if me:
        users = my_name()
    wanted = {
        "user": _several(users),
        "account": _several(accounts),
        "partition": _several(partitions),
        "state": _states(states),
        "job": numbers,
    }
    answer = asks("GET", "/v1/jobs")
    answer["jobs"] = chosen(answer["jobs"], wanted)
    if as_json:
        print_json(answer)
        return
    listing.show([_job_row(job) for job in answer["jobs"]])


def in_words(report: Report) -> str:
    """What a job said of its progress."""
    done, total, rate = report.samples, report.total_samples, report.samples_per_second
    samples = f"{done} sample{'' if done == 1 else 's'}"
    parts = [f"{done} of {total} samples ({_progress(done, total)})" if total else samples]
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
    return {**job, "progress": _progress(job["samples"], job["total_samples"])}


@click.command()
@click.argument("number", metavar="JOB", type=job_number, shell_complete=job_numbers)
@listing(RUN_COLUMNS)
@repeatable
def job(number: int, *, listing: Listing, as_json: bool) -> None:
    """One job: its sizes over time, what moved it and why."""
    answer = asks("GET", f"/v1/jobs/{number}")
    if as_json:
        print_json(answer)
        return
    it = answer["job"]
    if listing.header:
        click.echo(
            f"Job {it['job']} {cell(it['name'])} of {cell(it['user'])}: {it['state']},"
            f" sizes {it['sizes']}, asked for {it['requested']},"
            f" submitted {moment(it['submitted'])}"
        )
        if it["report"]:
            click.echo(f"It last reported {in_words(msgspec.convert(it['report'], Report))}")
    listing.show(answer["runs"])
    for run in answer["runs"] if not listing.fields else ():
        for held in run["earlier"]:
            gpus = "1 GPU" if held["gpus"] == 1 else f"{held['gpus']} GPUs"
            click.echo(
                f"{moment(held['until'])}  run {run['run']}: {cell(held['why'])};"
                f" it held {gpus} on {cell(held['nodes'])}, and went on with the rest"
            )
    for each in answer["recoveries"] if not listing.fields else ():
        click.echo(f"{moment(each['at'])}  run {each['run']}: {cell(each['words'])}")
    if answer["satellites"] and not listing.fields:
        click.echo(table(answer["satellites"], PART_COLUMNS, header=listing.header))
        hours = answer["gpu_seconds"] / 3600
        click.echo(f"GPU hours of the job and its satellites: {hours:.2f}")
    if answer["staged"]:
        click.echo(cell(answer["staged"]))
    for request in answer["requests"]:
        click.echo(f"{moment(request['at'])}  {cell(request['words'])}")
    for refused in answer["refused"]:
        click.echo(f"{moment(refused['at'])}  {refused['kind']}: {cell(refused['outcome'])}")


@click.command()
@click.argument("number", metavar="JOB", type=job_number, shell_complete=job_numbers)
@json_wanted
@repeatable
def explain(number: int, *, as_json: bool) -> None:
    """Why a job has the size it has, or why it waits."""
    answer = asks("GET", f"/v1/explain/{number}")
    if as_json:
        print_json(answer)
        return
    for line in answer["lines"]:
        click.echo(cell(line))
    if answer["sizes"]:
        click.echo(table(answer["sizes"], SIZE_COLUMNS))
