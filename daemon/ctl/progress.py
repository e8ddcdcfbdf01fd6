"""How far long work is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import click

from ones.daemon.ctl.table import cell
from ones.daemon.times import duration
from ones.policies.model import Seconds

LOG_EVERY: Seconds = 30.0
Watch = Callable[[str, Seconds, int], None]  # told the policy, the time there and how many ended


@contextmanager
def progress(policies: int, jobs: int) -> Iterator[Watch]:
    """Of replays of so many jobs under so many policies."""
    ended: dict[str, int] = {}
    if sys.stderr.isatty():
        label = "replay" if policies > 1 else ""
        with click.progressbar(
            length=policies * jobs,
            label=label,
            file=sys.stderr,
            show_pos=True,
            item_show_func=lambda text: text,
        ) as bar:

            def draw(policy: str, now: Seconds, count: int) -> None:
                more = count - ended.get(policy, 0)
                ended[policy] = count
                if more > 0:
                    bar.update(more, f"{cell(policy)} at {duration(now)}")

            yield draw
        return
    said = dict[str, float]()
    began = monotonic()

    def write(policy: str, now: Seconds, count: int) -> None:
        if monotonic() - said.get(policy, began) < LOG_EVERY:
            return
        said[policy] = monotonic()
        click.echo(
            f"onesctl: {cell(policy)}: {count:,} of {jobs:,} jobs have ended, {duration(now)} of"
            " simulated time",
            err=True,
        )

    yield write
