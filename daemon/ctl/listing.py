"""What every listing of onesctl has in common: its options, and how it is printed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click

from ones.daemon.ctl.client import Unreachable
from ones.daemon.ctl.completing import fields_of, job_numbers, sorting_by
from ones.daemon.ctl.job_number import job_numbers_of
from ones.daemon.ctl.table import Columns, Row, cell, table

WATCH = 5.0  # seconds
MOST_WATCH = 86400
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How rows are to be shown."""

    columns: Columns
    header: bool = True
    fields: str | None = None
    sort: str | None = None

    def show(self, rows: Sequence[Row]) -> None:
        """The rows as a table; where there is nothing to show, not even a blank line."""
        shown = table(rows, self.columns, header=self.header, fields=self.fields, sort=self.sort)
        if shown:
            click.echo(shown)


def listing(columns: Columns) -> Callable[[F], Callable[..., None]]:
    """The command gets a Listing and `as_json`, by the options that every listing has."""

    def decorated(command: F) -> Callable[..., None]:
        @wraps(command)
        def listed(*, noheader: bool, fields: str | None, sort: str | None, **given: Any) -> None:
            shown = Listing(columns=columns, header=not noheader, fields=fields, sort=sort)
            command(listing=shown, **given)

        options: Callable[..., None] = json_wanted(listed)
        for option in (
            click.option(
                "-S",
                "--sort",
                metavar="[-]FIELD[,...]",
                shell_complete=sorting_by(columns),
                help="Order of the rows; - for descending.",
            ),
            click.option("-n", "--noheader", is_flag=True, help="No heading line."),
            click.option(
                "-o",
                "--format",
                "fields",
                metavar="FIELD[:WIDTH][,...]",
                shell_complete=fields_of(columns),
                help="Fields to show, and how wide they may be.",
            ),
        ):
            options = option(options)
        return options

    return decorated


def json_wanted(command: F) -> F:
    """The option --json."""
    return click.option("--json", "as_json", is_flag=True, help="JSON, with a versioned schema.")(
        command
    )


def print_json(answer: Any) -> None:
    click.echo(json.dumps(answer, indent=2))


only_jobs = click.option(
    "-j",
    "--jobs",
    "numbers",
    metavar="JOB[,...]",
    type=job_numbers_of,
    shell_complete=job_numbers,
    help="Only these jobs.",
)


def repeatable(command: Callable[..., None]) -> Callable[..., None]:
    """The options that have a command answer again and again, until ctrl-C."""

    @wraps(command)
    def repeated(*, watch: bool, iterate: float | None, as_json: bool, **given: Any) -> None:
        if not watch and iterate is None:
            command(as_json=as_json, **given)
            return
        if as_json:
            raise click.UsageError("--json prints one answer; ask again instead of --watch")
        try:
            _again(lambda: command(as_json=False, **given), WATCH if iterate is None else iterate)
        except KeyboardInterrupt:
            click.echo()

    every = click.option(
        "-i",
        "--iterate",
        type=click.FloatRange(1, MOST_WATCH),
        metavar="SECONDS",
        help="The same every so many seconds, as with squeue.",
    )
    watch = click.option("--watch", is_flag=True, help=f"The same every {WATCH:g} seconds.")
    return watch(every(repeated))


def _again(command: Callable[[], None], seconds: float) -> None:
    while True:
        terminal = sys.stdout.isatty()
        click.echo(CLEAR if terminal else time.ctime(), nl=not terminal)
        try:
            command()
        except Unreachable as fault:  # it may come back
            click.echo(f"onesctl: error: {cell(str(fault))}", err=True)
        time.sleep(seconds)


def chosen(rows: Sequence[Row], wanted: Mapping[str, frozenset[Any] | None]) -> list[Row]:
    """The rows whose fields have one of the values that are wanted of them; None: any."""
    return [
        row
        for row in rows
        if all(values is None or row.get(name) in values for name, values in wanted.items())
    ]
