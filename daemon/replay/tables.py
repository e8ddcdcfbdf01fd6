"""Tables of text, read strictly: every fault names its file, line and column."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from ones.daemon.replay.faults import TraceError, quoted

MOST_BYTES = 2**30  # a larger file is no trace
LARGEST = 2**53  # whole numbers that a float still holds


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    file: Path
    line: int
    cells: Mapping[str, str]

    def fault(self, column: str, reason: str) -> TraceError:
        return TraceError(self.file, reason, line=self.line, column=column)

    def has(self, column: str) -> bool:
        return bool(self.cells.get(column, "").strip())

    def text(self, column: str) -> str:
        """Raises TraceError where the cell is empty."""
        found = self.cells.get(column, "").strip()
        if not found:
            raise self.fault(column, "is empty")
        return found

    def number(self, column: str, *, least: float = -inf, most: float = inf) -> float:
        """A finite number. Raises TraceError."""
        text = self.text(column)
        try:
            found = float(text)
        except ValueError:
            raise self.fault(column, f"{quoted(text)} is not a number") from None
        if not isfinite(found):
            raise self.fault(column, f"{quoted(text)} is not a finite number")
        if found < least:
            raise self.fault(column, f"{quoted(text)} is less than {least:g}")
        if found > most:
            raise self.fault(column, f"{quoted(text)} is more than {most:g}")
        return found

    def count(self, column: str, *, least: int = 0, most: int = LARGEST) -> int:
        """A whole number. Raises TraceError."""
        found = self.number(column, least=least, most=most)
        if found != int(found):
            raise self.fault(column, f"{quoted(self.text(column))} is not a whole number")
        return int(found)


def text_of(file: Path, *, lenient: Callable[[str], bool] = lambda text: False) -> str:
    """The whole file. Raises TraceError where it can't be read or is no text.

    Bytes that are no UTF-8 are replaced where `lenient` says so of the text that there is then.
    """
    try:
        with file.open("rb") as opened:  # a pipe, too, whose size nobody knows
            found = opened.read(MOST_BYTES + 1)
        if len(found) > MOST_BYTES:
            raise TraceError(file, f"is larger than {MOST_BYTES // 2**20} MiB; cut it into parts")
    except OSError as fault:
        raise TraceError(file, f"can't be read: {fault.strerror}") from None
    try:
        text = found.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        text = found.decode("utf-8-sig", errors="replace")
        if not lenient(text):
            line = found.count(b"\n", 0, fault.start) + 1
            raise TraceError(file, "is not text in UTF-8", line=line) from None
    at = text.find("\0")
    if at >= 0:
        raise TraceError(
            file, "holds a zero byte: it is not a text file", line=text.count("\n", 0, at) + 1
        )
    return text


def rows(
    file: Path,
    required: Sequence[str],
    *,
    text: str | None = None,
    delimiter: str = ",",
    quoting: bool = True,
) -> Iterator[Row]:
    """The lines of a table whose first line names its columns. Raises TraceError on the way."""
    source = text_of(file) if text is None else text
    for row in rows_or_faults(file, required, source, delimiter=delimiter, quoting=quoting):
        if isinstance(row, TraceError):
            raise row
        yield row


def rows_or_faults(
    file: Path, required: Sequence[str], text: str, *, delimiter: str, quoting: bool
) -> Iterator[Row | TraceError]:
    """The same, with the fault of a line in its place. Raises TraceError where it is no table."""
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
    )
    columns: list[str] | None = None
    try:
        for cells in reader:
            line = reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if columns is None:
                columns = [cell.strip() for cell in cells]
                _check_columns(file, line, columns, required)
            elif len(cells) != len(columns):
                wrong = f"has {len(cells)} columns where the heading has {len(columns)}"
                yield TraceError(file, wrong, line=line)
            else:
                yield Row(file, line, dict(zip(columns, cells, strict=True)))
    except csv.Error as fault:
        raise TraceError(file, f"is no table: {fault}", line=reader.line_num) from None
    if columns is None:
        raise TraceError(file, f"is empty; its first line names the columns {','.join(required)}")


def _check_columns(file: Path, line: int, columns: list[str], required: Sequence[str]) -> None:
    for name in required:
        if name not in columns:
            raise TraceError(
                file, f"is missing; the columns are {','.join(columns)}", line=line, column=name
            )
    for name in columns:
        if columns.count(name) > 1:
            raise TraceError(file, "is there twice", line=line, column=name)
