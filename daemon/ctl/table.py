"""Slurm-like output: aligned columns, no boxes, times as Slurm writes them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click


def duration(seconds: float | None) -> str:
    """D-HH:MM:SS, as Slurm prints elapsed times."""
    if seconds is None:
        return "-"
    total = max(0, round(seconds))
    days, rest = divmod(total, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def moment(at: float | None) -> str:
    """Local time as sacct prints it."""
    return "-" if not at else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def cell(value: Any) -> str:
    """One value on one line; control characters of hostile names never reach the terminal."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case _:
            return "".join(char if char.isprintable() else "?" for char in str(value))


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    header: bool = True,
    fields: str | None = None,
) -> str:
    """Rows as aligned columns. `columns` maps field -> heading; `fields` picks and orders them."""
    chosen = list(columns) if fields is None else [name.strip() for name in fields.split(",")]
    unknown = [name for name in chosen if name not in columns]
    if unknown:
        raise click.UsageError(f"no field '{unknown[0]}'; fields are {','.join(columns)}")
    lines = [[columns[name] for name in chosen]] if header else []
    lines += [[cell(row.get(name)) for name in chosen] for row in rows]
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(chosen))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
