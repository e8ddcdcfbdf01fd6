"""`onesctl policy`: which policies there are, which one decides, and another one instead."""

from __future__ import annotations

from typing import Any

import click

from ones.daemon.ctl.client import asks
from ones.daemon.ctl.completing import policies
from ones.daemon.ctl.listing import Listing, json_wanted, listing, print_json
from ones.daemon.ctl.table import Columns, cell
from ones.daemon.times import moment
from ones.policies.catalogue import OFFERS

COLUMNS: Columns = {
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
@click.option("--all", "everything", is_flag=True, help="The rest, too.")
@listing(COLUMNS)
def list_(*, everything: bool, listing: Listing, as_json: bool) -> None:
    """The policies that differ most: what each optimises, what it knows of a job."""
    rows = [
        {
            "policy": name,
            "optimises": offer.about,
            "information": offer.information,
            "needs": offer.needs or None,
        }
        for name, offer in OFFERS.items()
        if offer.usual or everything
    ]
    if as_json:
        print_json({"meta": {"schema": 1}, "policies": rows})
        return
    listing.show([{**row, "information": _knows(str(row["policy"]))} for row in rows])
    if listing.header and not everything:
        rest = sum(not offer.usual for offer in OFFERS.values())
        click.echo(f"onesctl policy list --all shows {rest} more", err=True)


def _knows(name: str) -> str:
    offer = OFFERS[name]
    return KNOWS["truth" if offer.peer else offer.information]


@policy.command()
@json_wanted
def show(*, as_json: bool) -> None:
    """The policy in force, its settings, and where it comes from."""
    answer = _ask("GET", None)
    if as_json:
        print_json(answer)
        return
    click.echo(_where_from(answer))
    for name, value in sorted(answer["settings"].items()):
        click.echo(f"  {name} = {cell(_text(value))}")


@policy.command("set")
@click.argument("name", required=False, shell_complete=policies)
@click.option("--default", is_flag=True, help="Go by the configuration again.")
@json_wanted
def set_(name: str | None, *, default: bool, as_json: bool) -> None:
    """Decide by NAME from the next round on, restarts of onesd included, until --default."""
    if default == (name is not None):
        raise click.UsageError("name a policy, or give --default; all: onesctl policy list --all")
    answer = _ask("POST", {"policy": name})
    if as_json:
        print_json(answer)
    else:
        click.echo(_where_from(answer))


def _ask(method: str, body: object) -> Any:
    return asks(method, "/v1/policy", body)


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
