"""The sizes an elastic job accepts, in the strings that Slurm's own --nodes takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ones.policies.words import counted

MOST_GPUS = 65536  # more is a typing error, and bounds what a hostile string can make us build
LONGEST_TEXT = 256  # characters of sizes; as in job_submit.lua and the SPANK plugin
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")


def in_gpus(count: int) -> str:
    """So many GPUs, in words."""
    return counted(count, "GPU")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The GPU counts a job accepts, ascending, without repeats."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = self.counts
        if not counts or list(counts) != sorted(set(counts)) or counts[0] < 1:
            raise ValueError(f"sizes {counts} are empty, unsorted or not positive")

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Read `4`, `2-16`, `4-16:4` or `1,2,4,8`; parts may be joined by commas.

        Raises ValueError with one line that names the part at fault.
        """
        if len(text) > LONGEST_TEXT:
            raise ValueError(
                f"sizes are longer than {LONGEST_TEXT} characters; use a range such as 2-16"
            )
        counts: set[int] = set()
        named = 0
        for part in text.split(","):
            match = _RANGE.fullmatch(part)
            if match is None:
                raise ValueError(f"sizes {text!r}: {part!r} is not a size; use 2-16 or 1,2,4,8")
            least = int(match[1])
            most = int(match[2] or least)
            step = int(match[3] or 1)
            if min(least, most, step) < 1:
                raise ValueError(f"sizes {text!r}: {part!r} has a zero; sizes start at 1 GPU")
            if least > most:
                raise ValueError(f"sizes {text!r}: {part!r} runs backwards; use {most}-{least}")
            if most > MOST_GPUS:
                raise ValueError(f"sizes {text!r}: {part!r} is more than {MOST_GPUS} GPUs")
            named += (most - least) // step + 1
            if named > MOST_GPUS:
                raise ValueError(f"sizes {text!r} repeat themselves; use a range such as 2-16")
            counts.update(range(least, most + 1, step))
        return cls(tuple(sorted(counts)))

    @property
    def least(self) -> int:
        return self.counts[0]

    @property
    def most(self) -> int:
        return self.counts[-1]

    def __contains__(self, gpus: object) -> bool:
        return gpus in self.counts

    def __iter__(self) -> Iterator[int]:
        return iter(self.counts)

    def __str__(self) -> str:
        """The shortest of the forms that `parse` reads back to the same sizes."""
        return _written(self.counts)


@lru_cache(maxsize=4096)
def _written(counts: tuple[int, ...]) -> str:
    if len(counts) == 1:
        return str(counts[0])
    steps = {after - before for before, after in pairwise(counts)}
    if len(steps) == 1 and (len(counts) > 2 or 1 in steps):
        step = steps.pop()
        return f"{counts[0]}-{counts[-1]}" + (f":{step}" if step > 1 else "")
    return ",".join(map(str, counts))
