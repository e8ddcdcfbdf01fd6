"""`onesctl report`: what jobs asked for, beside what they used."""

from __future__ import annotations

from typing import Any

import click

from ones.daemon.ctl.client import asks
from ones.daemon.ctl.listing import Listing, listing, print_json
from ones.daemon.ctl.table import Column, Columns
from ones.daemon.times import duration

COLUMNS: Columns = {
    "user": Column("USER", 12),
    "account": Column("ACCOUNT", 12),
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
@listing(COLUMNS)
def needs(*, listing: Listing, as_json: bool) -> None:
    """By user and account: used and asked, of runs on GPUs that have ended. Means by time.

    Yours, or everybody's for an operator. GPU MEMORY is the peak, beside what the card has; memory
    and cores are those of a node.
    """
    answer = asks("GET", "/v1/report/needs")
    if as_json:
        print_json(answer)
        return
    listing.show([_row(one) for one in answer["users"]])


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
