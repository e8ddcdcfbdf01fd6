"""`onesctl demo`: a whole onesd on a simulated cluster, to look at with every other command."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from ones.daemon.demo.run import Demonstration, run
from ones.daemon.demo.show import Show
from ones.daemon.onesd.doors import views
from ones.daemon.times import moment
from ones.policies.catalogue import OFFERS
from ones.policies.words import counted
from ones.slurm_ext.errors import OnesError

EVERY = 2.0  # seconds between two lines of what goes on, without a terminal ten times as many


class NoDemonstration(OnesError):
    """It can't be shown that way."""


@click.command()
@click.option("--nodes", type=click.IntRange(2, 1024), default=80, show_default=True)
@click.option(
    "--speed",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="How many times as fast as real time; as far as this machine can.",
)
@click.option("--policy", default="ones", show_default=True, help="Another: onesctl policy list.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--observe", is_flag=True, help="Decide, and do nothing: as before it is enabled.")
@click.option(
    "--for",
    "most",
    type=click.FloatRange(0.1, 86400),
    metavar="SECONDS",
    help="End after so many seconds, instead of at ctrl-C.",
)
def demo(
    *, nodes: int, speed: float, policy: str, seed: int, observe: bool, most: float | None
) -> None:
    """A simulated cluster with jobs that come and go, and onesd at work on it.

    It needs neither Slurm nor GPUs nor root, and leaves nothing behind.
    """
    wanted = Demonstration(
        nodes=nodes, speed=speed, policy=policy, seed=seed, observes=observe, most=most
    )
    try:
        run(wanted, opened=lambda socket, link: _opened(wanted, socket, link), seen=_Lines())
    except ValueError as fault:
        raise NoDemonstration(f"{fault}") from None
    click.echo()


def _opened(wanted: Demonstration, socket: Path, link: str) -> None:
    about = OFFERS[wanted.policy].about if wanted.policy in OFFERS else wanted.policy
    click.echo(
        f"A simulated cluster of {counted(wanted.nodes, 'node')}, {wanted.speed:g} times as fast"
        f" as real time, under policy {wanted.policy} ({about}).\n"
        "In a browser, once (then again by `onesctl web`):\n\n"
        f"  {link}\n\n"
        "In another terminal:\n\n"
        f"  export ONESCTL_SOCKET={socket}\n"
        "  onesctl status\n"
        "  onesctl jobs --watch\n"
        "  onesctl explain JOB\n"
        "  onesctl policy set fifo\n"
        "  onesctl web\n\n"
        "Ctrl-C ends it, and leaves nothing behind."
    )


class _Lines:
    """One line of what goes on, now and then; on a terminal always the same one."""

    def __init__(self) -> None:
        self._next = 0.0
        self._terminal = sys.stdout.isatty()

    def __call__(self, show: Show) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY * (1 if self._terminal else 10)
        now = views.status(show.onesd.service, None)
        gpus, jobs = now["gpus"], now["jobs"]
        busy = gpus["elastic"] + gpus["other"]
        line = (
            f"{moment(show.world.now)}  {busy} of {gpus['total']} GPUs busy,"
            f" {counted(jobs['running'], 'elastic job')} running, {jobs['waiting']} waiting;"
            f" so far {counted(show.begun['start'], 'start')},"
            f" {counted(show.begun['resize'], 'resize')},"
            f" {counted(show.begun['preempt'], 'preemption')}"
        )
        click.echo(f"\r\x1b[K{line}" if self._terminal else line, nl=not self._terminal)
