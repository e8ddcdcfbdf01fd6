"""What is wrong with a trace, a profile, a description of a cluster or a replay of these."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ones.slurm_ext.errors import OnesError


class TraceError(OnesError):
    """A file that can't be used: its text names the file, the line and the column at fault."""

    def __init__(
        self, file: Path, reason: str, *, line: int | None = None, column: str | None = None
    ) -> None:
        self.file, self.reason, self.line, self.column = file, reason, line, column
        at = f"{file}:{line}" if line is not None else f"{file}"
        where = f"column {clean(column)}: " if column is not None else ""
        super().__init__(f"{at}: {where}{clean(reason)}")

    def __reduce__(self) -> tuple[object, ...]:
        """So that it comes whole out of another process."""
        return partial(TraceError, line=self.line, column=self.column), (self.file, self.reason)


class ReplayError(OnesError):
    """A replay that can't come to an end; names the job at fault."""


def clean(text: str) -> str:
    """Foreign text on one line of bearable length, without control characters."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown if len(shown) <= 400 else shown[:397] + "..."


def quoted(text: str) -> str:
    """A cell as an error shows it."""
    return f"'{text[:40]}...'" if len(text) > 43 else f"'{text}'"
