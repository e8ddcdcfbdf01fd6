"""`onesctl policy`: which policies there are, which one decides, and another one instead."""

from __future__ import annotations

import json
from typing import Any

import click

from ones.daemon.config import load_config
from ones.daemon.ctl.client import ask
from ones.daemon.ctl.table import cell, moment, table
from ones.policies.registry import offered

COLUMNS = {
    "policy": "POLICY",
    "optimises": "OPTIMISES",
    "information": "KNOWS",
    "needs": "NEEDS",
}
KNOWS = {"family": "jobs of its family", "own": "its own reports", "truth": "replays only"}


@click.group()
def policy() -> None:
    """Which policies there are, and which one decides."""


@policy.command("list")
@click.option("-n", "--noheader", is_flag=True, help="No heading line.")
@click.option("-o", "--format", "fields", help="Fields to show, comma separated.")
@click.option("--json", "as_json", is_flag=True, help="JSON, with a versioned schema.")
def list_(noheader: bool, fields: str | None, as_json: bool) -> None:
    """All policies: what each optimises, what it knows of a job, what has to be set first."""
    rows = [
        {
            "policy": name,
            "optimises": entry.about,
            "information": entry.information,
            "needs": entry.needs or None,
        }
        for name, entry in offered().items()
    ]
    if as_json:
        click.echo(json.dumps({"meta": {"schema": 1}, "policies": rows}, indent=2))
        return
    shown = [{**row, "information": KNOWS[str(row["information"])]} for row in rows]
    click.echo(table(shown, COLUMNS, header=not noheader, fields=fields))


@policy.command()
@click.option("--json", "as_json", is_flag=True, help="JSON, with a versioned schema.")
def show(as_json: bool) -> None:
    """The policy in force, its settings, and where it comes from."""
    answer = _ask("GET", None)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    click.echo(_where_from(answer))
    for name, value in sorted(answer["settings"].items()):
        click.echo(f"  {name} = {cell(_text(value))}")


@policy.command("set")
@click.argument("name", required=False)
@click.option("--default", is_flag=True, help="Go by the configuration again.")
@click.option("--json", "as_json", is_flag=True, help="JSON, with a versioned schema.")
def set_(name: str | None, default: bool, as_json: bool) -> None:
    """Decide by NAME from the next round on, restarts of onesd included, until --default."""
    if default == (name is not None):
        raise click.UsageError("name a policy, or give --default; onesctl policy list shows all")
    answer = _ask("POST", {"policy": name})
    click.echo(json.dumps(answer, indent=2) if as_json else _where_from(answer))


def _ask(method: str, body: object) -> Any:
    return ask(load_config(click.get_current_context().obj), method, "/v1/policy", body)


def _where_from(answer: dict[str, Any]) -> str:
    if answer["source"] == "configuration":
        return f"policy {cell(answer['policy'])}, from the configuration"
    return (
        f"policy {cell(answer['policy'])}, set by {cell(answer['by'])} at {moment(answer['at'])};"
        f" the configuration says {cell(answer['configured'])} (onesctl policy set --default)"
    )


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "+".join(f"{key}={one:g}" for key, one in sorted(value.items())) or "-"
    return "never" if value is None else str(value)
