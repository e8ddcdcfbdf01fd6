"""A round's jobs and nodes as Gavel's problem: who can use which GPU type, and how fast.

A job takes part at the size it asks for, with its own batch, on as few nodes as hold it. Where it
would be faster or slower on more nodes, that is a column of its own (OSDI20 §3.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ones.policies.forecast import own_batch
from ones.policies.gavel.problem import SPREAD
from ones.policies.model import Job, Node, Outlook, Placement, Problem, Shape
from ones.policies.peers import size_asked_for

_SPREAD = f", {SPREAD}"
DIFFERS = 0.02  # in speed, from where a spread gang is a case of its own


@dataclass(frozen=True, slots=True)
class Form:
    """The node counts on which a gang can be on one GPU type."""

    fewest: int
    more: int | None  # the next number of nodes; None: it can't be spread


@dataclass(frozen=True, slots=True)
class Speeds:
    """Samples a second by GPU type; a type that the job can't use is missing."""

    together: Mapping[str, float]  # on the fewest nodes
    spread: Mapping[str, float]  # on the next number of nodes

    def matters(self, kind: str) -> bool:
        """Whether spreading makes a difference on this type."""
        spread = self.spread.get(kind)
        return spread is not None and abs(spread / self.together[kind] - 1.0) > DIFFERS

    def at(self, column: str) -> float:
        """On that column, as far as it is known there."""
        kind = kind_of(column)
        rates = self.together if column == kind else self.spread
        return rates.get(kind, self.together.get(kind, 0.0))

    def near(self, other: Speeds, within: float) -> bool:
        """Whether no speed differs by more than the share `within`."""
        return all(
            mine.keys() == theirs.keys()
            and all(abs(mine[kind] / theirs[kind] - 1.0) <= within for kind in mine)
            for mine, theirs in ((self.together, other.together), (self.spread, other.spread))
        )


@dataclass(slots=True)
class Market:
    """The usable GPUs by type, and what forms fit on them; remembers what jobs share."""

    nodes: tuple[Node, ...]
    free: Mapping[str, int]  # what each has for elastic jobs
    kinds: tuple[str, ...]
    _forms: dict[tuple[object, ...], Mapping[str, Form]] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> Market:
        nodes = tuple(node for node in problem.nodes if node.usable and node.gpus > node.taken)
        free = {node.name: node.gpus - node.taken for node in nodes}
        return cls(nodes, free, tuple(sorted({node.gpu_type for node in nodes})))

    def by_kind(self, gpus: Mapping[str, int]) -> Counter[str]:
        """GPUs by node added up by type."""
        total = Counter[str]()
        for node in self.nodes:
            total[node.gpu_type] += gpus.get(node.name, 0)
        return total

    def forms(self, job: Job, size: int) -> Mapping[str, Form]:
        """Where so many GPUs of one type can be had at all."""
        shapes = tuple(shape for shape in job.shapes if shape.gpus == size)
        key = (job.nodes, size, job.uneven, None if job.uneven else shapes)
        found = self._forms.get(key)
        if found is None:
            found = {}
            for kind in self.kinds:
                has = sorted(
                    (
                        node.gpus - node.taken
                        for node in self.nodes
                        if node.gpu_type == kind and node.name in job.nodes
                    ),
                    reverse=True,
                )
                form = _of_any_split(has, size) if job.uneven else _of_shapes(has, shapes)
                if form is not None:
                    found[kind] = form
            self._forms[key] = found
        return found

    def speeds(self, job: Job, size: int, outlook: Outlook) -> Speeds:
        """How fast the job is on each type, by its outlook."""
        batch = own_batch(job, outlook)
        if job.batches is not None:
            least, most = job.batches.bounds(np.array(size))
            batch = float(np.clip(batch, least, max(float(least), float(most))))
        together: dict[str, float] = {}
        spread: dict[str, float] = {}
        for kind, form in self.forms(job, size).items():
            counts = [form.fewest] if form.more is None else [form.fewest, form.more]
            step = outlook.speed.step_seconds(
                kind, np.array(counts), np.full(len(counts), size), np.full(len(counts), batch)
            )
            for rates, seconds in zip((together, spread), step.tolist(), strict=False):
                if np.isfinite(seconds) and seconds > 0:
                    rates[kind] = batch / seconds
        known = {kind: rate for kind, rate in spread.items() if kind in together}
        # Of a job that is said to be able to run nowhere nothing is known.
        return Speeds(together or dict.fromkeys(self.forms(job, size), 1.0), known)


def kind_of(column: str) -> str:
    """The GPU type of a column."""
    return column.removesuffix(_SPREAD)


def column_of(kind: str, forms: Mapping[str, Form], *, nodes: int) -> str:
    """The column of a gang on so many nodes of a type."""
    form = forms.get(kind)
    return kind if form is None or nodes <= form.fewest else kind + _SPREAD


def _of_any_split(has: Sequence[int], size: int) -> Form | None:
    total = np.cumsum(has)
    enough = np.flatnonzero(total >= size)
    if not len(enough):
        return None
    fewest = int(enough[0]) + 1
    return Form(fewest, fewest + 1 if size > fewest and len(has) > fewest else None)


def _of_shapes(has: Sequence[int], shapes: Sequence[Shape]) -> Form | None:
    counts = sorted(
        {
            shape.nodes
            for shape in shapes
            if sum(1 for gpus in has if gpus >= shape.gpus_per_node) >= shape.nodes
        }
    )
    return Form(counts[0], counts[1] if len(counts) > 1 else None) if counts else None


@dataclass(frozen=True)
class Claimant:
    """A job that takes part, at the size it asks for."""

    job: Job
    size: int
    speeds: Speeds
    forms: Mapping[str, Form]
    column: str | None = None  # that it runs on now; None: it doesn't run
    movable: bool = True

    @cached_property
    def lease(self) -> Placement | None:
        """What it can go on with: its present nodes, at the right size."""
        held = self.job.placement
        return held if held is not None and held.gpus == self.size else None


def claimed_size(job: Job, market: Market) -> int | None:
    """The size at which a job takes part; None where no usable type could ever hold that."""
    size = size_asked_for(job)
    return size if size is not None and market.forms(job, size) else None
