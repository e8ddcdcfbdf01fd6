"""Whether an onesd is there, as files tell it: its heartbeat, the lock of its database, its term.

For ones-release, which runs where onesd is gone and imports nothing of it.
"""

from __future__ import annotations

import fcntl
import json
import re
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

CLOCK_SKEW = 60.0  # seconds that a heartbeat may lie in the future, as in job_submit.lua
LONGEST_HEARTBEAT = 65536
TAKEOVER = 15.0  # seconds, as [standby] takeover is where the configuration doesn't say
LOOKS = 5  # times within that time at which a standby looks, and an active onesd beats
_DEFAULTS = {"store": "/var/lib/ones/ones.sqlite", "heartbeat": "/run/ones/heartbeat"}
_TERM = re.compile(r"[0-9]{10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What onesd last said, and how long that counts."""

    time: float
    lifetime: float
    hold: bool  # whether new jobs are held for it
    acts: bool  # whether it moves jobs, though it may hold no new ones

    @classmethod
    def parse(cls, text: str) -> Heartbeat | None:
        """None for anything that is not a whole heartbeat."""
        first, *rest = text.splitlines() or [""]
        said = dict(line.split(" ", 1) for line in rest if " " in line)
        try:
            time, lifetime = float(said["time"]), float(said["lifetime"])
        except (KeyError, ValueError):
            return None
        if first != "ones-heartbeat 1" or not (isfinite(time) and isfinite(lifetime)):
            return None
        return cls(time, lifetime, said.get("hold") == "yes", said.get("acts") == "yes")

    def fresh(self, now: float) -> bool:
        return now - self.time <= self.lifetime and self.time - now <= CLOCK_SKEW


@dataclass(frozen=True, slots=True)
class Absence:
    """Why nobody will start the jobs that are held for onesd."""

    why: str
    moves_too: bool  # whether the moves of onesd are nobody's any more, either


def absence(heartbeat: Heartbeat | None, now: float) -> Absence | None:
    """None while onesd is there and wants new jobs held."""
    if heartbeat is None:
        return Absence("onesd has no heartbeat", moves_too=True)
    if not heartbeat.fresh(now):
        return Absence(
            f"onesd's last heartbeat is {now - heartbeat.time:.0f} s old", moves_too=True
        )
    if not heartbeat.hold:
        return Absence("onesd holds no new jobs now", moves_too=not heartbeat.acts)
    return None


def read_heartbeat(path: Path) -> Heartbeat | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return Heartbeat.parse(file.read(LONGEST_HEARTBEAT))
    except OSError:
        return None


def read_paths(config: Path) -> dict[str, Path]:
    """Where store and heartbeat are, as far as the configuration says so and can be read."""
    found: dict[str, str] = dict(_DEFAULTS)
    for said in _tables(config):
        found |= {key: said[key] for key in found if isinstance(said.get(key), str)}
    paths = {key: Path(value) for key, value in found.items()}
    if read_takeover(config):
        paths["store"] = latest_store(paths["store"])
    return paths


def read_takeover(config: Path) -> float:
    """Seconds after which another host's onesd replaces a silent one; 0 where there is none."""
    several, takeover = False, TAKEOVER
    for said in _tables(config):
        standby = said.get("standby")
        if isinstance(standby, dict):
            several = bool(standby.get("controllers", several))
            seconds = standby.get("takeover")
            if isinstance(seconds, int | float) and 0 < seconds <= 600:
                takeover = seconds
    return takeover if several else 0.0


def _tables(config: Path) -> Iterator[dict[str, Any]]:
    """What the files of the configuration say that can be read.

    Not by onesd's own strict reader: a configuration that stops onesd must not stop this.
    """
    for file in [config, *sorted((config.parent / "ones.d").glob("*.toml"))]:
        with suppress(OSError, ValueError, RecursionError):
            yield tomllib.loads(file.read_text())


def latest_store(store: Path) -> Path:
    """Where several hosts have an onesd, each term of one of them has a database of its own."""
    numbers = [path.name for path in _listed(store.parent / "terms")]
    for number in sorted(filter(_TERM.fullmatch, numbers), reverse=True):
        with suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
            text = (store.parent / "terms" / number).read_text(errors="replace")
            found = store.with_name(Path(json.loads(text)["store"]).name)
            if found.is_file():
                return found
    return store


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return []


def alive_elsewhere(terms: Path, takeover: float) -> str:
    """The host whose onesd gives a sign of life, or takes the next term; empty: there is none.

    No clocks are compared: it watches for longer than a standby waits before it takes over.
    """
    before, until = _sign(terms), time.monotonic() + 1.5 * takeover
    while time.monotonic() < until:
        time.sleep(takeover / LOOKS)
        if _sign(terms) != before:
            return _host_of_latest(terms)
    return ""


def _sign(terms: Path) -> tuple[str, ...]:
    """Another one whenever the holder of the latest term beats, or another term follows it."""
    latest = _latest(terms)
    found = [latest]
    for name in (latest, f"{latest}.beat"):
        with suppress(OSError):
            found.append((terms / name).read_text(errors="replace"))
    return tuple(found)


def _host_of_latest(terms: Path) -> str:
    with suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
        text = (terms / _latest(terms)).read_text(errors="replace")
        return str(json.loads(text)["host"])
    return "another host"


def _latest(terms: Path) -> str:
    return max(filter(_TERM.fullmatch, (path.name for path in _listed(terms))), default="")


def lock_held(store: Path) -> Path | None:
    """The lock of the onesd that has this database open, if there is one; see onesd's main.py."""
    with suppress(OSError, ValueError):  # ValueError: a path without a name
        lock = store.with_suffix(".lock")
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock
    return None
