"""Slurm-like output: aligned columns of bounded width, no boxes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

MOST = 200  # columns of the terminal that one column of ours takes, where nothing else is said
LONGEST = 10_000  # characters of a value that are looked at
CUT = "+"  # ends what was cut, as in sacct
_LEFT_TO_RIGHT = "\u200e"  # a mark that takes no room
_TURNING = frozenset({"R", "AL", "AN"})  # letters from right to left, and Arabic digits
_DIGITS = re.compile(r"([0-9]+)", re.ASCII)


def cell(value: Any) -> str:
    """One value on one line; control characters of hostile names never reach the terminal."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
    text = str(value)[:LONGEST]
    if text.isascii() and text.isprintable():
        return text
    plain = "".join(char if char.isprintable() else "?" for char in text)
    if any(unicodedata.bidirectional(char) in _TURNING for char in plain):
        # Between marks, so that the terminal turns round nothing of what stands beside it.
        return f"{_LEFT_TO_RIGHT}{plain}{_LEFT_TO_RIGHT}"
    return plain


@dataclass(frozen=True, slots=True)
class Column:
    """How one field is shown."""

    heading: str
    most: int = MOST  # columns of the terminal
    show: Callable[[Any], str | None] = cell
    usual: bool = True  # whether it is there unless it is asked for


Columns = Mapping[str, Column | str]
Row = Mapping[str, Any]


def columns_of(columns: Columns) -> dict[str, Column]:
    """Where only a heading stands, the rest is as usual."""
    return {
        name: Column(column) if isinstance(column, str) else column
        for name, column in columns.items()
    }


def table(
    rows: Sequence[Row],
    columns: Columns,
    *,
    header: bool = True,
    fields: str | None = None,
    sort: str | None = None,
) -> str:
    """Rows as aligned columns.

    `fields` picks and orders them: `FIELD[:WIDTH],...`, and `sort` the rows: `[-]FIELD,...`.
    """
    known = columns_of(columns)
    chosen = _chosen(known, fields)
    lines = [[column.heading for column in chosen.values()]] if header else []
    for row in _sorted(rows, known, sort):
        lines.append([_shown(column, row.get(name)) for name, column in chosen.items()])
    lines = [
        [cut(text, column.most) for text, column in zip(line, chosen.values(), strict=True)]
        for line in lines
    ]
    widths = [max((width(line[i]) for line in lines), default=0) for i in range(len(chosen))]
    return "\n".join(
        "  ".join(
            text + " " * (most - width(text)) for text, most in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def width(text: str) -> int:
    """The columns of a terminal that a printable text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, most: int) -> str:
    """The text within so many columns; where it was longer it ends as sacct has it."""
    if len(text) <= most and width(text) <= most:
        return text
    turned = text.startswith(_LEFT_TO_RIGHT)
    kept, room = [], most - len(CUT)
    for char in text[: 4 * most]:  # some take no room, and could be any number
        room -= _columns(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept) + CUT + (_LEFT_TO_RIGHT if turned else "")


def _columns(char: str) -> int:
    if char.isascii():
        return 1
    from wcwidth import wcwidth  # noqa: PLC0415 - only names that are not ASCII need its tables

    return max(0, wcwidth(char))


def _shown(column: Column, value: Any) -> str:
    text = column.show(value)
    return text if text is not None and column.show is cell else cell(text)


def _chosen(known: Mapping[str, Column], fields: str | None) -> dict[str, Column]:
    if fields is None:
        return {name: column for name, column in known.items() if column.usual}
    chosen: dict[str, Column] = {}
    for field in fields.split(","):
        name, _, most = field.strip().partition(":")
        column = _known(known, name)
        if most:
            if not (most.isascii() and most.isdecimal() and 0 < int(most[:5]) <= LONGEST):
                raise click.UsageError(
                    f"'{cell(field)[:40]}': a width is a number of columns to {LONGEST},"
                    f" such as {name}:40"
                )
            column = Column(column.heading, int(most), column.show)
        chosen[name] = column
    return chosen


def _known(known: Mapping[str, Column], name: str) -> Column:
    if name not in known:
        raise click.UsageError(f"no field '{cell(name)[:40]}'; fields are {','.join(known)}")
    return known[name]


def _sorted(rows: Sequence[Row], known: Mapping[str, Column], sort: str | None) -> Sequence[Row]:
    """The last key first: sorting keeps the order of rows that are alike."""
    ordered = list(rows)
    for key in reversed(sort.split(",")) if sort else ():
        name = key.strip().removeprefix("-").removeprefix("+")
        _known(known, name)
        ordered.sort(key=lambda row: _rank(row.get(name)), reverse=key.strip().startswith("-"))
    return ordered


def _rank(value: Any) -> tuple[int, Any]:
    """Numbers by size, names with their numbers by size (n2 before n10), nothing at all first."""
    match value:
        case None | "":
            return 0, 0
        case int() | float():
            return 1, value
    return 2, list(_parts(str(value)))


def _parts(text: str) -> Iterable[tuple[int, Any]]:
    for part in _DIGITS.split(text[:LONGEST].casefold()):
        if part:
            yield (0, int(part)) if part.isdecimal() and part.isascii() else (1, part)
