"""Foreign text as a page may show it: of bearable length, and with nothing in it that is hidden."""

from __future__ import annotations

import unicodedata
from typing import Any

LONGEST = 400  # characters; names in tables are cut further, by the page's own width
MOST = 2000  # entries of one list
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def readable(text: str, *, longest: int = LONGEST) -> str:
    """The text, cut, with control and direction characters as `⟨U+202E⟩`."""
    kept = text if len(text) <= longest else text[: longest - 1] + "…"
    if kept.isascii() and kept.isprintable():  # nearly all: quick enough not to be remembered
        return kept
    return "".join(map(_shown, kept))


def all_readable(value: Any) -> Any:
    """The same of every text in what is to become JSON, and lists of bearable length."""
    match value:
        case str():
            return readable(value)
        case dict():
            return {readable(str(key)): all_readable(one) for key, one in value.items()}
        case list() | tuple():
            return [all_readable(one) for one in value[:MOST]]
    return value


def _shown(char: str) -> str:
    return f"⟨U+{ord(char):04X}⟩" if unicodedata.category(char) in _HIDDEN else char
