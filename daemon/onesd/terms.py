"""Which of several onesd acts: numbered terms, in a folder that their hosts share.

A term is claimed by making its file under the next number, which a file system does for one host
alone (link fails where the name is taken). Whoever has claimed one writes into the files of all
earlier terms that they are taken, and acts only then. So the holder of a term knows that it still
holds it by opening its own file, which network file systems answer from the server; that is done
before each command, and no clocks are compared. See docs/decisions/0023.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ones.slurm_ext.errors import OnesError, Superseded

FOLDER = "terms"  # beside the database
KEPT = 100  # terms whose files are kept, for people and against a number given twice
LOOKS = 5  # times within the time of a takeover that a standby looks, and an active one beats
_NAME = re.compile(r"[0-9]{10}", re.ASCII)
_HALF = re.compile(r"\.[0-9]{10}\.[0-9a-f]{32}", re.ASCII)
LONGEST = 4096  # bytes of a file in the folder
T = TypeVar("T")


class TermsError(OnesError):
    """The folder of the terms can't be read or written."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is written of a term: who has it, and where its database is."""

    host: str
    address: str  # HOST:PORT at which agents and onesctl reach it
    store: str  # the name of its database, in the folder above
    taken: int = 0  # by which later term; 0: by none


class _Beat(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    ended: bool = False


_RECORD, _BEAT = msgspec.json.Decoder(Record), msgspec.json.Decoder(_Beat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The latest term, as its folder has it."""

    number: int
    record: Record
    beats: int  # signs of life that its holder has given
    ended: bool  # whether its holder has given it up

    @property
    def sign(self) -> tuple[int, int]:
        """Another one with each sign of life."""
        return self.number, self.beats


class Term:
    """One that we have claimed; `check` says whether it is still ours."""

    def __init__(self, terms: Terms, number: int, record: Record) -> None:
        self.number = number
        self.record = record
        self._terms = terms
        self._beats = 0

    def check(self) -> None:
        """Raises Superseded where another onesd has taken over, TermsError where nobody can tell.

        Whoever is about to touch Slurm asks just before.
        """
        try:
            found = self._terms.read(self.number)
        except FileNotFoundError:
            raise Superseded(f"term {self.number} is over, and forgotten") from None
        if found.taken:
            raise Superseded(f"another onesd has taken over: term {found.taken} follows ours")

    def beat(self) -> None:
        """Give a sign of life. Raises as `check` does."""
        self.check()
        self._beats += 1
        self._terms.write_beat(self.number, _Beat(count=self._beats))

    def end(self) -> None:
        """Give it up: the next one may begin at once. Raises TermsError."""
        self._beats += 1
        self._terms.write_beat(self.number, _Beat(count=self._beats, ended=True))


class Terms:
    """The folder of all terms. Its calls wait for the file system.

    It is made by hand, once: one that is missing is on a file system that is not mounted here, and
    whoever made it anew would be alone in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def latest(self) -> Seen | None:
        """None where there was no term yet. Raises TermsError."""
        numbers = self.numbers()
        if not numbers:
            return None
        number = numbers[-1]
        try:
            record = self.read(number)
        except FileNotFoundError:
            raise TermsError(
                f"{self._path(number)}: it has just been removed; look again"
            ) from None
        with suppress(FileNotFoundError):
            beat = self._decoded(self._beat_path(number), _BEAT)
            return Seen(number=number, record=record, beats=beat.count, ended=beat.ended)
        return Seen(number=number, record=record, beats=0, ended=False)

    def claim(self, after: int, make: Callable[[int], Record]) -> Term | None:
        """The term that follows number `after` (0: the first), or None where another one has it.

        `make` gives its record by its number. When this returns, no earlier term passes its
        `check` any more. Raises TermsError.
        """
        number = after + 1
        record = make(number)
        try:
            if not self._made(number, record):
                return None
            others = self.numbers()
            if others[-1] != number:
                return None  # ours is so old a number that those after it are forgotten, or nearly
            for other in others[:-1]:
                self._take(other, by=number)
                if other <= number - KEPT:
                    self._path(other).unlink(missing_ok=True)
                    self._beat_path(other).unlink(missing_ok=True)
            for path in self.folder.glob(".*"):  # of those who were killed as they wrote
                if _HALF.fullmatch(path.name) and int(path.name[1:11]) < number:
                    path.unlink(missing_ok=True)
        except OSError as fault:
            raise self._fault(fault) from None
        return Term(self, number, record)

    def read(self, number: int) -> Record:
        """Raises FileNotFoundError and TermsError."""
        return self._decoded(self._path(number), _RECORD)

    def write_beat(self, number: int, beat: _Beat) -> None:
        try:
            self._put(number, self._beat_path(number), msgspec.json.encode(beat))
        except OSError as fault:
            raise self._fault(fault) from None

    def _made(self, number: int, record: Record) -> bool:
        """Whether the file of that number is new, and ours, with all that is in it."""
        beside = self._written(number, msgspec.json.encode(record))
        try:
            os.link(beside, self._path(number))
        except FileExistsError:
            # Over NFS the answer to a link that was made may be lost, and the question repeated.
            return beside.stat().st_nlink == 2
        finally:
            beside.unlink()
        return True

    def _take(self, number: int, *, by: int) -> None:
        with suppress(FileNotFoundError):
            found = self.read(number)
            if not found.taken:
                taken = msgspec.structs.replace(found, taken=by)
                self._put(by, self._path(number), msgspec.json.encode(taken))

    def _put(self, by: int, path: Path, text: bytes) -> None:
        """By rename: who reads it sees what was before or what is now, whole."""
        self._written(by, text).replace(path)

    def _written(self, by: int, text: bytes) -> Path:
        """A file of a name of its own, on disk; `by` the holder of that term, or who would be."""
        path = self.folder / f".{by:010}.{uuid.uuid4().hex}"
        with path.open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _decoded(self, path: Path, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            with path.open("rb") as file:
                return decoder.decode(file.read(LONGEST))
        except FileNotFoundError:
            raise
        except OSError as fault:
            raise self._fault(fault) from None
        except (msgspec.DecodeError, RecursionError):
            raise TermsError(
                f"{path}: no record of a term; stop all onesd, then move the folder away"
            ) from None

    def numbers(self) -> list[int]:
        """Of the terms whose files are kept, in their order. Raises TermsError."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError as fault:
            raise self._fault(fault) from None
        return sorted(int(name) for name in names if _NAME.fullmatch(name))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:010}"

    def _beat_path(self, number: int) -> Path:
        return self.folder / f"{number:010}.beat"

    def _fault(self, fault: OSError) -> TermsError:
        return TermsError(
            f"{self.folder}: {fault.strerror or fault}; make it once, on a file system that every"
            " host of an onesd sees, and let onesd's user write there"
        )


class Watch:
    """For how long the active onesd has given no sign of life, by the clock of one host alone."""

    def __init__(self, takeover: float) -> None:
        self._takeover = takeover
        self._sign: tuple[int, int] | None = None
        self._since = self._looked = 0.0

    def silent(self, sign: tuple[int, int], now: float) -> bool:
        """Whether that has lasted for the time of a takeover; to be asked at each look.

        Who was stopped itself between two looks has not looked, and begins anew.
        """
        missed = now - self._looked > self._takeover / 2
        if sign != self._sign or missed:
            self._sign, self._since = sign, now
        self._looked = now
        return now - self._since >= self._takeover


class Candidate:
    """One who waits for a term; `seen` is the latest, as he last saw it."""

    def __init__(
        self,
        terms: Terms,
        record: Callable[[int], Record],
        *,
        takeover: float,
        clock: Callable[[], float],
        yielded: int = 0,
    ) -> None:
        self.seen: Seen | None = None
        self._terms = terms
        self._record = record
        self._takeover = takeover
        self._clock = clock
        self._watch = Watch(takeover)
        self._yielded = yielded  # this term was ours, and others come first for the next
        self._began = clock()

    def look(self) -> Term | None:
        """Look once; the next term, claimed, where it is our turn. Raises TermsError."""
        seen = self.seen = self._terms.latest()
        if seen is None:
            return self._terms.claim(0, self._record)
        now = self._clock()
        silent = self._watch.silent(seen.sign, now)
        if seen.ended:
            waits = seen.number == self._yielded and now - self._began < self._takeover
        else:
            waits = not silent
        return None if waits else self._terms.claim(seen.number, self._record)
