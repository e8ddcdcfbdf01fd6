"""The commands of the pages in docs/, as their readers type them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMPT = re.compile(r"(?:(?P<user>[a-z]+)@)?(?P<node>[a-z0-9]+)(?P<kind>[#$]) (?P<command>.*)")
# The two ways of the operators' page: a reader skips what stands under the other's headings.
FROM_PACKAGES, FROM_SOURCE = "From packages", "From the source tree"


@dataclass(frozen=True)
class Typed:
    """A command as a page shows it: `ctl# ...` for root there, `alice@ctl$ ...` for a user."""

    section: str
    node: str
    user: str | None
    command: str


def typed(page: str, way: str = FROM_SOURCE) -> list[Typed]:
    """The commands of a page's console blocks, in order, for a reader who goes one way."""
    found, section, heading, inside = [], "", "", False
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if line.startswith("```"):
            inside = line == "```console"
        elif line.startswith("## "):
            section, heading = line[3:], ""
        elif line.startswith("### "):
            heading = line[4:]
        elif (
            inside
            and (heading == way or heading not in (FROM_PACKAGES, FROM_SOURCE))
            and (match := PROMPT.fullmatch(line))
        ):
            found.append(Typed(section, match["node"], match["user"], match["command"]))
    return found
