"""One target in one process: it is fed until somebody says stop, or the process dies of an input.

Before each input is fed it stands in a file that the parent has open, too: where the process dies
or hangs, the parent knows of what.
"""

from __future__ import annotations

import base64
import json
import logging
import mmap
import random
import resource
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.mutating import Mutator
from fuzz.shrinking import shrunk
from fuzz.target import Finding, Target, try_on, watching

ROOM = 4 * 2**30  # bytes of memory
HEADER = struct.Struct("<QQ")  # inputs so far, bytes of the present one
SPACE = 2**20
MOST_KINDS = 20  # of findings that are told of one target
HANGS = 3  # after which a target is left


class Notes:
    """The file with the number of inputs and the present one."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SPACE)

    @staticmethod
    def make(path: Path) -> Notes:
        path.write_bytes(bytes(SPACE))
        return Notes(path)

    def write(self, count: int, data: bytes) -> None:
        HEADER.pack_into(self._map, 0, count, len(data))
        self._map[HEADER.size : HEADER.size + len(data)] = data

    def read(self) -> tuple[int, bytes]:
        count, length = HEADER.unpack_from(self._map, 0)
        return count, self._map[HEADER.size : HEADER.size + length]


@dataclass
class Feeder:
    """Feeds a target, and tells each kind of finding once, made as small as it gets."""

    target: Target
    notes: Notes
    told: Path
    count: int = 0
    bad: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def feed(self, data: bytes) -> None:
        self.count += 1
        self.notes.write(self.count, data)
        found = try_on(self.target, data)
        if found is None:
            return
        self.bad += 1
        self.kinds[found.kind] = self.kinds.get(found.kind, 0) + 1
        if self.kinds[found.kind] == 1 and len(self.kinds) <= MOST_KINDS:
            self._tell(found, data)
        self.write()
        if self.kinds.get("hang", 0) + self.kinds.get("slow", 0) >= HANGS:
            sys.exit(0)

    def _tell(self, found: Finding, data: bytes) -> None:
        def same(smaller: bytes) -> bool:
            self.notes.write(self.count, smaller)
            again = try_on(self.target, smaller)
            return again is not None and again.kind == found.kind

        data = shrunk(data, same, seconds=20.0)
        told = {"kind": found.kind, "words": found.words, "data": base64.b64encode(data).decode()}
        with self.told.open("a") as file:
            file.write(json.dumps(told) + "\n")

    def write(self) -> None:
        """How many inputs found something, for the parent."""
        self.told.with_suffix(".bad").write_text(str(self.bad))


def bound_memory() -> None:
    """An input that takes more is a crash."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, most))


def by_chance(feeder: Feeder, *, seed: int, inputs: int, seconds: float) -> None:
    """Mutated seeds, one after the other."""
    target, rng = feeder.target, random.Random(seed)
    mutator = Mutator(target.seeds, target.words, largest=target.largest)
    until = time.monotonic() + seconds
    for data in target.seeds:
        feeder.feed(data)
    while feeder.count < inputs and time.monotonic() < until:
        feeder.feed(mutator.fresh(rng))


def by_coverage(
    feeder: Feeder, atheris: Any, *, seed: int, inputs: int, seconds: float, corpus: Path
) -> None:
    """Atheris: inputs that reach new code are changed further. Does not return."""
    target = feeder.target
    mutator = Mutator(target.seeds, target.words, largest=target.largest)
    for at, data in enumerate(target.seeds):
        (corpus / f"{at}").write_bytes(data)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.25:
            found: bytes = atheris.Mutate(data, most)
            return found
        return mutator.changed(data if rng.random() < 0.9 else b"", rng)[:most]

    options = {
        "seed": seed % 2**31 or 1,
        "runs": inputs,
        "max_total_time": max(1, int(seconds)),
        "max_len": target.largest,
        "timeout": 3600,
        "rss_limit_mb": 0,
        "verbosity": 0,
    }
    arguments = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup(["fuzz", *arguments, str(corpus)], feeder.feed, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> None:
    """Started by `running`, with what it needs as JSON."""
    said = json.loads(sys.argv[1])
    logging.disable(logging.CRITICAL)
    atheris: Any = None
    if said["guided"]:
        import atheris

        # Their code is made to say which way it goes as it is imported.
        with atheris.instrument_imports(include=["ones", "tomllib"]):
            from fuzz.registry import TARGETS
    else:
        from fuzz.registry import TARGETS
    target = TARGETS[said["target"]]
    place = Path(said["place"])
    with target.open(), watching():
        bound_memory()
        feeder = Feeder(target, Notes(place / "notes"), place / "found")
        bounds = {name: said[name] for name in ("seed", "inputs", "seconds")}
        if atheris is None:
            by_chance(feeder, **bounds)
        else:
            (place / "corpus").mkdir(exist_ok=True)
            by_coverage(feeder, atheris, corpus=place / "corpus", **bounds)


if __name__ == "__main__":
    main()
