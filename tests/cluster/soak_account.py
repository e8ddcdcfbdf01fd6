"""What a live job really did, by what its workers wrote before and after each step.

Pure: lines of counted_digits.py in, an `Account` out.

A *strand* is a time in which the state went from worker to worker without a break. Where all
workers were lost, the next strand begins at a checkpoint; of the strand before it only the steps up
to there are part of the training. Where a sharded model has lost a slice, the workers that are left
may go back to an earlier state, of which neighbours have copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the job was to do."""

    epochs: int
    samples: int  # of an epoch
    batch: int
    copies: bool = False  # whether the workers may go back to copies of an earlier state

    @property
    def total(self) -> int:
        return self.epochs * self.samples


@dataclass(slots=True)
class Account:
    """What came of a training."""

    lost: int = 0  # samples of a finished epoch in no step that counts
    repeated: int = 0  # samples of one epoch in more than one step that counts, or twice in one
    strands: int = 0
    gone_back: list[int] = field(default_factory=list)  # steps, each time that copies were taken
    standstill: float = 0.0  # seconds: the longest time between two steps of one strand
    changes: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Generation:
    """The steps of one generation, by the position before them."""

    number: int
    workers: set[str] = field(default_factory=set)
    steps: dict[int, list[Line]] = field(default_factory=dict)

    @property
    def begin(self) -> int:
        return min(self.steps)

    @property
    def committed(self) -> dict[int, list[Line]]:
        return {
            at: lines
            for at, lines in self.steps.items()
            if any(line["committed"] for line in lines)
        }

    @property
    def committers(self) -> dict[int, set[str]]:
        return {
            at: {line["worker"] for line in lines if line["committed"]}
            for at, lines in self.steps.items()
        }


Strand = Sequence[_Generation]


def account_of(notes: Iterable[Line], task: Task, *, complete: bool) -> Account:
    """The account of a job; where it is not `complete`, its last epoch need not be whole."""
    found = Account()
    strands = _strands([line for line in notes if "ids" in line])
    found.strands = len(strands)
    counted: dict[int, Counter[int]] = {}
    limit = task.total
    for strand in reversed(strands):
        for epoch, seen in _samples(strand, task, limit=limit).items():
            counted.setdefault(epoch, Counter()).update(seen)
        limit = min([limit, *(at for generation in strand for at in generation.committed)])
    last = task.epochs if complete else max(counted, default=0)
    for epoch in range(last):
        seen = counted.get(epoch, Counter())
        found.lost += task.samples - len(seen)
    found.repeated = sum(times - 1 for seen in counted.values() for times in seen.values())
    for strand in strands:
        found.standstill = max(found.standstill, _standstill(strand, task))
        found.changes.update(_changes(strand, task))
        if task.copies:
            found.gone_back += _gone_back(strand)
    return found


def _strands(lines: Iterable[Line]) -> list[Strand]:
    """In the order of time; each begins with workers of which none was there before."""
    generations: dict[tuple[int, int], _Generation] = {}
    for line in lines:
        key = (line["restarts"], line["generation"])
        one = generations.setdefault(key, _Generation(line["generation"]))
        one.workers.add(line["worker"])
        one.steps.setdefault(line["at"], []).append(line)
    strands: list[list[_Generation]] = []
    runs: dict[int, list[_Generation]] = {}
    for key in sorted(generations):
        runs.setdefault(key[0], []).append(generations[key])
    for run in runs.values():
        before: set[str] = set()
        for one in run:
            if before & one.workers:
                strands[-1].append(one)
            else:
                strands.append([one])
            before = one.workers
    return strands


def _samples(strand: Strand, task: Task, *, limit: int) -> dict[int, Counter[int]]:
    """Epoch -> samples in the steps of a strand that count, of those before `limit`."""
    epochs: dict[int, Counter[int]] = {}
    for index, generation in enumerate(strand):
        later: set[str] = set().union(*(each.workers for each in strand[index + 1 :]))
        redone: set[int] = set().union(*(each.committed for each in strand[index + 1 :]))
        kept = min((each.begin for each in strand[index + 1 :] if task.copies), default=limit)
        for at, lines in generation.committed.items():
            if at >= kept or at >= limit:
                continue
            if at in redone and not generation.committers[at] & later:
                continue  # whoever had committed it died before handing it on
            # Who was killed after the gradients were averaged was part of it, and could not say so.
            ids = {line["worker"]: line["ids"] for line in lines}
            seen = epochs.setdefault(at // task.samples, Counter())
            for numbers in ids.values():
                seen.update(numbers)
    return epochs


def _gone_back(strand: Strand) -> list[int]:
    """How many steps were undone, each time that workers went on with fewer than they had."""
    undone = [
        sum(
            at >= after.begin and bool(who & after.workers) for at, who in before.committers.items()
        )
        for before, after in pairwise(strand)
    ]
    return [steps for steps in undone if steps]


def _standstill(strand: Strand, task: Task) -> float:
    """But for the last steps, where a soak holds a training up on purpose."""
    began: dict[int, float] = {}
    for generation in strand:
        for at, lines in generation.committed.items():
            if at < task.total - task.samples:
                began[at] = min(line["time"] for line in lines)
    times = sorted(began.values())
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def _changes(strand: Strand, task: Task) -> Counter[str]:
    """How often workers came, left, or both at once, and how often in the very last steps."""
    changes: Counter[str] = Counter()
    for before, after in pairwise(strand):
        came, left = after.workers - before.workers, before.workers - after.workers
        if not (came or left) or not after.steps:
            continue
        changes["both at once" if came and left else "growth" if came else "shrink"] += 1
        if min(after.steps) >= task.total - 3 * task.batch:
            changes["in the last three steps"] += 1
    return changes
