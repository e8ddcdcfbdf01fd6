"""Which onesd of a story acts: real terms in a folder of its own, on the story's clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from ones.daemon.onesd.terms import LOOKS, Candidate, Record, Term, Terms

TAKEOVER = 15.0


class Office:
    """Gives a story its next term, and sees who acts without one."""

    def __init__(self, pass_time: Callable[[float], None]) -> None:
        self._folder = TemporaryDirectory(prefix="ones-terms-")
        self._terms = Terms(Path(self._folder.name))
        self._pass_time = pass_time
        self._now = 0.0
        self._latest = 0
        self.foul = ""  # what was done by one whose term was over

    def next(self) -> Term:
        """As a standby gets it: at once where the last one has been ended, else after silence."""
        candidate = Candidate(self._terms, _record, takeover=TAKEOVER, clock=lambda: self._now)
        while (term := candidate.look()) is None:
            self._now += TAKEOVER / LOOKS
            self._pass_time(TAKEOVER / LOOKS)
        self._latest = term.number
        return term

    def fence_of(self, term: Term) -> Callable[[], None]:
        """The term's own, which is held to account."""

        def fence() -> None:
            term.check()
            if term.number != self._latest:
                self.foul = f"the onesd of term {term.number} acted in term {self._latest}"

        return fence


def _record(number: int) -> Record:
    return Record(host=f"ctl{1 + number % 2}", address="ctl:7667", store=f"ones.{number}.sqlite")
