"""docs/architecture.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from ones.daemon.onesd.books.store import Store

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WRITES = re.compile(
    r"""(?:INSERT(?:\ OR\ \w+)?\ INTO|UPDATE|DELETE\ FROM)\s+(\w+)|put\(\s*"(\w+)\"""", re.VERBOSE
)
# It runs where onesd is gone, and imports nothing of it.
APART = {("holds", "daemon/release.py")}


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]


def test_every_table_is_written_by_one_module_which_the_page_names() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| `([\w/.]+)` \|", section("Tables"), re.MULTILINE))
    store = Store(":memory:")
    tables = {
        row["name"] for row in store.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    writers = set()
    for path in sorted((ROOT / "daemon").rglob("*.py")):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        if name == "daemon/onesd/books/store.py":
            # Beside its own facts it makes the tables, and forgets rows that are too old.
            text = text.partition("class Store:")[2].partition("def forget")[0]
        found = {one or other for one, other in WRITES.findall(text)}
        writers |= {(table, name) for table in found & tables}
    assert writers - APART == set(told.items())
    assert told.keys() == tables


def test_only_books_speak_to_the_database() -> None:
    """Beside transactions around several of them, and facts."""
    asks = re.compile(r"store\.(?:rows?|write|put)\(")
    speak = [path for path in (ROOT / "daemon").rglob("*.py") if asks.search(path.read_text())]
    assert {str(path.parent.relative_to(ROOT)) for path in speak} == {"daemon/onesd/books"}


def test_every_file_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:\w+/)+[\w.]*)`", PAGE)
    assert len(named) > 50
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_way_of_a_job_is_counted_right() -> None:
    way = section("The way of a job")
    steps = re.findall(r"^\| .* \|$", way, re.MULTILINE)[1:]
    files = set(re.findall(r"`((?:\w+/)+\w+\.\w+)`", way))
    assert f"That is {len(steps)} steps and {len(files)} files." in way
