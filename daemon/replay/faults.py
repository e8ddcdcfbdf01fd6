"""What is wrong with a trace, a profile or a description of a cluster."""

from __future__ import annotations

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


def clean(text: str) -> str:
    """Foreign text on one line of bearable length, without control characters."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown if len(shown) <= 400 else shown[:397] + "..."


def quoted(text: str) -> str:
    """A cell as an error shows it."""
    return f"'{text[:40]}...'" if len(text) > 43 else f"'{text}'"
