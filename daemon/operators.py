"""Who may steer onesd: those whom Slurm knows as Operator or Administrator."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError

log = logging.getLogger(__name__)
LIFETIME = 60.0  # seconds for which an answer of sacctmgr is believed


class Operators:
    """Slurm's operators, asked for once in a while."""

    def __init__(self, commands: Commands, *, clock: Callable[[], float]) -> None:
        self._commands = commands
        self._clock = clock
        self._asked = 0.0
        self._names: frozenset[str] = frozenset()

    def include(self, user: str) -> bool:
        """Whether the user is one; where Slurm doesn't answer, by its last answer."""
        if self._clock() - self._asked > LIFETIME:
            try:
                text = self._commands.run(
                    "sacctmgr", "-nP", "show", "user", "format=user,adminlevel"
                )
            except (SlurmError, subprocess.SubprocessError) as fault:
                log.warning("sacctmgr: %s; nobody new is taken for an operator", fault)
                return user in self._names
            pairs = [line.split("|") for line in text.splitlines()]
            self._names = frozenset(
                pair[0]
                for pair in pairs
                if len(pair) == 2 and pair[1] in ("Operator", "Administrator")
            )
            self._asked = self._clock()
        return user in self._names
