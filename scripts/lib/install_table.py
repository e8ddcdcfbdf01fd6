"""The table of scripts/test-install: distributions and Slurm releases by steps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec


class Row(msgspec.Struct):
    """What became of one distribution."""

    steps: dict[str, str]  # step -> its time, or FAILED
    may: dict[str, dict[str, str]]  # what the sandboxes' probe tried -> who -> yes, or why not


def lined_up(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        yield "  ".join(text.ljust(width) for text, width in cells).rstrip()


def crossed(first: str, rows: dict[str, dict[str, str]], *, missing: str) -> Iterable[str]:
    """Rows by the columns that any of them has."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [
        [name, *(row.get(column, missing) for column in columns)] for name, row in rows.items()
    ]
    return lined_up([[first, *columns], *lines])


def main() -> None:
    rows = [msgspec.json.decode(Path(path).read_bytes(), type=Row) for path in sys.argv[1:]]
    print(
        *crossed("", {str(at): row.steps for at, row in enumerate(rows, 1)}, missing="-"), sep="\n"
    )
    if rows and rows[0].may:
        print(f"\nUnder systemd, on {rows[0].steps['distribution']} in a container:")
        print(*crossed("tried", rows[0].may, missing=""), sep="\n")


if __name__ == "__main__":
    main()
