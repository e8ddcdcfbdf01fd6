"""What a page knows, in a form of which a round's changes can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Tables of rows by key, and single values; never edited, only replaced."""

    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


NOTHING = Part()


def change(before: Part, after: Part) -> Json:
    """What leads from one to the other; from NOTHING, all of it.

    `put` are rows and values that are new or other than before, `gone` the keys of rows that are
    no more.
    """
    if before is after:
        return {"tables": {}, "values": {}}
    tables: Json = {}
    for name, rows in after.tables.items():
        old = before.tables.get(name, {})
        put = {key: row for key, row in rows.items() if key not in old or old[key] != row}
        gone = [key for key in old if key not in rows]
        if put or gone or name not in before.tables:
            tables[name] = {"put": put, "gone": gone}
    values = {
        name: value
        for name, value in after.values.items()
        if name not in before.values or before.values[name] != value
    }
    return {"tables": tables, "values": values}
