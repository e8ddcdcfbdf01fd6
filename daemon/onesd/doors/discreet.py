"""What a user is told of another's job that shares a GPU with one of his."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ones.daemon.onesd.service import Service

Json = dict[str, Any]
_OF_SHARING = re.compile(
    r"\b(?:shares?|shared|beside|separated from)\b|\bof (?:its|their) speed|\bjob \d+ comes first"
)
_ANOTHERS = (  # what tells of a job on a shared GPU, by its number, and how another's is told
    (
        re.compile(r"\bjob (\d{1,10}): (\d+%) and \d+% of their speeds"),
        r"another user's job: \2 of its speed",  # the first one is that of the job that is told of
    ),
    (
        re.compile(r"\bjob (\d{1,10}) runs at \d+% of its speed alone, expected \d+%"),
        r"another user's job runs slower than expected",
    ),
    (re.compile(r"\bjob (\d{1,10})\b"), r"another user's job"),
)


class Discreet:
    """How things are told to a user: of another's job that shares a GPU with one of his neither
    the number nor the speed.

    What his jobs wait for is told in full. Where `only` is None, an operator asks, who may see all.
    """

    def __init__(self, controller: Service, only: str | None) -> None:
        self._lives = controller.books.lives
        self._only = only
        self._known: dict[int, bool] = {}

    def may_see(self, number: int) -> bool:
        """Whether the job is one of his."""
        if self._only is None:
            return True
        if number not in self._known:
            known = self._lives.job(number)
            self._known[number] = known is not None and known.user == self._only
        return self._known[number]

    def text(self, text: str) -> str:
        """A reason for something about a job of his."""
        return text if self._only is None else "; ".join(map(self._clause, text.split("; ")))

    def move(self, move: Json) -> Json:
        """A move of a job of his, as the journal has it."""
        told: Json = {name: self.text(move[name]) for name in ("reason", "outcome") if name in move}
        if move.get("beside") is not None and not self.may_see(move["beside"]):
            told["beside"] = None
        return move | told

    def _clause(self, clause: str) -> str:
        if _OF_SHARING.search(clause):
            for found, words in _ANOTHERS:
                clause = found.sub(partial(self._without, words), clause)
        return clause

    def _without(self, words: str, found: re.Match[str]) -> str:
        return found[0] if self.may_see(int(found[1])) else found.expand(words)
