"""Runs targets, each in processes of its own, and says what came of it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.feeding import Notes
from fuzz.target import Target

HERE = Path(__file__).resolve().parent
STUCK = 60.0  # seconds with one input after which the process is ended
BEGINNING = 600.0  # seconds before the first input: a busy machine takes long to load it all
DEATHS = 5  # of processes, after which a target is left


@dataclass(frozen=True, slots=True)
class Found:
    """One kind of finding, with the smallest input that found it."""

    kind: str
    words: str
    data: bytes


@dataclass(slots=True)
class Result:
    """What became of one target."""

    target: str
    engine: str
    inputs: int = 0
    seconds: float = 0.0
    bad: int = 0  # inputs that found something
    found: list[Found] = field(default_factory=list)
    fault: str = ""  # why it could not be fed

    @property
    def pace(self) -> float:
        return self.inputs / self.seconds if self.seconds else 0.0


def run(target: Target, *, guided: bool, seed: int, inputs: int, seconds: float) -> Result:
    """Feed it until there were so many inputs, or the time is over."""
    guided = guided and target.guided
    result = Result(target.name, "coverage" if guided else "chance")
    until = time.monotonic() + seconds
    for attempt in range(DEATHS):
        left = until - time.monotonic()
        if left <= 0 or result.inputs >= inputs:
            break
        with tempfile.TemporaryDirectory(prefix="ones-fuzz-") as folder:
            said = {
                "target": target.name,
                "guided": guided,
                "seed": seed + attempt,
                "inputs": inputs - result.inputs,
                "seconds": left,
                "place": folder,
            }
            if _one_process(said, Path(folder), result):
                break
    return result


def _one_process(said: dict[str, object], place: Path, result: Result) -> bool:
    """Whether it came to its end, rather than dying of an input."""
    notes = Notes.make(place / "notes")
    log = place / "log"
    begun, moved, count = 0.0, time.monotonic(), 0
    stuck = False
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.feeding", json.dumps(said)],
            cwd=HERE.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                time.sleep(0.05)
                now, seen = time.monotonic(), notes.read()[0]
                if seen and not begun:
                    begun = now
                if seen != count:
                    count, moved = seen, now
                if now - moved > (STUCK if begun else BEGINNING):
                    stuck = True
                    break
        finally:
            process.kill()
            process.wait()
    count, data = notes.read()
    result.inputs += count
    result.seconds += time.monotonic() - (begun or moved)
    told = place / "found"
    if told.exists():
        for line in told.read_text().splitlines():
            one = json.loads(line)
            if one["kind"] not in {each.kind for each in result.found}:
                data_of = base64.b64decode(one["data"])
                result.found.append(Found(one["kind"], one["words"], data_of))
    bad = told.with_suffix(".bad")
    result.bad += int(bad.read_text()) if bad.exists() else 0
    if process.returncode == 0 and not stuck:
        return True
    if not count:
        lines = log.read_text(errors="replace").strip().splitlines()
        result.fault = lines[-1] if lines else f"exit status {process.returncode}"
        return True
    kind = "stuck" if stuck else f"died: {process.returncode}"
    words = f"no end after {STUCK:.0f} s" if stuck else "the process died"
    result.bad += 1
    if kind not in {each.kind for each in result.found}:
        result.found.append(Found(kind, words, data))
    return False
