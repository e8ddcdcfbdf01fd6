"""What onesctl says of the cluster and the daemon, and how it has onesd pause."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from ones.daemon.ctl.client import Refused, Unreachable, asks, roles
from ones.daemon.ctl.listing import (
    Listing,
    chosen,
    json_wanted,
    listing,
    only_jobs,
    print_json,
    repeatable,
)
from ones.daemon.ctl.table import Column, Columns, cell
from ones.daemon.times import duration, moment

MOST_HANDOVER = 60.0  # seconds for the moves' present steps, the database's copy and the doors


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * ratio:.0f}%"


def _shares(speeds: list[float | None]) -> str | None:
    if all(speed is None for speed in speeds):
        return None
    return ", ".join("-" if speed is None else f"{speed:.0%}" for speed in speeds)


NODE_COLUMNS: Columns = {
    "node": Column("NODE", 24),
    "type": Column("TYPE", 16),
    "gpus": "GPUS",
    "elastic": "ELASTIC",
    "other": "OTHER",
    "free": "FREE",
    "idle": "IDLE",
    "utilization": Column("UTIL", show=_percent),
    "memory": Column("MEMORY", show=_percent),
    "silent_s": Column("REPORTED", show=duration),
    "note": "NOTE",
}
PAIR_COLUMNS: Columns = {
    "jobs": "JOBS",
    "where": Column("GPU", 24),
    "since": Column("SINCE", show=moment),
    "ended": Column("ENDED", show=moment),
    "expected": Column("EXPECTED", show=_shares),
    "measured": Column("MEASURED", show=_shares),
    "parted": "SEPARATED",
}
PLAN_COLUMNS: Columns = {
    "job": "JOBID",
    "kind": "MOVE",
    "gpus": "HELD",
    "gpus_after": "GPUS",
    "target": Column("TARGET", 40),
    "batch": "BATCH",
    "reason": "WHY",
    "verdict": "VERDICT",
}


@click.command()
@json_wanted
@repeatable
def status(*, as_json: bool) -> None:
    """The cluster and the daemon at a glance."""
    answer = asks("GET", "/v1/status")
    if as_json:
        print_json(answer)
        return
    gpus, jobs, last = answer["gpus"], answer["jobs"], answer["round"]
    if answer.get("controllers"):
        click.echo(f"Controllers: {_told(roles(click.get_current_context().obj))}")
    state = "paused" if answer["paused"] else answer["mode"]
    click.echo(
        f"onesd {answer['meta']['version']}: {state}, policy {answer['policy']},"
        f" admission {answer['admission']}, Slurm read by {answer['reader']}"
    )
    if last["number"]:
        click.echo(
            f"GPUs: {gpus['total']} in all, {gpus['elastic']} elastic, {gpus['other']} other jobs,"
            f" {gpus['free']} free, {gpus['unusable']} unusable"
        )
        click.echo(
            f"Jobs: {jobs['running']} running, {jobs['waiting']} waiting,"
            f" {jobs['moving']} being moved"
        )
        click.echo(
            f"Round {last['number']}: {moment(last['at'])}, {last['seconds']:.2f} s,"
            f" {last['outcome']}"
        )
    for problem in answer["problems"]:
        click.echo(f"Note: {cell(problem)}")


def _told(found: Mapping[str, Any]) -> str:
    """Each onesd and its role."""
    words = []
    for address, said in found.items():
        role = said.get("role") if said else None
        term = f" (term {said['term']})" if role == "active" and "term" in said else ""
        words.append(f"{address} {cell(role) if role else 'does not answer'}{term}")
    return ", ".join(words)


@click.command()
@click.option("--idle", is_flag=True, help="Only nodes with GPUs that are held and do nothing.")
@listing(NODE_COLUMNS)
@repeatable
def nodes(*, idle: bool, listing: Listing, as_json: bool) -> None:
    """GPU nodes: who holds their GPUs, and what their agents say."""
    answer = asks("GET", "/v1/nodes")
    if idle:
        answer["nodes"] = [node for node in answer["nodes"] if node["idle"]]
    if as_json:
        print_json(answer)
        return
    listing.show(answer["nodes"])


@click.command()
@only_jobs
@listing(PLAN_COLUMNS)
@repeatable
def plan(*, numbers: frozenset[int] | None, listing: Listing, as_json: bool) -> None:
    """What the last round decided, done or not (in observe mode: nothing is done)."""
    answer = asks("GET", "/v1/plan")
    answer["decisions"] = chosen(answer["decisions"], {"job": numbers})
    if as_json:
        print_json(answer)
        return
    if listing.header:
        gap, last = answer["gap"], answer["round"]
        best = "" if gap is None else f", at most {100 * gap:.2f}% below the best possible plan"
        ended = f"Round {last['number']}, {moment(last['at'])}{best}:"
        click.echo(ended if last["number"] else "No round has ended yet.")
    listing.show(answer["decisions"])


@click.command()
@listing(PAIR_COLUMNS)
@repeatable
def sharing(*, listing: Listing, as_json: bool) -> None:
    """Which jobs share a GPU, or did, how fast they are there, and why they were separated."""
    answer = asks("GET", "/v1/sharing")
    if as_json:
        print_json(answer)
        return
    listing.show([_pair_row(pair) for pair in answer["pairs"]])
    for gpu in answer["closed"] if listing.header else ():
        click.echo(
            f"Note: GPU {gpu['gpu']} of {cell(gpu['node'])} is not shared: {cell(gpu['why'])}"
        )
    if not answer["allowed"] and listing.header:
        click.echo("Note: jobs share no GPUs here; [sharing] allow")


def _pair_row(pair: dict[str, Any]) -> dict[str, Any]:
    return {
        **pair,
        "jobs": "+".join(str(job or "another's") for job in (pair["first"], pair["second"])),
        "where": f"{pair['node']}:{pair['gpu']}",
    }


@click.command()
@click.argument("reason", nargs=-1)
def pause(reason: tuple[str, ...]) -> None:
    """Stop acting: no move is begun until `onesctl resume`; moves under way are finished."""
    asks("POST", "/v1/pause", {"reason": " ".join(reason)})
    click.echo("paused; new jobs go straight to Slurm; `onesctl resume` goes on")


@click.command()
def resume() -> None:
    """Act again after a pause."""
    asks("POST", "/v1/resume")
    click.echo("resumed")


@click.command()
def handover() -> None:
    """Let another onesd take over, and wait until it has."""
    way = click.get_current_context().obj
    found = roles(way)
    waiting = [address for address, said in found.items() if said and said["role"] == "standby"]
    if not waiting:
        raise Refused(
            f"no standby answers ({_told(found)}), and nothing is handed over; start onesd on"
            " another host of [standby] controllers"
        )
    before = max(said["term"] for said in found.values() if said)
    asks("POST", "/v1/handover")
    until = time.monotonic() + way.settings().standby.takeover + MOST_HANDOVER
    while time.monotonic() < until:
        for address, said in roles(way).items():
            if said and said["role"] == "active" and said["term"] > before:
                click.echo(f"{address} acts now, in term {said['term']}")
                return
        time.sleep(0.2)
    raise Unreachable("it is handed over, and nobody has taken over yet; see onesctl status")
