"""`onesctl web`: a link to the page that onesd serves to browsers."""

from __future__ import annotations

import hashlib
import secrets

import click

from ones.daemon.ctl.client import asks
from ones.daemon.ctl.listing import json_wanted, print_json
from ones.daemon.ctl.table import cell
from ones.policies.words import lasting


@click.command()
@json_wanted
def web(*, as_json: bool) -> None:
    """A link to the page that onesd serves to browsers, which signs you in.

    It holds for a while, and once. Who has it is you: give it to nobody.
    """
    secret = secrets.token_urlsafe(32)
    # onesd is told the digest alone, since the question may cross the network.
    answer = asks("POST", "/v1/page", {"digest": hashlib.sha256(secret.encode()).hexdigest()})
    link = f"{cell(answer['url'])}/#sign-in={secret}"
    if as_json:
        print_json({"meta": {"schema": 1}, "link": link, "lasts": answer["lasts"]})
        return
    click.echo(link)
    click.echo(f"It signs you in, within {lasting(answer['lasts'])}, and once.", err=True)
    if "//127." in link or "//localhost" in link:
        port = link.partition("//")[2].partition("/")[0].rpartition(":")[2]
        click.echo(
            "The page is served on onesd's own host only. From another one, first:"
            f" ssh -L {port}:127.0.0.1:{port} HOST",
            err=True,
        )
