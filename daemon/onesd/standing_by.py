"""An onesd that waits for its turn: it looks at the folder of the terms, and at nothing else."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from pathlib import Path

from ones.daemon.config import Config
from ones.daemon.onesd.books.store import Store, inherit
from ones.daemon.onesd.doors.standby import StandbyDoors
from ones.daemon.onesd.terms import FOLDER, LOOKS, Candidate, Record, Term, Terms, TermsError
from ones.daemon.systemd import notify

log = logging.getLogger(__name__)


def terms_of(config: Config) -> Terms:
    """Where the hosts of this configuration's onesd find out which of them acts."""
    return Terms(Path(config.store).parent / FOLDER)


def candidate_of(config: Config, terms: Terms, *, yielded: int = 0) -> Candidate:
    """Ourselves; term `yielded` was ours, and handed over."""

    def record(number: int) -> Record:
        store = _database(config, number).name
        return Record(host=socket.gethostname(), address=config.controller, store=store)

    takeover = config.standby.takeover
    return Candidate(terms, record, takeover=takeover, clock=time.monotonic, yielded=yielded)


async def stand_by(config: Config, candidate: Candidate, stop: asyncio.Event) -> Term | None:
    """Wait until there is a term for us; None: told to stop.

    Raises OnesError where the folder can't be read at first, or the doors not be opened.
    """
    made = await asyncio.to_thread(candidate.look)
    if made is not None:
        return made
    doors = StandbyDoors(config, candidate)
    runner = await doors.serve()
    notify("READY=1")
    active, fault = "", ""
    try:
        while made is None and not stop.is_set():
            if candidate.seen is not None and active != (active := candidate.seen.record.host):
                log.info("standby of %s", active)
            await _pause(config.standby.takeover / LOOKS, stop)
            try:
                made, fault = await asyncio.to_thread(candidate.look), ""
            except TermsError as new:
                if fault != (fault := str(new)):
                    log.error("%s; looking again", new)
            notify("WATCHDOG=1")
    finally:
        await runner.cleanup()
    return made


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass


def open_store(config: Config, terms: Terms, term: Term) -> Store:
    """The database of our term, which begins as a copy of the one before.

    Each term has one of its own: whoever is no longer in office, and doesn't know it, writes into
    his, which nobody reads any more. Those older than the one before are removed. Raises OnesError.
    """
    own, before = _database(config, term.number), _before(config, terms, term)
    inherit(before, own)
    store = Store(own, shared=True)
    try:
        _remove_before(term, own, before)
    except OSError as fault:
        log.warning("databases of earlier terms stay in %s: %s", own.parent, fault.strerror)
    return store


def _remove_before(term: Term, own: Path, before: Path) -> None:
    """Remove the databases of earlier terms, but of the one before."""
    stem = re.escape(own.name.removesuffix(f".{term.number}.sqlite"))
    names = re.compile(rf"{stem}\.(\d+)\.sqlite(-journal)?", re.ASCII)
    for path in own.parent.iterdir():
        found = names.fullmatch(path.name)
        if found and int(found[1]) < term.number and not path.name.startswith(before.name):
            path.unlink(missing_ok=True)


def _database(config: Config, number: int) -> Path:
    return Path(config.store).with_suffix(f".{number}.sqlite")


def _before(config: Config, terms: Terms, term: Term) -> Path:
    """The database of the last term that had got so far as to have one."""
    folder = Path(config.store).parent
    for number in reversed(terms.numbers()):
        if number < term.number:
            path = folder / Path(terms.read(number).store).name
            if path.exists():
                return path
    return Path(config.store)
