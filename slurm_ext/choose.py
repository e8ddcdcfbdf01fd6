"""Which reader is used, and why."""

from __future__ import annotations

import logging
from typing import Literal

from ones.slurm_ext.command_reader import CommandReader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.snapshot import Reader

log = logging.getLogger(__name__)


def choose_reader(name: Literal["auto", "pyslurm", "commands"], commands: Commands) -> Reader:
    """The reader that the configuration names, or the best that works here; logs which and why.

    Raises OnesError where the named one can't work here.
    """
    if name == "commands":
        log.info("Slurm is read by its commands: the configuration says so")
        return CommandReader(commands)
    # Imported only here: it needs libslurm, which a site that reads by commands may not have.
    from ones.slurm_ext import pyslurm_reader  # noqa: PLC0415

    obstacle = pyslurm_reader.available(commands.timeout)
    if obstacle is None:
        log.info("Slurm is read by pyslurm: it is here and matches this Slurm")
        return pyslurm_reader.PyslurmReader(commands.timeout)
    if name == "pyslurm":
        raise OnesError(f'slurm.reader = "pyslurm": {obstacle}; use "auto" or "commands"')
    log.info("Slurm is read by its commands: no pyslurm (%s)", obstacle)
    return CommandReader(commands)
