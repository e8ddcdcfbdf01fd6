"""`onesctl estimate`: what to ask Slurm for, by what runs of the same name have used."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import click

from ones.daemon.ctl.client import asks
from ones.daemon.ctl.completing import job_numbers
from ones.daemon.ctl.listing import Listing, listing, print_json
from ones.daemon.ctl.myself import my_name
from ones.daemon.ctl.table import Columns, cell
from ones.daemon.times import duration
from ones.slurm_ext.batch_script import Asked, read_script

COLUMNS: Columns = {
    "resource": "RESOURCE",
    "asked": "ASKED",
    "suggested": "SUGGESTED",
    "option": "OPTION",
    "why": "WHY",
}
GIB = 1024.0  # MiB
LEAST_ROUND = 60.0  # seconds, in which time limits are rounded up


def _gibibytes(mebibytes: float) -> str:
    return f"{max(ceil(mebibytes / GIB), 1)}G"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _cores(cores: float) -> str:
    return str(max(ceil(cores - 0.05), 1))


def _minutes(seconds: float) -> str:
    return duration(ceil(seconds / LEAST_ROUND) * LEAST_ROUND)


def _rate(rate: float) -> str:
    return f"{rate / 1e6:.3g} MB/s"


# resource -> what it is called, how it is written, which of what was asked it is held against
SHOWN: dict[str, tuple[str, Callable[[float], str], str | None]] = {
    "gpu_memory": ("memory of each GPU", _gibibytes, "card"),
    "gpu_utilization": ("GPUs busy", _percent, None),
    "host_memory": ("memory of a node", _gibibytes, "memory"),
    "cpu_cores": ("cores of a node", _cores, "cpus"),
    "network_in": ("network in, a node", _rate, None),
    "network_out": ("network out, a node", _rate, None),
    "before_gpu": ("time before GPUs are busy", duration, None),
    "after_gpu": ("time after that", duration, None),
    "total": ("time of the whole run", _minutes, "time"),
}
OPTIONS: dict[str, Callable[[str], str]] = {
    "host_memory": lambda text: f"--mem={text}",
    "total": lambda text: f"--time={text}",
}


@click.command()
@click.argument("what", metavar="SCRIPT|JOB", shell_complete=job_numbers)
@listing(COLUMNS)
def estimate(what: str, *, listing: Listing, as_json: bool) -> None:
    """What a batch script, or a job like one that ran, should ask for, and why.

    Runs of the same user and job name that had their GPUs to themselves are looked at. Nothing is
    changed: it is advice.
    """
    answer = asks("POST", "/v1/estimate", _question(what))
    if as_json:
        print_json(answer)
        return
    if listing.header:
        runs = answer["runs"]
        known = "1 run is known" if runs == 1 else f"{runs} runs are known"
        click.echo(f"{cell(answer['family'])}: {known}")
    listing.show([_row(one, answer["asked"]) for one in answer["estimates"]])


def _question(what: str) -> dict[str, Any]:
    """What onesd is asked. Raises ScriptError and Nameless."""
    if what.isdecimal() and not Path(what).exists():
        return {"job": int(what)}
    asked: Asked = read_script(Path(what))
    return {
        "user": my_name(),
        "name": asked.name,
        "gpus": asked.gpus,
        "nodes": asked.nodes,
        "cpus": asked.cpus,
        "memory": asked.memory,
        "time": asked.time_limit,
    }


def _row(one: dict[str, Any], asked: dict[str, float | None]) -> dict[str, Any]:
    name, write, against = SHOWN[one["resource"]]
    suggested = write(one["reserve"])
    before = asked.get(against) if against else None
    option = OPTIONS.get(one["resource"])
    doubts = "; ".join(one["doubts"])
    return {
        "resource": name,
        "asked": None if before is None else write(before),
        "suggested": suggested,
        "option": None if option is None else option(suggested),
        "why": one["why"] + (f" (advice only: {doubts})" if doubts else ""),
    }
