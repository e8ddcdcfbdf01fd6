"""The command line of onesctl."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click

from ones.daemon.config import ConfigError
from ones.daemon.ctl import cluster, jobs
from ones.daemon.ctl.client import NotAllowed, Unreachable, Way
from ones.daemon.ctl.table import cell
from ones.slurm_ext.errors import OnesError

UNREACHABLE, NOT_ALLOWED = 3, 4
# What writing to an open file fails with, as opposed to opening one or to a socket.
CANNOT_WRITE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.ESTALE}
)

LATER: Mapping[str, str] = {
    "demo": "A simulated cluster with jobs that come and go, and onesd at work on it.",
    "estimate": "What a batch script, or a job like one that ran, should ask for, and why.",
    "policy": "Which policies there are, and which one decides.",
    "replay": "Run the jobs of TRACE on a simulated cluster and a virtual clock.",
    "report": "What runs asked for and used.",
    "web": "A link to the page that onesd serves to browsers, which signs you in.",
    "where": "In which cluster an elastic job would end first, were it submitted now.",
    "solve": "Solve scheduling problems in files with Gavel's policies.",
}
"""Commands that are imported when they are called, with what `--help` says of each until then."""


class _Later(click.Command):
    """Stands for a command until somebody calls it: some load what takes a second."""

    def make_context(self, *given: Any, **named: Any) -> click.Context:
        assert self.name is not None
        command = getattr(import_module(f"ones.daemon.ctl.{self.name}"), self.name)
        assert isinstance(command, click.Command)
        return command.make_context(*given, **named)


class _Group(click.Group):
    """The one place where our errors become one line and an exit code."""

    def main(self, *given: Any, **named: Any) -> Any:
        _replace_foreign_letters()
        try:
            try:
                return super().main(*given, **named)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # Python would do so at exit, with nobody to catch faults
        except OSError as fault:
            if fault.errno not in CANNOT_WRITE | {errno.EPIPE}:
                raise
            _forget_output(sys.stdout)
            if fault.errno == errno.EPIPE:  # whoever reads has seen enough
                sys.exit(1)
            _fail(OnesError(f"can't write: {fault.strerror}"), 1)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Unreachable as fault:
            _fail(fault, UNREACHABLE)
        except NotAllowed as fault:
            _fail(fault, NOT_ALLOWED)
        except ConfigError as fault:
            _fail(fault, 2)
        except OnesError as fault:
            _fail(fault, 1)


def _fail(fault: OnesError, code: int) -> None:
    try:
        click.echo(f"onesctl: error: {cell(str(fault))}", err=True)
    except OSError:
        _forget_output(sys.stderr)  # then the exit code has to say it alone
    sys.exit(code)


def _replace_foreign_letters() -> None:
    """One name that the terminal's encoding has no letters for must not cost the listing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _forget_output(stream: TextIO) -> None:
    """What its buffer still holds goes nowhere: at exit Python would fail to write it again."""
    with suppress(OSError):  # not a file, as in tests
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="Instead of /etc/ones/ones.toml.")
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    envvar="ONESCTL_SOCKET",
    help="Of an onesd on this host, instead of the configuration's.",
)
@click.version_option(package_name="ones-slurm")
@click.pass_context
def main(context: click.Context, config: Path | None, socket: Path | None) -> None:
    """See and steer what ONES does with elastic jobs."""
    context.obj = Way(config, socket)


for command in (
    *(jobs.jobs, jobs.job, jobs.explain),
    *(cluster.status, cluster.nodes, cluster.plan, cluster.sharing),
    *(cluster.pause, cluster.resume, cluster.handover),
):
    main.add_command(command)
for name, told in LATER.items():
    main.add_command(_Later(name, help=told))
