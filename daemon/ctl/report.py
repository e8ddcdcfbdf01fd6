"""`onesctl report`: what jobs asked for, beside what they used."""

from __future__ import annotations

import json
from typing import Any

import click

from ones.daemon.config import load_config
from ones.daemon.ctl.client import ask
from ones.daemon.ctl.table import duration, table

COLUMNS = {
    "user": "USER",
    "account": "ACCOUNT",
    "runs": "RUNS",
    "gpu_hours": "GPU HOURS",
    "busy": "GPUS BUSY",
    "gpu_memory": "GPU MEMORY",
    "memory": "MEMORY/ASKED",
    "cpus": "CORES/ASKED",
    "time": "TIME/ASKED",
}
GIB = 1024.0  # MiB


@click.group()
def report() -> None:
    """What runs asked for and used."""


@report.command()
@click.option("-n", "--noheader", is_flag=True, help="No heading line.")
@click.option("-o", "--format", "fields", help="Fields to show, comma separated.")
@click.option("--json", "as_json", is_flag=True, help="JSON, with a versioned schema.")
@click.pass_context
def needs(context: click.Context, noheader: bool, fields: str | None, as_json: bool) -> None:
    """By user and account: used and asked, of runs on GPUs that have ended. Means by time.

    Yours, or everybody's for an operator. GPU MEMORY is the peak, beside what the card has; memory
    and cores are those of a node.
    """
    answer = ask(load_config(context.obj), "GET", "/v1/report/needs")
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    rows = [_row(one) for one in answer["users"]]
    click.echo(table(rows, COLUMNS, header=not noheader, fields=fields))


def _row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        **one,
        "gpu_hours": f"{one['gpu_hours']:.1f}",
        "busy": None if one["busy"] is None else f"{100 * one['busy']:.0f}%",
        "gpu_memory": _of(_gibibytes(one["gpu_memory"]), _gibibytes(one["card"])),
        "memory": _of(_gibibytes(one["host_memory"]), _gibibytes(one["memory_asked"])),
        "cpus": _of(_cores(one["cpu_cores"]), _cores(one["cpus_asked"])),
        "time": _of(_time(one["time"]), _time(one["time_asked"])),
    }


def _of(used: str | None, asked: str | None) -> str | None:
    return None if used is None or asked is None else f"{used}/{asked}"


def _gibibytes(mebibytes: float | None) -> str | None:
    return None if mebibytes is None else f"{mebibytes / GIB:.1f}G"


def _cores(cores: float | None) -> str | None:
    return None if cores is None else f"{cores:.1f}"


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else duration(seconds)
